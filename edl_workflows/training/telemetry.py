"""Progress of a training loop that is otherwise left as it is: its steps and metrics reach the job's status.

Nothing else follows from these reports. A program that only reports can't be asked to stop between two steps,
so the job treats it like one that does not use the library.
"""

import atexit
import logging
import os
import threading
import time
from collections import deque

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.metrics import check_metrics
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment, cluster_version
from edl_workflows.training.reports import STEP_SECONDS

CLOSE_SECONDS = 5.0
"""Longest time for the last report when the process exits."""

log = logging.getLogger(__name__)


class ProgressReporter:
    """Sends the newest step in a thread, at most twice a second, and a step that somebody waits for at once.
    A report that fails is replaced by the next one.

    Args:
        environment: the pod's environment.
        version: cluster version of the process.
        client: connection to the master.
    """

    def __init__(self, environment: NodeEnvironment, version: int, client: MasterClient) -> None:
        self._environment = environment
        self._version = version
        self._client = client
        self._first_step_time = 0.0
        self._metrics: dict[str, float] = {}
        self._newest: deque[StepReport] = deque(maxlen=1)
        self._awaited = 0
        self._due = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._send_all, name="progress", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def report(self, step: int, loss: float | None, metrics: dict[str, float]) -> None:
        """Report a step. Of each metric the newest value counts."""
        now = time.time()
        self._first_step_time = self._first_step_time or now
        self._metrics = {**self._metrics, **metrics}
        self._newest.append(
            StepReport(
                node=self._environment.node,
                version=self._version,
                step=step,
                time=now,
                first_step_time=self._first_step_time,
                loss=loss,
                metrics=self._metrics,
            )
        )
        if 0 < self._awaited <= step:
            self._awaited = 0
            self._due.set()

    def close(self) -> None:
        """Send the newest step, and stop."""
        self._closing = True
        self._due.set()
        self._thread.join(CLOSE_SECONDS)

    def _send_all(self) -> None:
        while not self._closing:
            self._due.wait(STEP_SECONDS)
            self._due.clear()
            self._send()
        self._send()
        self._client.close()

    def _send(self) -> None:
        try:
            report = self._newest.pop()
        except IndexError:  # no step since the last report
            return
        try:
            self._awaited = self._client.step(report).awaited
        except EdlError as error:
            log.debug("%s", error)
            return
        newer = list(self._newest)
        if newer and 0 < self._awaited <= newer[-1].step:  # it was made meanwhile
            self._due.set()


_reporters: dict[int, ProgressReporter] = {}
"""By process id, since a forked process has no thread."""


def progress(step: int, loss: float | None = None, **metrics: float) -> None:
    """Report a step of a training loop that does not use this library otherwise: the job then shows progress,
    speed and metrics. Takes microseconds.

    A program that uses an adapter, or `connect`, does not need it. Does nothing outside of a job, on
    parameter servers and evaluators, and in all but the first process of a pod.

    Args:
        step: number of steps made so far.
        loss: loss of the step.
        metrics: at most 20 other numbers by name, such as ``accuracy=0.98``. Values that are not finite are
            left out.

    Raises:
        InvalidError: a metric is malformed.
    """
    trains = os.environ.get(names.ENV_NODE_TYPE) in (names.CHIEF_TYPE, names.WORKER_TYPE)
    if not trains or os.environ.get(names.ENV_LOCAL_RANK, "0") != "0":
        return
    checked = check_metrics(metrics)
    reporter = _reporters.get(os.getpid())
    if reporter is None:
        environment = NodeEnvironment.read()
        client = MasterClient(environment.master, environment.token)
        reporter = ProgressReporter(environment, cluster_version(os.environ), client)
        _reporters[os.getpid()] = reporter
    reporter.report(int(step), None if loss is None else float(loss), checked)
