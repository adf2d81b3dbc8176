"""The training logs of a job while it is waited for: of its chief or of all its pods.

A thread follows each pod over one connection; the lines are written in the waiter's event loop and context.
Pods are listed at the start, and when the job's state or a connection ends says that there may be others:
while training goes on, nothing is requested.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from edl_workflows.core.exceptions import EdlError, ForbiddenError
from edl_workflows.core.jobs import kinds, manifests
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.view import JobView
from edl_workflows.core.kubernetes import names, pod_state
from edl_workflows.core.kubernetes.objects import Model
from edl_workflows.core.protocol.log_lines import render_own_line
from edl_workflows.core.protocol.reported_text import escape_controls
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import Notify
from edl_workflows.pipelines.waiting.observed import ObservedObject
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.log_stream import LogLine, LogPosition, LogStream, shorten_line
from edl_workflows.runtime.kube.resources import PODS, Object, Scope

MAX_PODS = 16
"""Followed at the same time for one job."""
WAITING_LINES = 20
"""Of one pod that the event loop has not written yet: a pod that writes faster is read more slowly."""
LIST_SECONDS = 2.0
"""At least so much between two lists of pods; doubled after each failure, up to `MAX_LIST_SECONDS`."""
MAX_LIST_SECONDS = 60.0
FINISH_SECONDS = 20.0
"""How long to wait for the last lines of a job that has ended."""
TRAINING_ROLES = ("chief", "master", "learner", "trainer", "worker")
"""Roles whose log tells of training, the best first."""

PodChoice = Literal["chief", "all"]


class LogRequest(Model):
    """Which logs to write.

    Attributes:
        pods: "chief" for the chief (of a job without one, the first worker), "all" for the pods of all roles.
        tail_lines: of a pod that ran before the wait began, only so many of its last lines.
    """

    pods: PodChoice = "chief"
    tail_lines: int = 1000


@dataclass(frozen=True)
class PodLine:
    """A line of a pod's log.

    Attributes:
        pod: name of the pod.
        node: role and index, as ``worker-0``.
        text: the line, without control characters; of the agent's JSON lines what people read.
        position: where the log continues after it.
    """

    pod: str
    node: str
    text: str
    position: LogPosition


def choose_pods(kind: Kind, pods: Iterable[Object], which: PodChoice) -> list[Object]:
    """The pods to follow, of those that have started. The chief is the first of the best role: by rank, then
    by index."""
    started = [pod for pod in pods if _role(kind, pod) != names.MASTER_TYPE and _has_started(pod)]
    started.sort(key=lambda pod: _place(kind, pod))
    if which == "all":
        return started
    living = [pod for pod in started if not pod_state.has_ended(pod)]
    return (living or started)[:1]


def _role(kind: Kind, pod: Object) -> str:
    return manifests.get_label(pod, kind.labels[1]).lower()


def _has_started(pod: Object) -> bool:
    state = pod_state.own_status(pod).get("state") or {}
    return state.get("running") is not None or state.get("terminated") is not None


def _place(kind: Kind, pod: Object) -> tuple[int, int, int, str]:
    role = _role(kind, pod)
    order = TRAINING_ROLES.index(role) if role in TRAINING_ROLES else len(TRAINING_ROLES)
    index = manifests.get_label(pod, kind.labels[2])
    rank = manifests.get_label(pod, names.RANK_INDEX_LABEL) or index
    number, place = (int(text) if text.isdecimal() else 0 for text in (index, rank))
    return order, place, number, manifests.name_of(pod)


class _Follower:
    """A thread that follows one container and hands each line to the event loop."""

    def __init__(
        self, stream: LogStream, write: Callable[[LogLine], None], end: Callable[[EdlError | None], None]
    ) -> None:
        self._stream = stream
        self._write = write
        self._end = end
        self._free = threading.Semaphore(WAITING_LINES)
        self._closed = False
        self._loop = asyncio.get_running_loop()
        # Airflow's triggerer finds the task of a line by the context.
        self._context = contextvars.copy_context()
        self._thread = threading.Thread(target=self._run, name="training log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. No line is written afterwards."""
        self._closed = True
        self._free.release()
        self._stream.close()

    def _run(self) -> None:
        failure: EdlError | None = None
        try:
            for line in self._stream:
                self._free.acquire()
                if self._closed:
                    break
                self._call(self._take, line)
        except EdlError as error:
            failure = error
        self._call(self._finish, failure)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments, context=self._context)

    def _take(self, line: LogLine) -> None:
        self._free.release()
        if not self._closed:
            self._write(line)

    def _finish(self, failure: EdlError | None) -> None:
        if not self._closed:
            self._end(failure)


