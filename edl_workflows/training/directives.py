"""The newest directive of the master, kept by one long-polling thread."""

import logging
import threading
from collections.abc import Callable

from edl_workflows.core.exceptions import EdlError, NotFoundError
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.training.client import MasterClient, Retries

POLL_SECONDS = 25.0
"""Less than the master's limit of 30 s, and than the usual time-outs of proxies."""

log = logging.getLogger(__name__)


class DirectiveWatch:
    """Follows a node's directive until closed.

    Args:
        client: connection to the master.
        node: the node whose directive is followed.
        on_change: called in the watching thread after each change.
        register: called in the watching thread before the first poll and when the master does not know the
            node.
    """

    def __init__(
        self,
        client: MasterClient,
        node: NodeRef,
        on_change: Callable[[], None] = lambda: None,
        register: Callable[[], Directive] | None = None,
    ) -> None:
        self.latest = Directive(revision=0)
        self._client = client
        self._node = node
        self._on_change = on_change
        self._register = register
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._heard = False
        self._thread = threading.Thread(target=self._follow, name="directive", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Stop following; blocked `wait_for` calls return."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def offer(self, directive: Directive) -> None:
        """Accept a directive from the response to another call, if it is newer."""
        if directive.revision > self.latest.revision:
            self._accept(directive)

    def refresh(self) -> None:
        """Fetch the directive now.

        Raises:
            EdlError: the master did not answer.
        """
        before = self.latest
        answer = self._client.directive(self._node, before.revision, 0.0)
        with self._changed:
            # A lower revision can come from a restarted master and is accepted, but not if a directive
            # arrived from another call in the meantime.
            if self.latest is before or answer.revision > self.latest.revision:
                self._accept(answer)

    def wait_for(self, predicate: Callable[[Directive], bool], timeout: float | None = None) -> bool:
        """Wait until the directive satisfies `predicate`, at most `timeout` seconds or until the watch is
        closed. Returns whether the directive satisfies it.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._stop.is_set() or (self._heard and predicate(self.latest)), timeout
            )
            return self._heard and predicate(self.latest)

    def nudge(self) -> None:
        """Make waiters evaluate their predicates again. Takes a lock, so don't call it in a signal
        handler."""
        with self._changed:
            self._changed.notify_all()

    def _accept(self, directive: Directive) -> None:
        with self._changed:
            changed = not self._heard or directive != self.latest
            self.latest = directive
            self._heard = True
            self._changed.notify_all()
        if changed:
            self._on_change()

    def _follow(self) -> None:
        retries = Retries(self._stop)
        registered = self._register is None
        logged_error = ""
        while not self._stop.is_set():
            try:
                if not registered and self._register is not None:
                    self._accept(self._register())
                    registered = True
                # The first poll returns at once with the current directive.
                wait = POLL_SECONDS if self._heard else 0.0
                # The directive is accepted even if its revision is lower: the master may have been restarted.
                self._accept(self._client.directive(self._node, self.latest.revision, wait))
                retries.reset()
                logged_error = ""
            except EdlError as error:
                if isinstance(error, NotFoundError):
                    registered = self._register is None
                if not self._stop.is_set() and logged_error != type(error).__name__:
                    log.warning("%s; retrying", error)
                    logged_error = type(error).__name__
                retries.wait()


def prepared_version(directive: Directive) -> int:
    """The version that is being prepared; 0 if none is."""
    return directive.next.version if directive.next else 0
