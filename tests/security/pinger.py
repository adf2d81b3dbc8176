"""How long a server leaves its callers waiting: ``python -m tests.security.pinger PORT PATH [AUTHORITY]``.

A process of its own, so that the attack's own work does not count. It asks every 50 ms until its standard
input ends, and prints what it saw as JSON. `machine` is by how much it was itself woken too late: then no
server could have answered.
"""

import contextlib
import http.client
import json
import select
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

PERIOD = 0.05
PATIENCE = 20.0


@dataclass
class Seen:
    """What a pinger saw.

    Attributes:
        pings: that were answered.
        unanswered: that were not, whatever the reason.
        longest: seconds until an answer.
        machine: longest delay of the pinger itself, in seconds.
    """

    pings: int = 0
    unanswered: int = 0
    longest: float = 0.0
    machine: float = 0.0


def _connection(port: int, authority: str) -> http.client.HTTPConnection:
    if not authority:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    context = ssl.create_default_context(cafile=authority)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=context)


def ping(port: int, path: str, authority: str) -> Seen:
    """Ask until standard input ends; each time on a new connection, as accepting is part of answering."""
    seen = Seen()
    while True:
        began = time.monotonic()
        if select.select([sys.stdin], [], [], PERIOD)[0]:
            return seen
        asked = time.monotonic()
        seen.machine = max(seen.machine, asked - began - PERIOD)
        with contextlib.closing(_connection(port, authority)) as connection:
            try:
                connection.request("GET", path, headers={"Connection": "close"})
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                seen.unanswered += 1
            else:
                seen.pings += 1
        seen.longest = max(seen.longest, time.monotonic() - asked)


@contextlib.contextmanager
def pinging(port: int, path: str, authority: str = "") -> Iterator[Seen]:
    """A pinger in a process of its own while the context lasts; its value is filled at the end."""
    command = [sys.executable, "-m", "tests.security.pinger", str(port), path, authority]
    seen = Seen()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield seen
        finally:
            said, _ = process.communicate()
            vars(seen).update(json.loads(said))


if __name__ == "__main__":
    print(json.dumps(vars(ping(int(sys.argv[1]), sys.argv[2], sys.argv[3]))))