class TrainingLogs:
    """Writes the training logs of one job.

    Args:
        source: the API server.
        handle: handle of the job.
        request: which logs.
        write: called with each line, in the event loop.
        notify: called with a line about what can't be read.
        known: by name of a pod, the newest line that was written before.
    """

    def __init__(
        self,
        source: ClusterSource,
        handle: Handle,
        request: LogRequest,
        write: Callable[[PodLine], None],
        notify: Notify,
        positions: Mapping[str, LogPosition] | None = None,
    ) -> None:
        self._source = source
        self._handle = handle
        self._kind = kinds.kind_of(handle.kind)
        self._request = request
        self._write = write
        self._notify = notify
        self._positions = dict(positions or {})
        self._followers: dict[str, _Follower] = {}
        self._complete: set[str] = set()
        self._changed = asyncio.Event()
        self._state: object = None
        self._ended = asyncio.Event()
        self._refused = False
        self._pause = LIST_SECONDS
        self._cluster: Cluster | None = None

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Write lines while the context lasts. If the job has ended, it lasts until its last lines are
        written."""
        task = asyncio.create_task(self._run(), name=f"training logs of {self._handle}")
        try:
            yield
            if self._ended.is_set():
                self._changed.set()
                await self._finish(task)
        finally:
            task.cancel()
            for follower in self._followers.values():
                follower.close()

    async def _finish(self, task: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                await task
        except TimeoutError:
            self._notify(
                f"{self._handle}: the last lines of its pods could not be read within {FINISH_SECONDS:.0f} s"
            )

    def observe(self, seen: ObservedObject) -> None:
        """Look for other pods if the job's state suggests that there are some."""
        if not isinstance(seen, JobView):
            return
        ended = seen.phase.final
        if ended:
            self._ended.set()
        else:
            self._ended.clear()
        state = (seen.phase, seen.restarts[-1:], {role: count.ready for role, count in seen.replicas.items()})
        if state != self._state and (ended or not self._followers or self._request.pods == "all"):
            self._changed.set()
        self._state = state

    async def _run(self) -> None:
        """Follow what is to be followed, until the job has ended and its logs are complete."""
        while not self._refused:
            self._changed.clear()
            ended = self._ended.is_set()
            if await self._follow_new_pods() and ended and not self._followers:
                return
            await self._changed.wait()
            await self._rest()

    async def _rest(self) -> None:
        """Pause before the next list of pods. The pause is short once the job has ended, also after failures,
        since the wait for its last lines is limited."""
        if self._ended.is_set():
            await asyncio.sleep(LIST_SECONDS)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause):
                await self._ended.wait()

    async def _follow_new_pods(self) -> bool:
        """List the pods, and follow the new ones; whether the logs of all of them are complete."""
        try:
            pods = await asyncio.to_thread(self._list)
        except EdlError as error:
            self._refuse(error)
            return False
        chosen = choose_pods(self._kind, pods, self._request.pods)
        for pod in chosen[:MAX_PODS]:
            name = manifests.name_of(pod)
            if name not in self._followers and name not in self._complete:
                self._follow(name, pod)
        return all(manifests.name_of(pod) in self._complete for pod in chosen[:MAX_PODS])

    def _list(self) -> list[Object]:
        self._cluster = self._cluster or self._source.connect()
        selector = self._kind.pods_of(self._handle.name)
        return client.list_objects(
            self._cluster, Scope(PODS, self._handle.namespace, label_selector=selector)
        ).items

    def _follow(self, name: str, pod: Object) -> None:
        assert self._cluster is not None, "pods were listed"
        # A log that is read after its pod has ended is complete; another may have been cut off.
        whole, node = pod_state.has_ended(pod), self._kind.node_of(pod)
        position = self._positions.get(name, LogPosition())
        container = pod_state.own_container(pod)
        stream = LogStream(
            self._cluster, name, self._handle.namespace, container, position, self._request.tail_lines
        )

        def write(line: LogLine) -> None:
            self._pause = LIST_SECONDS
            self._positions[name] = line.position
            text = escape_controls(render_own_line(line.text, name), keep="\t")
            self._write(PodLine(name, node, shorten_line(text), line.position))

        def end(failure: EdlError | None) -> None:
            del self._followers[name]
            if failure is not None:
                self._refuse(failure)
            elif whole:
                self._complete.add(name)
            self._changed.set()

        self._followers[name] = _Follower(stream, write, end)

    def _refuse(self, error: EdlError) -> None:
        """Give up without the right to read logs; other failures are tried again when something changes."""
        if isinstance(error, ForbiddenError) and not self._refused:
            self._refused = True
            self._notify(f"{self._handle}: its training logs can't be read: {error}")
        else:
            self._pause = min(2 * self._pause, MAX_LIST_SECONDS)
            self._changed.set()
