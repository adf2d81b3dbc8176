"""A training process: it can't outlive the agent, its output is forwarded, its resource use is measured.

Each training process leads its own process group, so that all its children end with it. If the agent dies,
even by SIGKILL, the kernel kills the process (PR_SET_PDEATHSIG, Linux only).
"""

import collections
import contextlib
import math
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.services.agent.output_lines import LINE_BYTES, OutputLines
from edl_workflows.training.program import PROGRAMS
from edl_workflows.training.signals import DUMP_STACKS

LAST_LINES = 40
"""Lines of output that are kept for the job's status."""
LAST_CHARACTERS = 8000

_STACK_LINE = re.compile(r'(Current thread|Thread) 0x|  (File "|\.\.\.|<)')
"""How the lines begin that `faulthandler` writes."""
_STACK_SECONDS = 5.0
"""Limit for the first line of the stacks, and for the others."""
_QUIET_SECONDS = 0.5

# The launcher sets the signal and then becomes the training process by exec, which keeps it. A preexec_fn
# would run between fork and exec of a threaded process, and may deadlock. Comparing the parent covers an
# agent that died before. The signal that the launcher ignores stays ignored after exec, until the program
# installs a handler.
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

FATAL = 1
"""Exit code of an uncaught error in a Python program."""
_NOT_OPENED = 2
"""With which Python ends if it can't open its script."""
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_ERROR_LINE = re.compile(r"^(?:\[rank\d+\]: )?([\w.]+(?:Error|Exception): .*)$", re.MULTILINE)
"""The last line of a traceback; PyTorch adds the rank."""
_NO_SUCH_FILE = re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']+)'")
_NO_WORKER = "There must be at least one worker."
"""With which TensorFlow's ParameterServerStrategy refuses a cluster without workers."""
_PLAIN_OPTIONS = re.compile(r"-[bBdEIOPqRsSuvx]+")
"""Options of Python without an argument, with which it still runs the script."""


def plain_script(command: Sequence[str]) -> str:
    """The script of a command ``python [options without an argument] path.py ...``; "" of any other."""
    if not command or not _PYTHON.fullmatch(Path(command[0]).name):
        return ""
    first = next((part for part in command[1:] if not _PLAIN_OPTIONS.fullmatch(part)), "")
    return first if first.endswith(".py") and not first.startswith("-") else ""


def explain_missing_script(command: Sequence[str], code: int, output: str) -> str:
    """Why a process could not begin: Python did not find its script, as it says itself. "" if anything else
    ended the process.

    Args:
        command: of the process, which ran in this process's directory.
        code: its exit code.
        output: its last lines.
    """
    script = plain_script(command) if code == _NOT_OPENED else ""
    if not script or os.path.lexists(script):
        return ""
    newest = output.rstrip().rsplit("\n", 1)[-1]
    if not re.search(rf"can't open file '[^']*{re.escape(Path(script).name)}': \[Errno 2\]", newest):
        return ""
    where = "" if Path(script).is_absolute() else f" in the working directory {Path.cwd()}"
    return (
        f"edl agent: there is no file {script}{where}; is the script in the image or a volume, and is the "
        "command's path to it right?\n"
    )


def explain_end(code: int, output: str) -> str:
    """A hint for a program that ended since a file with a relative path, or beside a program that travelled,
    was not there, or since TensorFlow's coordinator found no workers; "" for any other end.

    Args:
        code: exit code of the process, which began in this process's directory.
        output: its last lines.
    """
    errors = _ERROR_LINE.findall(output) if code else []
    if errors and errors[-1].endswith(_NO_WORKER):
        return (
            "edl agent: in an ElasticJob, TF_CONFIG names the parameter servers and the process itself, "
            "since workers come and go; a program with tf.distribute's ParameterServerStrategy runs as it is "
            "in a TFJob\n"
        )
    missing = _NO_SUCH_FILE.fullmatch(errors[-1]) if errors else None
    path = missing["path"] if missing else "/"
    beside = any(part.startswith(PROGRAMS) for part in Path(path).parts[:-1])
    if (Path(path).is_absolute() and not beside) or os.path.lexists(path):
        return ""
    if beside:
        return (
            f"edl agent: there is no {path}: the script runs as a copy in that folder, without the files "
            "beside it; put them into the image or a volume, and give their absolute path, or one relative "
            f"to the working directory {Path.cwd()}\n"
        )
    return (
        f"edl agent: there is no {path} in the working directory {Path.cwd()}; files beside the script don't "
        "travel with it: put them into the image or a volume, and give their absolute path\n"
    )


