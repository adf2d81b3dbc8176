"""Asks the master when a node whose pod is told to end may end."""

import logging
import threading
import time
from collections.abc import Callable

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.core.protocol.nodes import LeaveVerdict

ASK_SECONDS = 1.0
UNANSWERED_SECONDS = 3.0
"""Without an answer for so long the node ends: its master is gone, too."""

log = logging.getLogger(__name__)


class LeaveInquiry:
    """Asks in a thread of its own until the node may end.

    Args:
        ask: asks once; raises an `EdlError`.
        wake: called in the thread when the node may end.
    """

    def __init__(self, ask: Callable[[], LeaveVerdict], wake: Callable[[], None]) -> None:
        self._ask = ask
        self._wake = wake
        self._allowed = threading.Event()
        self.seconds = 0.0
        """How long a last save may take, as the master has measured earlier ones; 0 if unknown."""

    @property
    def allowed(self) -> bool:
        """Whether the node may end."""
        return self._allowed.is_set()

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._follow, name="leave", daemon=True).start()

    def _follow(self) -> None:
        answered, waited = time.monotonic(), False
        while True:
            try:
                verdict = self._ask()
            except UnavailableError:
                if time.monotonic() - answered > UNANSWERED_SECONDS:
                    break
            except EdlError as error:  # the master is of an earlier version, or does not know this node
                log.debug("%s", error)
                break
            else:
                answered, self.seconds = time.monotonic(), verdict.seconds
                if not verdict.wait:
                    break
                if not waited:
                    log.info("told to end; waiting for the job's last checkpoint")
                    waited = True
            time.sleep(ASK_SECONDS)
        self._allowed.set()
        self._wake()
