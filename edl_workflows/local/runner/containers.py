"""One container with all its starts: its processes, probes and hooks, and the state on which decisions are
based."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edl_workflows.local.pods import Container, Handler
from edl_workflows.local.runner import probes
from edl_workflows.local.runner.attempts import Attempt, AttemptEnd, Launch
from edl_workflows.local.runner.lifecycle import ContainerState, Waiting, crashes_after
from edl_workflows.local.runner.processes import ProcessSnapshot
from edl_workflows.local.runner.support import DEFAULT_TERMINATION_LOG

NODE_RESTARTED = "NodeRestarted"
_LOST = "ContainerStatusUnknown"
_MESSAGE_BYTES, _LOG_BYTES, _LOG_LINES = 4096, 2048, 80
"""Kubelet's limits for a termination message."""
_HOOK_SECONDS = 30.0
_AFTER_HOOK_SECONDS = 2.0
"""Shortest time between SIGTERM and SIGKILL, even if a preStop hook used up the grace period."""


@dataclass(frozen=True)
class ContainerCallbacks:
    """Callbacks of a container.

    Attributes:
        changed: called when its state has changed.
        event: records an event with a type, a reason and a message.
        port: returns the host port of a container's port, given by number or name; None if there is none.
    """

    changed: Callable[[], None]
    event: Callable[[str, str, str], None]
    port: Callable[[int | str], int | None]


