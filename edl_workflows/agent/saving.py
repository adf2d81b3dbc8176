"""When the chief saves, and what the master hears of it. How to save is the training code's."""

import logging
import time
from collections.abc import Callable

from edl_workflows.agent.client import MasterClient
from edl_workflows.agent.directives import DirectiveWatch
from edl_workflows.agent.reports import Reporter
from edl_workflows.exceptions import EdlError
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.nodes import Directive, NodeRef
from edl_workflows.protocol.training import CheckpointBegin, CheckpointEnd, CheckpointTicket

RETRY_SECONDS = 1.0
"""After the master could not be told that a checkpoint begins."""

log = logging.getLogger(__name__)


class Saving:
    """Checkpoints of one training process, for its main thread.

    Args:
        client: to the master.
        watch: of the directive.
        reporter: brings the outcome to the master.
        node, version: who saves.
    """

    def __init__(
        self, client: MasterClient, watch: DirectiveWatch, reporter: Reporter, node: NodeRef, version: int
    ) -> None:
        self.next_periodic = float("inf")
        self._client = client
        self._watch = watch
        self._reporter = reporter
        self._node = node
        self._version = version
        self._save: Callable[[], CheckpointRef] | None = None
        self._every = float("inf")
        self._not_before = 0.0
        self._served = ""

    @property
    def configured(self) -> bool:
        """Whether the training code has said how to save."""
        return self._save is not None

    def configure(self, save: Callable[[], CheckpointRef], every_seconds: float | None) -> None:
        """See `Job.save_with`."""
        self._save = save
        self._every = every_seconds or float("inf")
        self.next_periodic = time.monotonic() + self._every

    def due(self, directive: Directive) -> bool:
        """Whether the chief shall save now. While it drains only on request: a switch waits for it."""
        now = time.monotonic()
        periodic = now >= self.next_periodic and not directive.drain
        return self.configured and (bool(self._request(directive)) or periodic) and now >= self._not_before

    def save(self, patience: float, stopped: Callable[[], bool]) -> CheckpointRef | None:
        """See `Job.checkpoint`.

        Args:
            patience: seconds to wait for a master that is away.
            stopped: ends the waiting.
        """
        assert self._save is not None, "say how to save by save_with first"
        deadline = time.monotonic() + patience
        while (ticket := self._begin()) is None:
            if stopped() or time.monotonic() >= deadline:
                return None
            time.sleep(RETRY_SECONDS)
        try:
            saved = self._save()
            self.next_periodic = time.monotonic() + self._every
        except Exception as error:
            # Whatever went wrong, the master must know, and training can go on without this checkpoint.
            log.exception("saving a checkpoint failed")
            reason = f"{type(error).__name__}: {error}"[:4096]
            self._reporter.checkpoint(ticket.id, CheckpointEnd(node=self._node, error=reason))
            return None
        self._reporter.checkpoint(ticket.id, CheckpointEnd(node=self._node, uri=saved.uri, step=saved.step))
        return saved

    def _begin(self) -> CheckpointTicket | None:
        """Announce it, so that the master remembers the data position; None if that can't be done now."""
        request = self._request(self._watch.latest)
        begin = CheckpointBegin(node=self._node, version=self._version, request=request)
        try:
            ticket = self._client.begin_checkpoint(begin)
        except EdlError as error:
            # Away, or another version has become active a moment ago.
            log.warning("%s; no checkpoint now", error)
            self._not_before = time.monotonic() + RETRY_SECONDS
            return None
        self._served = request or self._served
        self.next_periodic = time.monotonic() + self._every
        return ticket

    def _request(self, directive: Directive) -> str:
        """The request that has not been served yet; "" if there is none."""
        return directive.save if directive.save != self._served else ""