class TrainingProcess:
    """A running training process.

    Start it in a thread that lives as long as the agent: for PR_SET_PDEATHSIG the parent is the thread that
    started it.

    Args:
        version: cluster version of the process.
        command: program with arguments.
        env: complete environment.
        on_exit: called in another thread after the exit.

    Raises:
        InvalidError: the command is empty.
    """

    def __init__(
        self, version: int, command: Sequence[str], env: Mapping[str, str], on_exit: Callable[[], None]
    ) -> None:
        if not command:
            raise InvalidError("edl agent run: no command given; write it after --")
        self.version = version
        self._command = tuple(command)
        self._unfound = False
        self._tail: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._stack_lines = threading.Condition()
        self._stacks: list[str] | None = None
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
        """Process id, which is also the id of the process group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, 128+n for signal n; None while the process runs.

        It is `FATAL` if Python did not find the script of the command: other attempts would not either.
        """
        code = self._process.returncode if self._done.is_set() else None
        if self._unfound and code is not None:
            return FATAL
        return 128 - code if code is not None and code < 0 else code

    @property
    def last_lines(self) -> str:
        """The last lines of the output."""
        return "".join(self._tail)[-LAST_CHARACTERS:]

    def terminate(self) -> None:
        """Send SIGTERM to the process group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process group."""
        self._signal(signal.SIGKILL)

    def dump_stacks(self) -> str:
        """Have the process write its stacks to its output. Its children, which may not handle the signal, are
        left alone.

        Returns:
            The stacks, when the process has written no more of them for a moment; "" if it writes none in
            time, because it is stopped or does not handle the signal.
        """
        with self._stack_lines:
            self._stacks = []
        if not self._done.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, DUMP_STACKS)
        with self._stack_lines:
            self._stack_lines.wait_for(lambda: self._stacks, _STACK_SECONDS)
            end = time.monotonic() + _STACK_SECONDS
            while self._stacks and self._stack_lines.wait(_QUIET_SECONDS) and time.monotonic() < end:
                pass
            written, self._stacks = self._stacks, None
        return "".join(written or ())[-LAST_CHARACTERS:]

    def wait(self, timeout: float) -> bool:
        """Wait for the exit; False on time-out."""
        return self._done.wait(timeout)

    def _signal(self, number: signal.Signals) -> None:
        # The process may have exited just now. Its id is not reused before `_watch` reaps it.
        if not self._done.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _watch(self) -> None:
        output = threading.Thread(target=self._forward, name=f"output-v{self.version}", daemon=True)
        output.start()
        # Wait without reaping, so that the group's id can't be reused before the rest of the group is killed.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        # The pipe closes with its last writer; a child that left the group must not block this thread.
        output.join(timeout=5.0)
        code = self._process.wait()
        with contextlib.suppress(OSError):  # the working directory is gone
            if explanation := explain_missing_script(self._command, code, self.last_lines):
                self._unfound = True
            else:
                explanation = explain_end(code, self.last_lines)
            if explanation:
                self._write([explanation.encode()])
        self._done.set()
        self._on_exit()

    def _keep(self, line: str) -> None:
        self._tail.append(line)
        with self._stack_lines:
            if self._stacks is not None and _STACK_LINE.match(line):
                self._stacks.append(line)
                self._stack_lines.notify_all()

    def _forward(self) -> None:
        assert self._process.stdout is not None
        lines, ready = OutputLines(), select.poll()
        with self._process.stdout as pipe:
            ready.register(pipe, select.POLLIN)
            while True:
                left = lines.seconds_left
                if not ready.poll(None if left is None else math.ceil(1000 * left)):
                    self._write(lines.take_due())
                elif output := os.read(pipe.fileno(), LINE_BYTES):
                    self._write(lines.add(output))
                else:
                    break
        self._write(lines.end())

    def _write(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._keep(line.decode(errors="replace"))
        # The agent's own output may be closed; training continues.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()