class ContainerRunner:
    """Runs one container of one pod.

    Args:
        container: its spec.
        folder: folder for its attempts.
        mark: ``<pod uid>/<container>``.
        callbacks: see `ContainerCallbacks`.
    """

    def __init__(self, container: Container, folder: Path, mark: str, callbacks: ContainerCallbacks) -> None:
        self.container = container
        self.state = ContainerState()
        self._folder = folder
        self._mark = mark
        self._callbacks = callbacks
        self._attempt: Attempt | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._health: asyncio.Task[None] | None = None
        self._stopper: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._readers = 0
        self._no_reader = asyncio.Event()
        self._no_reader.set()

    def recover(self) -> None:
        """Take over from an earlier cluster process: adopt a running attempt, or read how the last one
        ended."""
        attempt = Attempt.latest(self._folder, self._mark)
        if attempt is None:
            return
        before = Attempt(self._folder, attempt.number - 1, self._mark).ended() if attempt.number else None
        self.state = ContainerState(starts=attempt.number + 1, previous=before, crashes=attempt.crashes)
        self._follow(attempt, NODE_RESTARTED)

    def next_attempt(self) -> Attempt:
        """The attempt that `start` will create."""
        return Attempt(self._folder, self.state.starts, self._mark)

    def start(self, launch: Launch) -> None:
        """Start the container, which must not be running."""
        crashes = crashes_after(self.state)
        attempt = self.next_attempt()
        attempt.start(launch, crashes=crashes)
        self.state = ContainerState(starts=self.state.starts + 1, previous=self.state.ended, crashes=crashes)
        self._callbacks.event("Normal", "Started", f"Started container {self.container.name}")
        self._follow(attempt, _LOST)

    def cannot_start(self, reason: str, message: str) -> None:
        """Record that the container cannot be configured now."""
        self.state = replace(self.state, waiting=Waiting(reason, message, datetime.now(UTC)))
        self._callbacks.event("Warning", "Failed", f"Error: {message}")
        self._callbacks.changed()

    def stop(self, grace: float, reason: str = "") -> None:
        """Begin to end the container: preStop hook, SIGTERM, and after `grace` seconds SIGKILL. Returns at
        once.

        Args:
            grace: grace period in seconds; 0 kills at once.
            reason: reason for the status; empty: it follows from the exit code.
        """
        if self._stopper is not None:
            self._stopper.cancel()
        self.state = replace(self.state, stopping=True, ready=False)
        self._callbacks.event("Normal", "Killing", f"Stopping container {self.container.name}")
        self._stopper = self._spawn(self._stop(grace, reason))

    def check_memory(self, snapshot: Callable[[], ProcessSnapshot]) -> None:
        """Kill the container if it exceeds its memory limit. `snapshot` is called only if it has one."""
        attempt = self._attempt
        if attempt is None or not self.state.running or (pid := attempt.shim_pid) is None:
            return
        limit = self.container.resources.limit("memory")
        if limit is not None and snapshot().over_limit(pid, limit):
            text = self.container.resources.limits["memory"]
            self._spawn(attempt.kill("OOMKilled", f"memory limit of {text} exceeded"))

    def attempt_of(self, *, previous: bool) -> Attempt | None:
        """The current attempt, or the one before it; None if there is none."""
        number = self.state.starts - (2 if previous else 1)
        return Attempt(self._folder, number, self._mark) if number >= 0 else None

    def is_over(self, attempt: Attempt) -> bool:
        """Whether an attempt has ended. Its folder may be gone since, with the record of its end."""
        return not self.state.running or attempt.number < self.state.starts - 1

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Its log is read while the context lasts."""
        self._readers += 1
        self._no_reader.clear()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._no_reader.set()

    async def read_out(self) -> None:
        """Wait until nobody reads its log."""
        await self._no_reader.wait()

    async def ended(self) -> None:
        """Wait until the container does not run."""
        if self.state.running:
            await self._ended.wait()

    async def close(self) -> None:
        """Stop watching the container. Its processes continue."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _follow(self, attempt: Attempt, reason_if_lost: str) -> None:
        self._attempt = attempt
        self._ended.clear()
        self.state = replace(
            self.state, running_since=attempt.started_at() or datetime.now(UTC), waiting=None
        )
        self._health = self._spawn(self._watch_health(attempt))
        self._spawn(self._watch_end(attempt, reason_if_lost))
        self._callbacks.changed()

    async def _watch_end(self, attempt: Attempt, reason_if_lost: str) -> None:
        ended = await attempt.wait(reason_if_lost)
        if self._health is not None:
            self._health.cancel()
        if self._stopper is not None:
            self._stopper.cancel()
            self._stopper = None
        message = ended.message or self._termination_message(attempt, ended)
        self.state = replace(
            self.state, running_since=None, ended=replace(ended, message=message), ready=False, started=False,
            stopping=False, unhealthy="",
        )  # fmt: skip
        self._ended.set()
        self._callbacks.changed()

    def _termination_message(self, attempt: Attempt, ended: AttemptEnd) -> str:
        written = _tail(attempt.termination_log, _MESSAGE_BYTES)
        if written or ended.code == 0 or self.container.termination_message_policy != "FallbackToLogsOnError":
            return written
        return "".join(
            attempt.output.tail(_LOG_BYTES).decode(errors="replace").splitlines(keepends=True)[-_LOG_LINES:]
        )

    def custom_termination_log(self) -> str:
        """The path of its termination message; empty if it is the default one."""
        path = self.container.termination_message_path
        return "" if path == DEFAULT_TERMINATION_LOG else path

    async def _stop(self, grace: float, reason: str) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        if grace > 0:
            before = asyncio.get_running_loop().time()
            await self._hook(self.container.lifecycle.pre_stop, attempt, "FailedPreStopHook", grace)
            left = grace - (asyncio.get_running_loop().time() - before)
            attempt.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(left, min(_AFTER_HOOK_SECONDS, grace))):
                    await self._ended.wait()
        await attempt.kill(reason)

    async def _hook(self, handler: Handler | None, attempt: Attempt, failure: str, seconds: float) -> bool:
        if handler is None:
            return True
        result = await probes.check(handler, self._target(attempt), seconds)
        if not result.ok:
            self._callbacks.event("Warning", failure, result.message)
        return result.ok

    def _target(self, attempt: Attempt) -> probes.ProbeTarget:
        return probes.ProbeTarget(attempt.command, self._callbacks.port)

    async def _watch_health(self, attempt: Attempt) -> None:
        container, target = self.container, self._target(attempt)
        if not await self._hook(
            container.lifecycle.post_start, attempt, "FailedPostStartHook", _HOOK_SECONDS
        ):
            self._set(unhealthy="postStart hook failed")
            return
        if container.startup_probe is not None:
            async for health, result in probes.watch(container.startup_probe, target, passing=False):
                if health.passing:
                    break
                self._complain("Startup", result)
                if health.failures >= container.startup_probe.failure_threshold:
                    self._set(unhealthy=f"startup probe failed: {result.message}")
                    return
        self._set(started=True, ready=container.readiness_probe is None)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_readiness(target))
            group.create_task(self._watch_liveness(target))

    async def _watch_readiness(self, target: probes.ProbeTarget) -> None:
        if self.container.readiness_probe is None:
            return
        async for health, result in probes.watch(self.container.readiness_probe, target, passing=False):
            self._complain("Readiness", result)
            self._set(ready=health.passing)

    async def _watch_liveness(self, target: probes.ProbeTarget) -> None:
        if self.container.liveness_probe is None:
            return
        async for health, result in probes.watch(self.container.liveness_probe, target, passing=True):
            self._complain("Liveness", result)
            if not health.passing:
                self._set(unhealthy=f"liveness probe failed: {result.message}")
                return

    def _complain(self, kind: str, result: probes.ProbeResult) -> None:
        if not result.ok:
            self._callbacks.event("Warning", "Unhealthy", f"{kind} probe failed: {result.message}")

    def _set(self, *, started: bool | None = None, ready: bool | None = None, unhealthy: str = "") -> None:
        now = self.state
        new = replace(
            now,
            started=now.started if started is None else started,
            ready=(now.ready if ready is None else ready) and not now.stopping,
            unhealthy=unhealthy or now.unhealthy,
        )
        if new != now:
            self.state = new
            self._callbacks.changed()


def _tail(path: Path, size: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - size, 0))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
