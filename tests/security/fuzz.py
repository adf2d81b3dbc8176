"""Attacks on every server of ours for as long as you like: ``make fuzz MINUTES=30 SEEDS="1 2 3"``.

    python -m tests.security.fuzz [--minutes 30] [--seeds 1 2 3] [--only raw embedded ...]

For each seed all servers are started anew, and each surface gets its share of the time. Prints a line a
surface: requests, answers of 500 and more, deaths, the longest that a ping waited beside it (and by how much
the pinger itself was late, which is the machine's doing), pings without an answer, and memory before and
after. Then what was sent before each finding. Ends with 1 if there was a server error, a death, or a stall
beyond a second that the machine does not explain. Same seed, same requests; how far they come depends on the
machine.
"""

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from tests.security import from_openapi, hostile_objects, raw_http, servers
from tests.security.servers import Server
from tests.security.tally import HEADER, Tally, counting

STALL = 1.0
"""Seconds that no other client may wait."""
WARM_UP = 100
"""Conversations before memory is looked at: what is loaded on first use is no leak."""
AT_ONCE = 4

Attack = Callable[[Server, Tally, int, float], None]


def raw(server: Server, tally: Tally, seed: int, until: float) -> None:
    """Conversations drawn from a seed, some at a time."""

    def some(number: int) -> None:
        random = Random(f"{seed}/{server.name}/{number}")
        while time.monotonic() < until and server.lives:
            conversation = raw_http.draw(random, server)
            try:
                statuses = raw_http.hold(server, conversation)
            except (OSError, AssertionError) as error:
                tally.answered(599, f"{conversation}: {error}")
                continue
            for status in statuses or [0]:
                tally.answered(status, str(conversation))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(some, range(AT_ONCE)))


def described(server: Server, tally: Tally, seed: int, until: float) -> None:
    """Requests from the server's OpenAPI document."""
    if server.name == "embedded":
        from_openapi.make_namespace(server)
    from_openapi.attack(server, tally, seed, most=5, seconds=until - time.monotonic())


SURFACES: tuple[tuple[str, Attack, str, int], ...] = (
    *(("openapi", described, name, 3) for name in from_openapi.DOCUMENTS),
    *(("raw", raw, name, 2) for name in servers.NAMES),
    ("objects", hostile_objects.attack, "embedded", 6),
)
"""How, with what, which server, and its share of the time."""


def chosen(only: list[str]) -> list[tuple[str, Attack, str, int]]:
    """The surfaces whose way or server is named; all without names."""
    return [one for one in SURFACES if not only or {one[0], one[2], f"{one[0]}/{one[2]}"} & set(only)]


def fuzz(seed: int, seconds: float, only: list[str]) -> Iterator[Tally]:
    """Attack everything once with a seed."""
    surfaces = chosen(only)
    whole = sum(share for *_, share in surfaces)
    with tempfile.TemporaryDirectory(prefix="edl-fuzz-") as folder, contextlib.ExitStack() as stack:
        running = stack.enter_context(servers.every(Path(folder)))
        for server in running.values():
            _warm_up(server)
        for way, attack, name, share in surfaces:
            with counting(f"{way}/{name}", running[name]) as tally:
                attack(running[name], tally, seed, time.monotonic() + seconds * share / whole)
            yield tally
            if tally.deaths:
                print(f"{name} ended:\n{running[name].log.read_text()[-4000:]}")
                return


def _warm_up(server: Server) -> None:
    for number in range(WARM_UP):
        with contextlib.suppress(OSError, AssertionError):
            raw_http.hold(
                server, raw_http.Conversation(((b"GET / HTTP/1.0\r\n\r\n", 0.0),), raw_http.End.HALF)
            )
        if number > 10 and server.name == "health":
            return


def wrong(tally: Tally) -> bool:
    """Whether it is a finding."""
    stall = tally.seen.longest - tally.seen.machine
    return bool(tally.error_count or tally.deaths or stall > STALL)


def main() -> int:
    """Parse the arguments, attack, report."""
    parser = argparse.ArgumentParser(prog="tests.security.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of all seeds together")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--only", nargs="*", default=[], help="ways and servers, as raw, embedded or raw/embedded"
    )
    options = parser.parse_args()
    tallies: list[Tally] = []
    for seed in options.seeds:
        print(f"seed {seed}\n{HEADER}", flush=True)
        for tally in fuzz(seed, options.minutes * 60 / len(options.seeds), options.only):
            tallies.append(tally)
            print(tally, flush=True)
    for line in itertools.chain.from_iterable(tally.errors for tally in tallies):
        print(line)
    found = sum(map(wrong, tallies))
    print(
        f"{sum(tally.requests for tally in tallies)} requests, {found} of {len(tallies)} surfaces with "
        "findings"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
