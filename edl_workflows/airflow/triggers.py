"""The trigger of all operators and sensors: waits for the goal of a stage, and cancels its object if a user
kills the task.

This module can be imported without the Kubernetes client, which is loaded in a thread when a trigger runs.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import TriggerEvent

from edl_workflows.airflow.hooks import kills, lineage, written_logs
from edl_workflows.airflow.hooks.airflow_versions import KillableTrigger, call_in_thread, conf
from edl_workflows.airflow.hooks.errors import branch_name
from edl_workflows.core.exceptions import EdlError, StageTimeoutError
from edl_workflows.core.kubernetes.objects import Model
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.outputs import Outputs
from edl_workflows.pipelines.waiting.results import Failed, Skipped
from edl_workflows.pipelines.waiting.training_logs import LogRequest, TrainingLogs
from edl_workflows.runtime.kube.connect import ClusterSource

if TYPE_CHECKING:
    from edl_workflows.airflow.hooks.elastic_job import ElasticJobHook

_OVER = "The wait is over"
"""Beginning of the last line that a trigger logs."""
SETTLED_LOOPS = 3
"""How many of its heartbeats a scheduler may need to process a deferral."""

_BACKGROUND: set[asyncio.Task[None]] = set()
"""Cancellations in progress. They are kept here because the event loop holds only weak references to its
tasks."""


class StageEvent(Model):
    """The payload of the event that the trigger sends to the task.

    Attributes:
        status: "timeout" if the deadline passed; the worker then cancels the object. "skipped" if the job
            succeeded before the goal was reached.
        handle: the stage's handle. It is part of the event because not every Airflow version passes on
            ``defer(kwargs=…)``.
        outputs: the stage's outputs, on success.
        error: the name of the error's class, on failure.
        message: why the stage failed or was skipped.
        link: URL of the object, for the link on the task's page.
        attempt: the trigger's `attempt`.
    """

    status: Literal["success", "skipped", "failed", "timeout"]
    handle: Handle
    outputs: Outputs | None = None
    error: str = ""
    message: str = ""
    link: str = ""
    attempt: int = 0


class ElasticJobTrigger(KillableTrigger):
    """Waits for the goal of a stage's handle.

    Args:
        handle: a `waiting.goals.Handle` as a dict.
        connection: a `hooks.elastic_job.ConnectionSettings` as a dict.
        deadline: Unix time; None: no limit.
        queue_deadline: Unix time until which the job must have begun to run; None: no limit.
        on_kill_action: what to do with the object of the stage when a user kills the deferred task.
        link: the event's `link`.
        attempt: number of the task's attempt that waits; 0: unknown.
        logs: a `waiting.training_logs.LogRequest` as a dict; None for no training logs.
    """

    def __init__(
        self,
        *,
        handle: dict[str, Any],
        connection: dict[str, Any],
        deadline: float | None = None,
        queue_deadline: float | None = None,
        on_kill_action: ownership.CancelAction = "keep",
        link: str = "",
        attempt: int = 0,
        logs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.handle = handle
        self.connection = connection
        self.deadline = deadline
        self.queue_deadline = queue_deadline
        self.on_kill_action = on_kill_action
        self.link = link
        self.attempt = attempt
        self.logs = logs
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, as they are stored."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "handle": self.handle,
                "connection": self.connection,
                "deadline": self.deadline,
                "queue_deadline": self.queue_deadline,
                "on_kill_action": self.on_kill_action,
                "link": self.link,
                "attempt": self.attempt,
                "logs": self.logs,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, when the goal is reached or can't be reached any more, or when the deadline has
        passed."""
        loop = asyncio.get_running_loop()
        settled = loop.time() + settle_seconds()
        event = await self._event()
        await asyncio.sleep(max(0.0, settled - loop.time()))
        self.log.info(
            "%s (%s); the task continues in a worker. If Airflow fails it before its next line, its "
            "scheduler took the deferral for the end of the task (see [edl_workflows] settle_seconds)",
            _OVER,
            event.status,
        )
        if self.logs is not None:
            await written_logs.await_line(self.task_instance, _OVER)
        # From here to the end of this generator nothing may be awaited, since Airflow then calls on_kill.
        self._fired = True
        yield TriggerEvent(event.to_dict())

    async def _event(self) -> StageEvent:
        handle = Handle.model_validate(self.handle)
        try:
            source = await call_in_thread(_source, self.connection)
            logs = await self._training_logs(source, handle)
            result = await driver.await_goal(
                source, handle, self.deadline, self.log.info, queue_deadline=self.queue_deadline, logs=logs
            )
        except EdlError as error:
            result = Failed(error)
        make_event = partial(StageEvent, handle=handle, link=self.link, attempt=self.attempt)
        if isinstance(result, Skipped):
            return make_event(status="skipped", message=result.reason)
        if not isinstance(result, Failed):
            return make_event(status="success", outputs=result.outputs)
        return make_event(
            status="timeout" if isinstance(result.error, StageTimeoutError) else "failed",
            error=branch_name(result.error),
            message=str(result.error),
        )

    async def _training_logs(self, source: ClusterSource, handle: Handle) -> TrainingLogs | None:
        """The writer of the training logs, from where an earlier triggerer stopped; None without logs."""
        if self.logs is None:
            return None
        request = LogRequest.model_validate(self.logs)
        positions = await call_in_thread(written_logs.take_over_lines, self.task_instance)
        return TrainingLogs(source, handle, request, written_logs.write_line, self.log.warning, positions)

    async def on_kill(self) -> None:
        """Cancel what the stage created if the task was really killed, and end the jobs of its run if the run
        has ended without its teardowns.

        Airflow also calls this when another triggerer has taken over (open issue #73454), and when the task
        was cleared and its next attempt already continues with the same object. The task's state
        distinguishes these cases, and the object's owner annotations decide if an attempt begins in between.
        The work is done in an asyncio task of its own, since Airflow interrupts this method after a second.
        """
        if self._fired:
            return
        task = asyncio.create_task(self._cancel_if_killed(), name=f"cancel {self.handle['name']}")
        _BACKGROUND.add(task)
        task.add_done_callback(_BACKGROUND.discard)
        await asyncio.shield(task)

    async def _cancel_if_killed(self) -> None:
        handle = Handle.model_validate(self.handle)
        try:
            await call_in_thread(self._cancel, handle)
        except (EdlError, AirflowRuntimeError):
            self.log.exception("%s could not be cancelled; do it by hand", handle)

    def _cancel(self, handle: Handle) -> None:
        hook = _hook(self.connection)
        done = kills.cancel_if_killed(hook, self.task_instance, handle, self.on_kill_action, self.log.info)
        if done and self.on_kill_action == "delete":
            lineage.emit_job_event(lineage.JobEvent.deleted(handle))


def settle_seconds() -> float:
    """Earliest time of the event after the trigger's start: ``[edl_workflows] settle_seconds``, by default
    three times ``[scheduler] scheduler_heartbeat_sec``.

    If a scheduler learns of the deferral only after the resumed task was queued, it fails that task (Airflow
    #66374, #67287). With the LocalExecutor, 8 of 10 tasks failed like this when the event came 1 s after the
    deferral, and 1 of 16 when it came after 5 s, while a loop of the scheduler took 4.6 s.
    """
    heartbeat = conf.getfloat("scheduler", "scheduler_heartbeat_sec", fallback=5.0)
    return float(conf.getfloat("edl_workflows", "settle_seconds", fallback=SETTLED_LOOPS * heartbeat))


def _hook(connection: dict[str, Any]) -> "ElasticJobHook":
    from edl_workflows.airflow.hooks.elastic_job import ConnectionSettings, ElasticJobHook

    return ElasticJobHook(ConnectionSettings(**connection))


def _source(connection: dict[str, Any]) -> ClusterSource:
    return _hook(connection).source()
