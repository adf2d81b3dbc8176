"""The agent's loop: decides its actions from the task sets, serves tasks, and ends the objects of tasks that
vanished."""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from edl_workflows.pipelines.argo.agent import deadlines, orphans
from edl_workflows.pipelines.argo.agent.context import MAX_PAUSE, AgentContext
from edl_workflows.pipelines.argo.agent.orphans import BegunObject, OrphanVerdict
from edl_workflows.pipelines.argo.agent.result_writer import ResultWriter
from edl_workflows.pipelines.argo.agent.step_runner import StepRunner
from edl_workflows.pipelines.argo.agent.task_actions import TaskProgress, TrackedTask, decide_actions
from edl_workflows.pipelines.argo.agent.tasks import (
    OPEN_INDEX,
    OpenTask,
    TaskKey,
    WorkflowKey,
    asks_for_turn,
    has_ended,
    open_tasks,
    workflow_of,
)
from edl_workflows.pipelines.argo.agent.workflow import deadline_of, workflow_has_ended
from edl_workflows.runtime.kube.resources import Object, key_of

log = structlog.get_logger(__name__)


@dataclass
class _ServedTask:
    """A task that the agent is serving or has answered."""

    service: StepRunner
    taken: TrackedTask


class AgentLoop:
    """Serves tasks until it is cancelled. The objects of its tasks then continue, and the next agent finds
    them.

    Args:
        context: what all tasks share.
        only: the one workflow to serve, by name; "" for all that the watch sees.
    """

    def __init__(self, context: AgentContext, only: str = "") -> None:
        self._context = context
        self._writer = ResultWriter(context)
        self._only = only
        self._entries: dict[TaskKey, _ServedTask] = {}
        self._earlier_objects: dict[TaskKey, list[BegunObject]] = {}
        """Objects that earlier agents created, by step. An entry is removed when this agent has answered the
        step, or when the step has no task any more."""
        self._begun_namespaces: set[str] = set()
        """As in `NamespaceSelection.scopes`: where this agent has begun to look for such objects."""
        self._left: dict[WorkflowKey, list[BegunObject]] = {}
        """Objects of steps that ended in Error, left for a retry."""
        self._deadlines: dict[WorkflowKey, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def serving(self) -> int:
        """The number of tasks that are begun but not answered."""
        return sum(
            entry.taken.progress is not TaskProgress.REPORTED for entry in list(self._entries.values())
        )

    async def idle(self) -> None:
        """Wait until no task is being served and no object remains to be cancelled."""
        await self._idle.wait()

    async def run(self) -> None:
        """Run until cancelled."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake.set)

        task_sets = self._context.task_sets
        task_sets.on_change(lambda change: wake() if asks_for_turn(change) else None)
        for informer in (*self._context.served.informers, *task_sets.informers):
            informer.on_sync(wake)
            informer.on_error(lambda _error, _failures: wake())  # the others need not wait for it
        watches = self._context.watches
        watches.start()
        try:
            while watches.unlisted:
                await self._wait(None)
            self._follow_namespaces(loop)
            while True:
                self._begin_listed()
                await self._wait(self._turn())
        finally:
            watches.stop(0.0)
            running = [*self._background, *self._deadlines.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _begin_listed(self) -> None:
        """Look for the objects of earlier agents where the task sets are listed by now. A namespace that was
        refused at the start may be listed later."""
        for informer in self._context.task_sets.informers:
            namespace = informer.scope.namespace
            if informer.synced and namespace not in self._begun_namespaces:
                self._begun_namespaces.add(namespace)
                self._spawn(self._find(namespace))

    def _follow_namespaces(self, loop: asyncio.AbstractEventLoop) -> None:
        def changed(namespace: str, served: bool, /) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(
                    self._begin_namespace if served else self._leave_namespace, namespace
                )

        self._context.served.on_change(changed)

    def _begin_namespace(self, namespace: str) -> None:
        """Serve the steps of a namespace."""
        log.info("namespace is served now", namespace=namespace)
        self._spawn(self._find(namespace))
        self._wake.set()

    def _leave_namespace(self, namespace: str) -> None:
        """Begin no more steps of a namespace, and cancel nothing there. A step that has begun is served to
        its end."""
        log.info("namespace is left alone now", namespace=namespace)
        for key in [key for key in self._earlier_objects if key.workflow.namespace == namespace]:
            del self._earlier_objects[key]
        for workflow in [workflow for workflow in self._left if workflow.namespace == namespace]:
            del self._left[workflow]

    async def _wait(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    def _turn(self) -> float | None:
        """Carry out the actions of now. Return the seconds after which to decide again even if nothing
        changes; None: only after a change."""
        present = self._present()
        taken = {key: entry.taken for key, entry in self._entries.items()}
        actions = decide_actions(present, taken, time.monotonic())
        for key in actions.abandon:
            self._entries[key].taken = TrackedTask(TaskProgress.ABANDONED)
            self._entries[key].service.abandon()
        for key in actions.forget:
            del self._entries[key]
        for task in actions.begin:
            if not self._context.served.includes(task.key.workflow.namespace):
                continue  # answered when its namespace still was served
            entry = _ServedTask(
                StepRunner(task, self._context, self._writer, self._note_workflow),
                TrackedTask(TaskProgress.SERVING),
            )
            self._entries[task.key] = entry
            self._spawn(self._serve(entry))
        for key in [key for key in self._earlier_objects if key not in present and key not in self._entries]:
            self._settle_later(key)
        self._tidy()
        if self._background or self._left or self._earlier_objects:
            self._idle.clear()
        else:
            self._idle.set()
        return actions.look_again

    def _present(self) -> dict[TaskKey, OpenTask]:
        tasks: dict[TaskKey, OpenTask] = {}
        for task_set in self._context.task_sets.by_index(OPEN_INDEX, OPEN_INDEX):
            tasks |= open_tasks(task_set)
        served = self._context.served
        return {
            key: task
            for key, task in tasks.items()
            if key in self._entries or served.includes(key.workflow.namespace)
        }

    async def _serve(self, entry: _ServedTask) -> None:
        service = entry.service
        try:
            answered = await service.run()
        except Exception:
            log.exception("task failed; it is begun again", task=str(service.key))
            await asyncio.sleep(MAX_PAUSE)
            answered = False
            if service.begun:
                self._earlier_objects.setdefault(service.key, []).append(service.begun)
        if answered:
            entry.taken = TrackedTask(TaskProgress.REPORTED, time.monotonic())
            self._earlier_objects.pop(service.key, None)
            if service.result is not None and service.result.phase == "Error" and service.begun:
                self._leave_for_retry(service.begun)
        else:
            del self._entries[service.key]

    async def _find(self, namespace: str) -> None:
        """Find the objects that earlier agents created in a namespace, or in all, by their annotations."""
        context = self._context
        objects = await context.call_until_success(
            lambda: orphans.list_begun(context.cluster, namespace, self._ours),
            "look for what earlier agents began",
        )
        for begun in objects:
            self._earlier_objects.setdefault(begun.key, []).append(begun)

    async def _settle(self, key: TaskKey, objects: list[BegunObject]) -> None:
        """Decide what happens to the objects of a step that has no task in this agent's watch."""
        for begun in objects if self._ours(key) else ():
            judge = partial(orphans.judge_orphan, self._context.cluster, begun)
            match await self._context.call_until_success(judge, f"judge {begun.handle}"):
                case OrphanVerdict.ALIVE:
                    await asyncio.sleep(MAX_PAUSE)  # the watch lags behind
                    task_sets = self._context.task_sets
                    seen = task_sets.get(key.workflow.task_set) is not None
                    if seen or task_sets.error_in(key.workflow.namespace) is not None:
                        self._earlier_objects.setdefault(key, []).append(begun)
                    # Otherwise the agent of another instance id serves the task set.
                case OrphanVerdict.LEFT:
                    self._leave_for_retry(begun)
                case OrphanVerdict.ORPHANED:
                    await self._context.cancel(begun)

    def _ours(self, key: TaskKey) -> bool:
        if not self._context.served.includes(key.workflow.namespace):
            return False
        return not self._only or key.workflow.name == self._only

    def _leave_for_retry(self, begun: BegunObject) -> None:
        self._left.setdefault(begun.key.workflow, []).append(begun)

    def _tidy(self) -> None:
        """Cancel the objects that were left for a retry in workflows that have ended. Stop watching the
        deadlines of workflows of which no task is being served."""
        for workflow in [workflow for workflow in self._left if self._over(workflow)]:
            for begun in self._left.pop(workflow):
                self._spawn(self._context.cancel(begun))
        waiting = {key.workflow for key in self._entries}
        for workflow in [workflow for workflow in self._deadlines if workflow not in waiting]:
            self._deadlines.pop(workflow).cancel()

    def _over(self, workflow: WorkflowKey) -> bool:
        task_set = self._context.task_sets.get(workflow.task_set)
        return task_set is None or workflow_of(task_set) != workflow or has_ended(task_set)

    def _note_workflow(self, workflow: Object) -> None:
        deadline = deadline_of(workflow)
        key = WorkflowKey(*key_of(workflow), str(workflow["metadata"]["uid"]))
        if workflow_has_ended(workflow):  # although its task set does not say so
            for task in [task for task in self._earlier_objects if task.workflow == key]:
                self._settle_later(task)
        if deadline is not None and key not in self._deadlines:
            watch = deadlines.watch_deadline(self._context, key, deadline)
            self._deadlines[key] = asyncio.create_task(watch, name=f"deadline of {key}")

    def _settle_later(self, key: TaskKey) -> None:
        self._spawn(self._settle(key, self._earlier_objects.pop(key)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        self._wake.set()
