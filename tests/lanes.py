"""Run commands at the same time: ``python -m tests.lanes test='make test' types='make type docs-check'``.

Each command's output goes to a file of its own and is printed whole when the command ends. All commands run
to their end; the exit status is 0 if every command's is.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

_GRACE = 30.0
"""Seconds that commands have to end when this process is told to."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A command that runs in a process group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    began: float

    def send_signal(self, number: int) -> None:
        """Signal the command and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class InterruptedRunError(Exception):
    """This process was told to end."""


def run_lanes(commands: dict[str, str], folder: Path, stop: Event) -> bool:
    """Run all commands to their end; whether each succeeded.

    Args:
        commands: by name.
        folder: for their output.
        stop: when it is set, the commands are ended.

    Raises:
        InterruptedRunError: `stop` was set.
    """
    lanes = [_start_lane(name, command, folder) for name, command in commands.items()]
    try:
        summary = _wait_for_lanes(lanes, stop)
    finally:
        _stop_lanes(lanes)
    print(_title("summary"), *summary, sep="\n", flush=True)
    return all(lane.process.returncode == 0 for lane in lanes)


def _start_lane(name: str, command: str, folder: Path) -> Lane:
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    print(f"{name}: {command} (output in {log})", flush=True)
    return Lane(name, process, log, time.monotonic())


def _wait_for_lanes(lanes: list[Lane], stop: Event) -> list[str]:
    """Print each lane's output when it ends; a line for each, in that order."""
    summary = []
    running = list(lanes)
    while running:
        if stop.wait(0.1):
            raise InterruptedRunError
        for lane in [one for one in running if one.process.poll() is not None]:
            running.remove(lane)
            minutes = (time.monotonic() - lane.began) / 60
            summary.append(f"{lane.name}: {_verdict(lane.process.returncode)} after {minutes:.1f} min")
            print(_title(lane.name), flush=True)
            sys.stdout.buffer.write(lane.log.read_bytes())
            print(summary[-1], flush=True)
    return summary


def _verdict(status: int) -> str:
    if status < 0:
        return f"FAILED (killed by {signal.Signals(-status).name})"
    return "passed" if status == 0 else f"FAILED (exit status {status})"


def _stop_lanes(lanes: list[Lane]) -> None:
    """End what still runs: first kindly, so that tests end their servers, and after a time surely."""
    running = [lane for lane in lanes if lane.process.poll() is None]
    for lane in running:
        lane.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    while any(lane.process.poll() is None for lane in running) and time.monotonic() < deadline:
        time.sleep(0.1)
    for lane in running:
        lane.send_signal(signal.SIGKILL)
        lane.process.wait()


def _title(name: str) -> str:
    return f"\n===== {name} ====="


def main() -> int:
    """Run the commands of the command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description=__doc__)
    parser.add_argument("commands", nargs="+", metavar="NAME=COMMAND", help="a bash command and its name")
    given = parser.parse_args()
    commands = {}
    for text in given.commands:
        name, separator, command = text.partition("=")
        if not separator or not name.isidentifier() or name in commands:
            parser.error(f"{text!r} is not NAME=COMMAND with a name of its own")
        commands[name] = command
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="edl-lanes-") as folder:
        try:
            return 0 if run_lanes(commands, Path(folder), stop) else 1
        except InterruptedRunError:
            return 130


if __name__ == "__main__":
    sys.exit(main())
