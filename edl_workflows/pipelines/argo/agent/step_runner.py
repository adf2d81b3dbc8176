"""Serves one task until its result is reported or, if the task vanishes first, until its object is
cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from edl_workflows.core.exceptions import EdlError, InvalidError, UnavailableError
from edl_workflows.pipelines.argo.agent import orphans, reporting, results
from edl_workflows.pipelines.argo.agent.context import MAX_PAUSE, MIN_PAUSE, AgentContext, result_unless_set
from edl_workflows.pipelines.argo.agent.orphans import BegunObject
from edl_workflows.pipelines.argo.agent.progress import ProgressMessages
from edl_workflows.pipelines.argo.agent.result_writer import PendingResult, ResultWriter
from edl_workflows.pipelines.argo.agent.results import StepResult
from edl_workflows.pipelines.argo.agent.tasks import OpenTask
from edl_workflows.pipelines.argo.agent.workflow import StepAttempt, field_of, step_of, workflow_has_ended
from edl_workflows.pipelines.argo.plugin_task import PluginTask
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.description import StageRequest
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import Notify
from edl_workflows.pipelines.waiting.results import Failed
from edl_workflows.runtime.kube.connect import ClusterSource
from edl_workflows.runtime.kube.resources import ALL_NAMESPACES, Object

log = structlog.get_logger(__name__)
T = TypeVar("T")

LONG_PAUSE = 60.0
"""Longest pause between reads of a workflow that does not wait yet for a task that already exists."""


class VanishedError(Exception):
    """The task is gone: its object must be cancelled."""


class StepRunner:
    """Serves one task.

    Args:
        task: the task.
        context: what all tasks share.
        writer: writes the result.
        note_workflow: called with the task's workflow each time it is read, until it waits for the task.
    """

    def __init__(
        self,
        task: OpenTask,
        context: AgentContext,
        writer: ResultWriter,
        note_workflow: Callable[[Object], None],
    ) -> None:
        self.key = task.key
        self.result: StepResult | None = None
        """The result of the step; None while it has none."""
        self._task = task
        self._context = context
        self._writer = writer
        self._note_workflow = note_workflow
        self._step: StepAttempt | None = None
        self._asked: PluginTask | None = None
        self._begins = False
        self._handle: Handle | None = None
        self._vanished = asyncio.Event()
        self._log = log.bind(task=str(task.key))

    @property
    def begun(self) -> BegunObject | None:
        """The object that a cancellation of the step would end; None if there is none."""
        if self._handle is None or self._asked is None or not self._handle.owner:
            return None
        return BegunObject(self.key, self._handle, self._asked.on_cancel)

    def abandon(self) -> None:
        """Stop serving the task, because it is gone, and cancel its object."""
        self._vanished.set()

    async def run(self) -> bool:
        """Serve the task.

        Returns:
            Whether its result was written. False: the task vanished, and its object has been cancelled.
        """
        try:
            self.result = await self._pursue()
            if await self._report(self.result):
                return True
        except VanishedError:
            self._log.info("vanished")
        await self._cancel()
        return False

    async def _pursue(self) -> StepResult:
        try:
            self._step = await self._identify()
            return await self._stage(self._step)
        except EdlError as error:
            return results.result_of_error(error)
        except VanishedError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect must end the step, not hang it
            self._log.exception("step failed")
            return results.result_of_error(error)

    async def _identify(self) -> StepAttempt:
        """Wait until the workflow waits for the step. Return the step."""
        pause = MIN_PAUSE
        while True:
            workflow = await self._call_with_retries(self._read_workflow)
            if workflow is not None:
                self._note_workflow(workflow)
                step = step_of(workflow, self._task)
                if step is not None:
                    return step
            await self._pause(pause)
            pause = min(LONG_PAUSE, 2 * pause)

    def _read_workflow(self) -> Object | None:
        return reporting.find_workflow(self._context.cluster, self.key.workflow)

    async def _stage(self, step: StepAttempt) -> StepResult:
        self._asked = task = PluginTask.parse(self._task.body)
        stage, request = task.stage_and_request()
        namespace = self.key.workflow.namespace
        if not self._context.cross_namespace:
            _check_namespace(request, namespace)
        cluster = self._context.cluster.in_namespace(namespace)
        # If a step does not wait, one cannot tell later whether its task vanished or was answered. So its job
        # is never cancelled.
        identity = step.identity(task.on_cancel if task.wait else "keep")

        def begin() -> Handle:
            self._begins = True
            self._handle = stage.begin(cluster, request, identity)
            return self._handle

        handle = await self._call_with_retries(begin)
        self._log.info("begun", stage=task.stage, object=str(handle))
        if not task.wait:
            return results.result_of_stage(
                await self._call_with_retries(lambda: driver.check_now(cluster, handle))
            )
        return await self._wait(handle)

    async def _wait(self, handle: Handle) -> StepResult:
        messages = ProgressMessages(self.key, self._context, self._read_message)
        showing = asyncio.create_task(self._show(messages), name=f"messages of {self.key}")
        try:
            return await self._wait_for_end(handle, messages.set_message)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    async def _show(self, messages: ProgressMessages) -> None:
        await messages.run()
        self._log.info("the workflow has ended, but its task set still has the task")
        self._vanished.set()

    def _read_message(self) -> str | None:
        workflow = self._read_workflow()
        if workflow is None or workflow_has_ended(workflow):
            return None
        return field_of(workflow, self.key.node, "message")

    async def _wait_for_end(self, handle: Handle, show: Notify) -> StepResult:
        def notify(line: str) -> None:
            self._log.info(line)
            show(line)

        source, everywhere = ClusterSource.of(self._context.cluster), self._context.everywhere
        while True:
            waiting = driver.await_goal(source, handle, notify=notify, everywhere=everywhere)
            outcome = await result_unless_set(self._vanished, waiting)
            if outcome is None:
                raise VanishedError
            if not (isinstance(outcome, Failed) and isinstance(outcome.error, UnavailableError)):
                return results.result_of_stage(outcome)
            await self._pause(MAX_PAUSE)

    async def _report(self, result: StepResult) -> bool:
        def attempt() -> Awaitable[bool]:
            return self._writer.write(PendingResult(self._task, self._step, result))

        # Only this agent can report the result, so it never gives up. The step's own time-out ends the
        # attempts.
        written = await self._context.retry_until_success(attempt, f"report {self.key}", self._pause)
        if written:
            self._context.metrics.answered(self._asked.stage if self._asked else "", result.phase)
            self._log.info("answered", phase=result.phase, message=result.message)
        return written

    async def _cancel(self) -> None:
        """Cancel the step's object according to the step's policy. A failed attempt to create the object may
        have created it nevertheless."""
        if self._asked is None or self._asked.on_cancel == "keep" or not self._begins:
            return
        if self._handle is not None:
            objects = [self.begun] if self.begun else []
        else:
            objects = await self._context.call_until_success(self._find, f"look for what {self.key} began")
        for begun in objects:
            await self._context.cancel(begun)

    def _find(self) -> list[BegunObject]:
        namespace = ALL_NAMESPACES if self._context.everywhere else self.key.workflow.namespace
        return orphans.list_begun(self._context.cluster, namespace, lambda key: key == self.key)

    async def _call_with_retries(self, function: Callable[[], T]) -> T:
        result = await self._context.call_with_retries(function, self.key.workflow.namespace, self._pause)
        if self._vanished.is_set():
            raise VanishedError
        return result

    async def _pause(self, seconds: float) -> None:
        if await result_unless_set(self._vanished, asyncio.sleep(seconds, True)) is None:
            raise VanishedError


def _check_namespace(request: StageRequest, namespace: str) -> None:
    """Check that a step stays in its workflow's namespace.

    Raises:
        InvalidError: it names another namespace.
    """
    manifest = getattr(request, "manifest", None) or {}
    metadata = manifest.get("metadata")
    named = metadata.get("namespace") if isinstance(metadata, dict) else ""
    for other in (getattr(request, "namespace", ""), named):
        if other and other != namespace:
            raise InvalidError(
                f"the step names namespace {other!r}, but its workflow is in {namespace!r}; "
                "run the workflow there, or start the agent with --cross-namespace"
            )
