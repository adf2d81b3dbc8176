"""One training process: started so that it can't outlive the agent, its output forwarded, its end noticed.

Each is a process group of its own, so that it ends with all that it started. If the agent dies, even by SIGKILL, the
kernel ends the process (PR_SET_PDEATHSIG, Linux).
"""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from edl_workflows.agent.signals import DUMP_STACKS
from edl_workflows.exceptions import InvalidError

LAST_LINES = 40
"""Lines of output kept for the job's status."""
LAST_CHARACTERS = 8000
_LINE_BYTES = 64 * 1024
"""A longer line is forwarded in pieces."""

# The signal is set in the process that becomes the training process, not in a preexec_fn: the agent has threads, and
# code between fork and exec of a threaded process may deadlock. It survives exec. The comparison of the parent closes
# the window in which the agent died first. What is ignored stays ignored after exec, until the program says otherwise.
_LAUNCHER = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
signal.signal({int(DUMP_STACKS)}, signal.SIG_IGN)
if os.getppid() != int(sys.argv[1]):
    sys.exit(137)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"edl agent: cannot start {{sys.argv[2]!r}}: {{error.strerror}}")
"""


class TrainingProcess:
    """A running training process.

    Start it in a thread that lives as long as the agent: the kernel takes the end of the starting thread for the end
    of the parent.

    Args:
        version: its cluster version.
        command: with arguments.
        env: its whole environment.
        on_exit: called in another thread when it has ended.

    Raises:
        InvalidError: the command is empty.
    """

    def __init__(
        self, version: int, command: Sequence[str], env: Mapping[str, str], on_exit: Callable[[], None]
    ) -> None:
        if not command:
            raise InvalidError("edl agent run: no command given; write it after --")
        self.version = version
        self._tail: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._on_exit = on_exit
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._done = threading.Event()
        threading.Thread(target=self._watch, name=f"process-v{version}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id, also that of its group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, 128+n for signal n; None while it runs."""
        code = self._process.returncode if self._done.is_set() else None
        return 128 - code if code is not None and code < 0 else code

    @property
    def last_lines(self) -> str:
        """The end of its output."""
        return "".join(self._tail)[-LAST_CHARACTERS:]

    def terminate(self) -> None:
        """Ask it to end: SIGTERM to the group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, with all that it started."""
        self._signal(signal.SIGKILL)

    def dump_stacks(self) -> None:
        """Have it write its stacks to its output. Not its children: what they do about the signal is not known."""
        if not self._done.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, DUMP_STACKS)

    def wait(self, timeout: float) -> bool:
        """Wait for its end; False when the time is over."""
        return self._done.wait(timeout)

    def _signal(self, number: signal.Signals) -> None:
        # It may have ended a moment ago. Its id is not used again before `_watch` reaps it.
        if not self._done.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _watch(self) -> None:
        output = threading.Thread(target=self._forward, name=f"output-v{self.version}", daemon=True)
        output.start()
        # Wait without reaping, so that the group's id can't belong to somebody else while its rest is killed.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        output.join(
            timeout=5.0
        )  # the pipe closes with its last writer; one that left the group must not hold us
        self._process.wait()
        self._done.set()
        self._on_exit()

    def _forward(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while line := pipe.readline(_LINE_BYTES):
                self._tail.append(line.decode(errors="replace"))
                # Nobody may read our output any more; training goes on.
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.buffer.write(line)
                    sys.stdout.buffer.flush()
