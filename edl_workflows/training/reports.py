"""Reports of a training process to its master, sent in the background: a call in the training loop takes
microseconds."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.protocol.nodes import (
    Directive,
    NodeRef,
    PresenceReport,
    ProcessReport,
    ProcessState,
    ServerReport,
)
from edl_workflows.core.protocol.training import CheckpointEnd, StepReport
from edl_workflows.training.client import MasterClient, call_until_answered
from edl_workflows.training.directives import DirectiveWatch

STEP_SECONDS = 0.5
"""Interval of step reports; the protocol promises at most a few per second."""
_AT_ONCE = 0.0
"""When a step is due that does not wait for the interval."""
PRESENCE_SECONDS = 2.0
"""Interval of reports that the process lives, while it reports no step."""

log = logging.getLogger(__name__)


class Reporter:
    """Sends reports in one thread. Reports of states and checkpoints are sent in order and retried until the
    master answers; of step reports only the newest counts.

    Args:
        client: connection to the master.
        watch: accepts the directives in the responses.
        node: the reporting node.
        version: cluster version of the process.
    """

    def __init__(self, client: MasterClient, watch: DirectiveWatch, node: NodeRef, version: int) -> None:
        self._client = client
        self._watch = watch
        self._node = node
        self._version = version
        self._lock = threading.Condition()
        self._letters: deque[Callable[[], object]] = deque()
        # The newest step and the version that made it, taken and replaced without a lock.
        self._step: deque[tuple[int, int, float | None, int, float]] = deque(maxlen=1)
        self._metrics: dict[str, float] = {}
        self._metrics_lock = threading.Lock()
        self._first_step_time: float | None = None
        self.records_total = 0
        """Records of all epochs of a collective job; 0 if unknown."""
        self._own_copy = False
        self._saves = False
        self._newest_step = 0
        self._waiting: Callable[[], float] | None = None
        self._step_due = _AT_ONCE
        self._awaited = 0
        self._presence_due = 0.0
        self._busy = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, name="reports", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Send what is pending, for at most `timeout` seconds, and stop."""
        self.flush(timeout)
        self._stop.set()
        with self._lock:
            self._lock.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything is sent; False on time-out."""
        with self._lock:
            self._step_due = _AT_ONCE
            self._lock.notify_all()
            return self._lock.wait_for(lambda: not (self._letters or self._step or self._busy), timeout)

    def go_on_in(self, version: int) -> None:
        """Report for another cluster version from now on. A step of the former one that was not reported yet
        is not reported any more: it would count as a step of the new version."""
        self._version = version
        self._step.clear()
        self._first_step_time = None

    def state(
        self,
        state: ProcessState,
        servers: ServerReport | None = None,
        *,
        in_place: bool = False,
        replica_size: int = 1,
    ) -> None:
        """Report the state of the process, which changes of parameter servers its model survives, and whether
        it can change its group in place, with how many others."""
        report = ProcessReport(
            node=self._node,
            version=self._version,
            state=state,
            servers=servers,
            in_place=in_place,
            replica_size=replica_size,
            own_copy=self._own_copy and state is ProcessState.TRAINING,
            saves=self._saves and state is ProcessState.TRAINING,
        )
        self._put(lambda: self._offer_directive(self._client.process(report)))

    def saving(self, seconds: float) -> None:
        """Report that training stopped for so long for a checkpoint, if it has begun."""
        if self._first_step_time is not None:
            report = ProcessReport(
                node=self._node,
                version=self._version,
                state=ProcessState.TRAINING,
                saving=seconds,
                own_copy=self._own_copy,
                saves=self._saves,
            )
            self._put(lambda: self._offer_directive(self._client.process(report)))

    def report_own_copy(self, *, trained: bool) -> None:
        """Report with the first step, and again when it changes, whether this process trains a copy of the
        model of its own (`ProcessReport.own_copy`)."""
        if trained != self._own_copy:
            self._own_copy = trained
            if self._first_step_time is not None:
                self.state(ProcessState.TRAINING)

    def report_saves(self) -> None:
        """Report with the first step that this process answers requests for checkpoints."""
        if not self._saves:
            self._saves = True
            if self._first_step_time is not None:
                self.state(ProcessState.TRAINING)

    def report_presence(self, waiting: Callable[[], float]) -> None:
        """Report every few seconds that this process lives, while it reports no step.

        Args:
            waiting: the seconds for which it has waited for other members; called in another thread.
        """
        self._waiting = waiting

    def checkpoint(self, ticket: str, end: CheckpointEnd) -> None:
        """Report the end of a checkpoint."""
        self._put(lambda: self._client.end_checkpoint(ticket, end))

    def step(
        self, step: int, loss: float | None, records: int = 0, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Report the newest step, and the records that a collective job has processed. The first step and a
        step that somebody waits for are sent at once, the others at most every half second. Of metrics the
        newest value of each name is sent."""
        now = time.time()
        first = self._first_step_time is None
        if metrics is not None:
            with self._metrics_lock:
                self._metrics.update(metrics)
            with contextlib.suppress(IndexError):  # sent just now
                _, before, *_ = self._step[-1]
                if before >= step:
                    return  # its report takes the metrics along
        self._step.append((self._version, step, loss, records, now))
        self._newest_step = step
        if first:
            self._first_step_time = now
            self.state(ProcessState.TRAINING)
        elif 0 < self._awaited <= step:
            self._send_step_now()

    def _put(self, letter: Callable[[], object]) -> None:
        with self._lock:
            self._letters.append(letter)
            self._lock.notify_all()

    def _send_step_now(self) -> None:
        with self._lock:
            self._awaited = 0
            self._step_due = _AT_ONCE
            self._lock.notify_all()

    def _offer_directive(self, directive: Directive) -> None:
        self._watch.offer(directive)

    def _send(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                # `step` does not notify, because that would cost the training loop a thread switch.
                self._lock.wait_for(self._anything_due, timeout=STEP_SECONDS / 2)
                letter = self._next_letter()
                self._busy = letter is not None
            if letter is None:
                self._send_presence()
                continue
            self._deliver(letter)
            with self._lock:
                self._busy = False
                self._lock.notify_all()

    def _anything_due(self) -> bool:
        return self._stop.is_set() or bool(self._letters) or (bool(self._step) and self._step_due == _AT_ONCE)

    def _next_letter(self) -> Callable[[], object] | None:
        if self._letters:
            return self._letters.popleft()
        if not self._step or time.monotonic() < self._step_due:
            return None
        version, step, loss, records, at = self._step.pop()
        self._step_due = time.monotonic() + STEP_SECONDS
        self._presence_due = time.monotonic() + PRESENCE_SECONDS
        with self._metrics_lock:
            metrics, self._metrics = self._metrics, {}
        report = StepReport(
            node=self._node,
            version=version,
            step=step,
            time=at,
            first_step_time=self._first_step_time or at,
            loss=loss,
            records=records,
            records_total=self.records_total,
            known=self._watch.latest.revision,
            metrics=metrics,
        )
        return lambda: self._report_step(report)

    def _report_step(self, report: StepReport) -> None:
        receipt = self._client.step(report)
        self._awaited = receipt.awaited
        if 0 < receipt.awaited <= self._newest_step:  # it was made meanwhile
            self._send_step_now()
        self._offer_directive(receipt)

    def _send_presence(self) -> None:
        if self._waiting is None or self._stop.is_set() or time.monotonic() < self._presence_due:
            return
        self._presence_due = time.monotonic() + PRESENCE_SECONDS
        report = PresenceReport(
            node=self._node,
            version=self._version,
            step=self._newest_step,
            waiting=self._waiting(),
            known=self._watch.latest.revision,
        )
        try:  # once: a later report says the same
            self._offer_directive(self._client.presence(report))
        except EdlError as error:
            log.debug("%s", error)

    def _deliver(self, letter: Callable[[], object]) -> None:
        try:
            call_until_answered(letter, self._stop)
        except EdlError as error:
            # Retrying a rejected report is useless, and a rejection must not end the training.
            log.warning("%s", error)
