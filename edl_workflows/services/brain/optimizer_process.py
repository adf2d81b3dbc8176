"""Computes advice in a process of its own: the computation holds Python's interpreter lock and would delay
reports.

The process reads the store and writes nothing. It ends when the other end of its pipe is closed, also if the
Brain dies. If it ends by itself or takes too long, a new process gives the next advice.
"""

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import structlog

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.core.protocol.brain import OptimizeRequest
from edl_workflows.core.scaling.dlrover.brain import algorithms
from edl_workflows.core.scaling.dlrover.brain.messages import question_of
from edl_workflows.core.scaling.dlrover.resources import Advice
from edl_workflows.services.brain.history import AdviceInputs
from edl_workflows.services.brain.store import database
from edl_workflows.services.brain.store.reader import StoreReader

log = structlog.get_logger(__name__)

START_SECONDS = 120.0
"""Longest time for the process to start, which usually takes a second or two. After that it is killed."""
ADVICE_SECONDS = 30.0


class OptimizerProcess:
    """The process that computes advice, one job after the other. It is started on first use. Thread-safe.

    Args:
        database_url: URL of a store whose schema is up to date.
        set_up_process: called first in the process; it is pickled.
    """

    def __init__(self, database_url: str, set_up_process: Callable[[], None] | None = None) -> None:
        self._arguments = (database_url, set_up_process)
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._calls: Connection | None = None

    def start(self) -> None:
        """Start the process now, so that the first call does not wait for it.

        Raises:
            UnavailableError: it does not start.
        """
        with self._lock, self._failing():
            self._start()

    def optimize(self, asked: OptimizeRequest, now: float) -> Advice:
        """Advise on the nodes of a job.

        Raises:
            UnavailableError: the store does not answer, or the process ended or takes too long; the caller
                may retry.
            EdlError: an unexpected error, which the process has logged.
        """
        if not self._lock.acquire(timeout=ADVICE_SECONDS):
            raise UnavailableError(f"other jobs take more than {ADVICE_SECONDS:g} s; retry later")
        try:
            with self._failing():
                calls = self._start()
                calls.send((asked, now))
                answer: Advice | EdlError = _received(calls, ADVICE_SECONDS)
        finally:
            self._lock.release()
        if isinstance(answer, EdlError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process after the call in progress."""
        with self._lock:
            self._end()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Kill the process if it does not answer; the next call starts another one."""
        try:
            yield
        except (EOFError, OSError) as error:  # includes TimeoutError
            self._end()
            reason = "takes too long" if isinstance(error, TimeoutError) else "ended"
            raise UnavailableError(f"the optimizer process {reason}; retry later") from error

    def _start(self) -> Connection:
        if self._calls is not None:
            return self._calls
        # Not forked: a copy of this process may have a lock that is never released.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        with theirs:
            work = (theirs, *self._arguments)
            process = context.Process(target=_work, args=work, name="optimizer", daemon=True)
            process.start()
        self._calls, self._process = ours, process
        _received(ours, START_SECONDS)
        return ours

    def _end(self) -> None:
        if self._calls is None or self._process is None:
            return
        self._calls.close()
        self._process.kill()  # nothing is lost, because it writes nothing
        self._process.join()
        self._process.close()
        self._calls = self._process = None


def _received(calls: Connection, seconds: float) -> Any:
    if not calls.poll(seconds):
        raise TimeoutError
    return calls.recv()


def _work(calls: Connection, database_url: str, set_up_process: Callable[[], None] | None) -> None:
    """Main function of the process: answer requests until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the Brain ends this process
    if set_up_process is not None:
        set_up_process()
    histories = AdviceInputs(StoreReader(database.connect(database_url)))
    with contextlib.suppress(EOFError, OSError):
        calls.send("ready")
        while True:
            asked, now = calls.recv()
            calls.send(_answer(histories, asked, now))


def _answer(histories: AdviceInputs, asked: OptimizeRequest, now: float) -> Advice | EdlError:
    try:
        return algorithms.optimize_job(question_of(asked), histories.request(asked, now))
    except EdlError as error:
        return error
    except Exception as error:  # does not affect the next call
        log.exception("unexpected error while planning", job=f"{asked.job.namespace}/{asked.job.name}")
        return EdlError(f"internal error: {type(error).__name__}; see the server's log")
