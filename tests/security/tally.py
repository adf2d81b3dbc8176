"""What an attack did to a server: requests, answers that blame the server, deaths, stalls, memory."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.security.pinger import Seen, pinging
from tests.security.servers import Server

NOT_IMPLEMENTED = (501, 505)
"""What an HTTP server may say of a method or a version that it does not have: the client's mistake."""
MOST_KEPT = 20


@dataclass
class Tally:
    """Of one surface.

    Attributes:
        surface: what was attacked, and how.
        requests: that were sent.
        errors: the answers of 500 and more, with what was sent, and other findings; the first `MOST_KEPT`.
        error_count: of all of them.
        deaths: times that the process ended.
        seen: by the pinger beside the attack.
        before, after: memory of the process, in MiB.
    """

    surface: str
    requests: int = 0
    errors: list[str] = field(default_factory=list)
    error_count: int = 0
    deaths: int = 0
    seen: Seen = field(default_factory=Seen)
    before: float = 0.0
    after: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def answered(self, status: int, sent: str) -> None:
        """Take one answer in; 0 for a connection that ended without one."""
        with self._lock:
            self.requests += 1
            if status >= 500 and status not in NOT_IMPLEMENTED:
                self._keep(f"{status} to {sent}")

    def found(self, what: str) -> None:
        """Take in a finding that no status tells."""
        with self._lock:
            self._keep(what)

    def _keep(self, what: str) -> None:
        self.error_count += 1
        if len(self.errors) < MOST_KEPT:
            self.errors.append(f"{self.surface}: {what}")

    def __str__(self) -> str:
        seen = self.seen
        return (
            f"{self.surface:24} {self.requests:8} {self.error_count:5} {self.deaths:6} "
            f"{seen.longest * 1e3:8.0f}"
            f" {seen.machine * 1e3:8.0f} {seen.unanswered:6} {self.before:8.0f} {self.after:8.0f}"
        )


HEADER = (
    f"{'surface':24} {'requests':>8} {'5xx':>5} {'deaths':>6} {'stall ms':>8} {'machine':>8} {'no ping':>6}"
    f" {'MiB was':>8} {'MiB is':>8}"
)


@contextlib.contextmanager
def counting(surface: str, server: Server) -> Iterator[Tally]:
    """A tally of what happens to a server while the context lasts."""
    tally = Tally(surface, before=server.memory)
    with pinging(server.port, server.ping, str(server.authority or "")) as tally.seen:
        yield tally
    tally.deaths = 0 if server.lives else 1
    tally.after = server.memory
