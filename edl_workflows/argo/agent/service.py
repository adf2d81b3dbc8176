"""One task from its begin to its report, or to the cancellation of what was begun if the task vanishes before."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import structlog

from edl_workflows.argo.agent import orphans, reporting, results
from edl_workflows.argo.agent.orphans import Begun
from edl_workflows.argo.agent.results import Result
from edl_workflows.argo.agent.surroundings import MAX_PAUSE, MIN_PAUSE, Surroundings, unless
from edl_workflows.argo.agent.tasks import OpenTask
from edl_workflows.argo.agent.workflow import Step, step_of
from edl_workflows.argo.api import WORKFLOWS
from edl_workflows.argo.task import Task
from edl_workflows.exceptions import EdlError, InvalidError, UnavailableError
from edl_workflows.kube import client
from edl_workflows.kube.connect import ClusterSource
from edl_workflows.kube.resources import ALL_NAMESPACES, Object
from edl_workflows.stages import driver
from edl_workflows.stages.goals import Failed, Handle
from edl_workflows.stages.requests import Request

log = structlog.get_logger(__name__)
T = TypeVar("T")

LONG_PAUSE = 60.0
"""Longest pause between looks at a workflow that does not wait for a task that is there."""


class VanishedError(Exception):
    """The task is gone: what was begun for it is to be cancelled."""


class Service:
    """Serves one task.

    Args:
        task: which.
        around: what all tasks share.
        learned: told of the task's workflow each time that it is read.
    """

    def __init__(self, task: OpenTask, around: Surroundings, learned: Callable[[Object], None]) -> None:
        self.key = task.key
        self.result: Result | None = None
        """What the step ended in."""
        self._task = task
        self._around = around
        self._learned = learned
        self._step: Step | None = None
        self._asked: Task | None = None
        self._begins = False
        self._handle: Handle | None = None
        self._vanished = asyncio.Event()
        self._log = log.bind(task=str(task.key))

    @property
    def begun(self) -> Begun | None:
        """What a cancellation of the step would end."""
        if self._handle is None or self._asked is None or not self._handle.owner:
            return None
        return Begun(self.key, self._handle, self._asked.on_cancel)

    def abandon(self) -> None:
        """The task is gone: cancel what was begun."""
        self._vanished.set()

    async def run(self) -> bool:
        """Serve it.

        Returns:
            Whether its result was written; False: it vanished, and what was begun for it is cancelled.
        """
        try:
            self.result = await self._pursue()
            if await self._report(self.result):
                return True
        except VanishedError:
            self._log.info("vanished")
        await self._cancel()
        return False

    async def _pursue(self) -> Result:
        try:
            self._step = await self._identify()
            return await self._stage(self._step)
        except EdlError as error:
            return results.of_error(error)
        except VanishedError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect must end the step, not hang it
            self._log.exception("step failed")
            return results.of_error(error)

    async def _identify(self) -> Step:
        """The step, as soon as its workflow waits for it."""
        pause = MIN_PAUSE
        while True:
            workflow = await self._patiently(self._read_workflow)
            if workflow is not None:
                self._learned(workflow)
                step = step_of(workflow, self._task)
                if step is not None:
                    return step
            await self._pause(pause)
            pause = min(LONG_PAUSE, 2 * pause)

    def _read_workflow(self) -> Object | None:
        key = self.key.workflow
        found = client.find(self._around.cluster, WORKFLOWS, key.name, key.namespace)
        return found if found is not None and found["metadata"]["uid"] == key.uid else None

    async def _stage(self, step: Step) -> Result:
        self._asked = task = Task.parse(self._task.body)
        stage, request = task.stage_and_request()
        namespace = self.key.workflow.namespace
        if not self._around.cross_namespace:
            _check_namespace(request, namespace)
        cluster = self._around.cluster.in_namespace(namespace)
        # Of a step that does not wait nobody can tell later whether it vanished or was answered: its job is left alone.
        identity = step.identity(task.on_cancel if task.wait else "keep")

        def begin() -> Handle:
            self._begins = True
            self._handle = stage.begin(cluster, request, identity)
            return self._handle

        handle = await self._patiently(begin)
        self._log.info("begun", stage=task.stage, object=str(handle))
        if not task.wait:
            return results.of_outcome(await self._patiently(lambda: driver.look(cluster, handle)))
        return await self._wait(handle)

    async def _wait(self, handle: Handle) -> Result:
        source, everywhere = ClusterSource.of(self._around.cluster), self._around.everywhere
        while True:
            waiting = driver.await_outcome(source, handle, notify=self._log.info, everywhere=everywhere)
            outcome = await unless(self._vanished, waiting)
            if outcome is None:
                raise VanishedError
            if not (isinstance(outcome, Failed) and isinstance(outcome.error, UnavailableError)):
                return results.of_outcome(outcome)
            await self._pause(MAX_PAUSE)

    async def _report(self, result: Result) -> bool:
        def write() -> bool:
            if self._step is not None:
                workflow = self._read_workflow()
                if workflow is None or step_of(workflow, self._task) != self._step:
                    return False
            return reporting.report(self._around.cluster, self._around.task_sets, self.key, result)

        # Nobody else can answer, so there is no giving up; the step's own time-out ends it.
        written = await self._around.endlessly(write, f"report {self.key}", self._pause)
        if written:
            self._around.metrics.answered(self._asked.stage if self._asked else "", result.phase)
            self._log.info("answered", phase=result.phase, message=result.message)
        return written

    async def _cancel(self) -> None:
        """What was begun, by the step's policy. An attempt to begin that failed may have made it all the same."""
        if self._asked is None or self._asked.on_cancel == "keep" or not self._begins:
            return
        if self._handle is not None:
            found = [self.begun] if self.begun else []
        else:
            found = await self._around.endlessly(self._find, f"look for what {self.key} began")
        for begun in found:
            await self._around.cancel(begun)

    def _find(self) -> list[Begun]:
        namespace = ALL_NAMESPACES if self._around.everywhere else self.key.workflow.namespace
        return orphans.begun(self._around.cluster, namespace, lambda key: key == self.key)

    async def _patiently(self, function: Callable[[], T]) -> T:
        result = await self._around.patiently(function, self._pause)
        if self._vanished.is_set():
            raise VanishedError
        return result

    async def _pause(self, seconds: float) -> None:
        if await unless(self._vanished, asyncio.sleep(seconds, True)) is None:
            raise VanishedError


def _check_namespace(request: Request, namespace: str) -> None:
    """See that a step stays in its workflow's namespace.

    Raises:
        InvalidError: it does not.
    """
    manifest = getattr(request, "manifest", None) or {}
    metadata = manifest.get("metadata")
    named = metadata.get("namespace") if isinstance(metadata, dict) else ""
    for other in (getattr(request, "namespace", ""), named):
        if other and other != namespace:
            raise InvalidError(
                f"the step names namespace {other!r}, but its workflow is in {namespace!r}; run the workflow there, or "
                "start the agent with --cross-namespace"
            )
