"""The peer: TorchFT, whose survivors keep their processes, too: its lighthouse and its members
(`tests.benchmarks.peers.torchft_member`) as processes. A member that was killed is started again at once."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.benchmarks.pauses import Kills
from tests.clients.environments import python_environment
from tests.e2e.pods import free_ports
from tests.e2e.turns import BATCH_SIZE, RECORDS, Turn, Turns

SECONDS = 600.0
AHEAD = 100
"""Steps between the newest one and the last one, which all members must learn in time."""
PACKAGES = ("torchft-nightly", "torch")
_VERSIONS = """
import importlib.metadata, sys
print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in sys.argv[1:]))
"""


def describe_versions() -> str:
    """Names and versions of what is measured."""
    command = [str(python_environment("torchft")), "-c", _VERSIONS, *PACKAGES]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
    return done.stdout.strip()


@dataclass
class TorchftRun:
    """What became of a run.

    Attributes:
        kills: that it was given.
        crashed: members that ended although nobody killed them.
        epochs: that were trained; 0 if the run did not end well.
        records: of an epoch.
    """

    kills: Kills
    crashed: int
    epochs: int
    records: int


def measure_torchft(folder: Path, kills: int, members: int, heartbeat: int, seed: int) -> TorchftRun:
    """Kill members of a training at random moments.

    Args:
        folder: for what the members note.
        kills: how many.
        members: of the training.
        heartbeat: milliseconds after which the lighthouse takes a silent member for dead.
        seed: of the moments.
    """
    with _Replicas(folder, members, heartbeat) as replicas:
        made = replicas.kill(kills, random.Random(seed))
        steps = RECORDS // (BATCH_SIZE * members)
        epochs = 0 if made.hangs else replicas.finish(steps)
        return TorchftRun(made, replicas.crashed, epochs, steps * BATCH_SIZE * members)


class _Replicas:
    """The lighthouse and the members as processes."""

    def __init__(self, folder: Path, members: int, heartbeat: int) -> None:
        (port,) = free_ports(1)
        self.crashed = 0
        self._folder = folder
        self._turns = Turns(folder)
        self._python = python_environment("torchft")
        self._size = members
        self._environment = {
            **os.environ,
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        self._stack = ExitStack()
        options = ["--min_replicas", "1", "--join_timeout_ms", "60000", "--quorum_tick_ms", "100"]
        options += ["--heartbeat_timeout_ms", str(heartbeat), "--bind", f"127.0.0.1:{port}"]
        self._start([str(self._python.with_name("torchft_lighthouse")), *options])
        self._members = [self._member(number) for number in range(members)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill(self, count: int, source: random.Random) -> Kills:
        """Kill members, each when all train; stops at a hang, and if another member ends."""
        kills = Kills()
        while self._wait(self._complete):
            if len(kills.times) == count:
                return kills
            time.sleep(source.uniform(0.2, 1.0))
            number = source.randrange(len(self._members))
            victim = self._members[number]
            kills.times.append(time.time())
            kills.processes.add(victim.pid)
            victim.send_signal(signal.SIGKILL)
            victim.wait(10)
            others = [one.pid for one in self._members if one is not victim]
            since = kills.times[-1]
            if not self._wait(lambda others=others, since=since: self._go_on(others, since)):  # type: ignore[misc]
                break
            self._members[number] = self._member(number)
        kills.hangs += 1
        return kills

    def finish(self, steps: int) -> int:
        """Have the members train to the end of an epoch of so many steps; returns the epochs, 0 if they don't
        end."""
        newest = max(turn[4] for one in self._members for turn in self._turns.of(one.pid))
        epochs = (newest + AHEAD) // steps + 1
        (self._folder / "new").write_text(str(epochs * steps))
        (self._folder / "new").rename(self._folder / "last")
        ended = self._wait(lambda: all(self._turns.reached_end(one.pid) for one in self._members))
        return epochs if ended else 0

    def _complete(self) -> bool:
        """Whether all members have made a step together."""
        return all(self._noted(one.pid, lambda turn: turn[2] == len(self._members)) for one in self._members)

    def _go_on(self, processes: list[int], since: float) -> bool:
        return all(self._noted(process, lambda turn: turn[0] > since) for process in processes)

    def _noted(self, process: int, wanted: Callable[[Turn], bool]) -> bool:
        """Whether the newest step of a process is as wanted."""
        made = [turn for turn in self._turns.of(process) if turn[3]]
        return bool(made) and wanted(made[-1])

    def _wait(self, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + SECONDS
        while not condition():
            crashed = [one for one in self._members if one.poll() not in (None, 0, -signal.SIGKILL)]
            if crashed or time.monotonic() > end:
                self.crashed = len(crashed)
                return False
            time.sleep(0.05)
        return True

    def _member(self, number: int) -> "subprocess.Popen[bytes]":
        module = ["-m", "tests.benchmarks.peers.torchft_member"]
        member = self._start([str(self._python), *module, str(self._folder), str(number), str(self._size)])
        (self._folder / f"turns-worker-{number}-{member.pid}").touch()
        return member

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        log = self._stack.enter_context((self._folder / "log").open("ab"))
        process = subprocess.Popen(
            command,
            env=self._environment,
            stdout=log,
            stderr=log,
        )
        self._stack.callback(process.wait, 10)
        self._stack.callback(process.kill)
        return process
