"""Base classes of all operators and sensors. Each runs one stage, in the worker or, deferred, in the trigger.

Stages, the trigger and the hook are imported when a task runs: Airflow parses DAG files again and again, so
the import of an operator must be cheap.
"""

import asyncio
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowRuntimeError

from edl_workflows.airflow.hooks.airflow_versions import (
    DELIVERED,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferralError,
    TaskDeferralTimeout,
    conf,
    task_store,
)
from edl_workflows.airflow.hooks.errors import (
    AirflowStageSkipped,
    AirflowStageTimeoutError,
    as_airflow,
    fail_for_good,
    raised_for_airflow,
    to_airflow,
)
from edl_workflows.airflow.hooks.task_owner import TaskOwner
from edl_workflows.airflow.links import ElasticJobLink
from edl_workflows.core.exceptions import (
    EdlError,
    JobDisappearedError,
    JobFailedError,
    JobFinishedError,
    PlanFailedError,
    StageTimeoutError,
)
from edl_workflows.operators.cluster import ClusterTask
from edl_workflows.operators.lineage import LineageTask
from edl_workflows.operators.rendered import rendered_field
from edl_workflows.operators.retries import RepeatableTask

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from edl_workflows.pipelines.waiting.goals import Handle
    from edl_workflows.pipelines.waiting.identity import Lifetime, StageIdentity
    from edl_workflows.pipelines.waiting.outputs import Outputs
    from edl_workflows.pipelines.waiting.results import Done, InProgress, StageEnd, StageResult

STATE_KEY = "edl_stage"
"""Key in Airflow's task state store. Its value is the handle of the newest attempt, and whether that
attempt's result was delivered."""
BACKSTOP = timedelta(seconds=60)
"""How much later than the trigger's deadline Airflow's own deadline is. Airflow's applies if no triggerer
runs; Airflow checks it every 15 s."""
KILL_SECONDS = 4.5
"""Time limit of a cancellation: a killed worker process gets SIGKILL 5 s after SIGTERM."""

OnKillAction = Literal["delete", "suspend", "keep"]
WhenFinished = Literal["skip", "fail", "succeed"]
"""The result of a task if the job succeeds before the task has done its work."""


class StageTask(RepeatableTask, LineageTask, ClusterTask):
    """A task that runs one stage.

    Args:
        deferrable: wait in the triggerer; by default Airflow's ``[operators] default_deferrable``.
        kwargs: arguments of `RepeatableTask` and `ClusterTask`.
    """

    stage_name: ClassVar[str]
    """Name of the stage in `edl_workflows.pipelines.stages.catalog`."""
    operator_extra_links = (ElasticJobLink(),)
    on_kill_action: OnKillAction = "keep"
    queue_timeout: timedelta | None = None
    """How long, from the start of the task, the job may wait before it runs for the first time."""
    log_request: dict[str, Any] | None = None
    """The training logs to write while the task waits: a `waiting.training_logs.LogRequest` as a dict."""
    final_errors: ClassVar[tuple[type[EdlError], ...]] = (JobFailedError,)
    """Errors that a retry of this task can't correct, because another task created the object."""

    _ti: Any = None
    _killed_early = False
    link: str = ""
    """URL of the object's dashboard, set when the stage has begun; "" if the connection names none."""

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        # Each output is also an XCom of its own, which ``submit.output["name"]`` reads.
        super().__init__(multiple_outputs=True, **kwargs)
        self.deferrable = deferrable

    def request_values(self) -> dict[str, Any]:
        """The fields of the stage's request from the rendered arguments; None for the default of a field."""
        from edl_workflows.pipelines.stages.catalog import stage_of

        fields = list(stage_of(self.stage_name).fields())
        arguments = [(field, field.argument.operator or field.name) for field in fields]
        return {
            field.name: rendered_field(getattr(self, name, None), name, field) for field, name in arguments
        }

    def begin(self, context: "Context") -> "Handle":
        """Begin the stage: create its object, or adopt the one of an earlier attempt."""
        from edl_workflows.airflow.hooks.task_object import OBJECT_KEY, TaskObject
        from edl_workflows.pipelines.stages.catalog import stage_of

        self._ti = context["ti"]
        stage = stage_of(self.stage_name)
        values = {"namespace": self.namespace, **self.request_values()}
        request = stage.request.of({key: value for key, value in values.items() if value is not None})
        handle = stage.begin(self.hook.cluster(), request, self.identity(context))
        self._handle = handle
        self.link = self.hook.link(handle.kind, handle.namespace, handle.name)
        target = TaskObject(kind=handle.kind, namespace=handle.namespace, name=handle.name, uid=handle.uid)
        context["ti"].xcom_push(OBJECT_KEY, target.model_dump())
        self.log.info("%s: %s", handle, self.link or handle.describe_command)
        return handle

    def queue_deadline(self, context: "Context") -> float | None:
        """Unix time until which the job must have begun to run; None without a `queue_timeout`."""
        if self.queue_timeout is None:
            return None
        ti = context["ti"]
        # A rescheduled sensor has a new start date at each poke.
        start = ti.get_first_reschedule_date(context) if getattr(self, "reschedule", False) else None
        return ((start or ti.start_date) + self.queue_timeout).timestamp()

    def defer_until(
        self, handle: "Handle", deadline: float | None, queue_deadline: float | None = None
    ) -> NoReturn:
        """Release the worker and wait in the triggerer."""
        from edl_workflows.airflow.triggers import ElasticJobTrigger

        trigger = ElasticJobTrigger(
            handle=handle.model_dump(mode="json"),
            connection=self.connection,
            deadline=deadline,
            queue_deadline=queue_deadline,
            on_kill_action=self.on_kill_action,
            link=self.link,
            attempt=self._ti.try_number,
            logs=self.log_request,
        )
        left = None if deadline is None else timedelta(seconds=max(0.0, deadline - time.time())) + BACKSTOP
        self.defer(trigger=trigger, method_name="execute_complete", timeout=left)

    def execute_complete(self, context: "Context", event: dict[str, Any]) -> Any:
        """Continue after the trigger's event."""
        self._ti = context["ti"]
        from edl_workflows.airflow.triggers import StageEvent

        stage_event = StageEvent.model_validate(event)
        if stage_event.attempt not in (0, self._ti.try_number):
            # A retry begins from the start, but Airflow 3.0 passes it the previous attempt's event.
            return self.execute(context)
        self._handle, self.link = stage_event.handle, stage_event.link
        if stage_event.status == "skipped":
            raise AirflowStageSkipped(stage_event.message)
        if stage_event.outputs is not None:
            return self.deliver(context, stage_event.outputs)
        raise self.failure(to_airflow(stage_event.error, stage_event.message))

    def deliver(self, context: "Context", outputs: "Outputs") -> dict[str, Any]:
        """Return the outputs as the task's result, and add them to the events of its outlets."""
        self._outputs = outputs
        self.report_success(context["ti"])
        result = outputs.to_dict()
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(result)
        return result

    def failure(self, error: EdlError) -> Exception:
        """The exception to raise for an error of the stage. The lines of its message are also logged one by
        one, because Airflow's pages show only the beginning of an exception."""
        for line in str(error).splitlines():
            self.log.error("%s", line)
        if isinstance(error, JobFailedError):
            self.report_job("FAIL", self._ti, str(error))
        return fail_for_good(error) if isinstance(error, self.final_errors) else error

    def owner_of_task(self, ti: Any) -> TaskOwner:
        """The owner of what this task instance creates."""
        return TaskOwner.of(ti, self.hook.installation)

    def identity(self, context: "Context") -> "StageIdentity":
        """The owner annotations of this task instance, without a logical date, which not every run has."""
        from edl_workflows.pipelines.waiting.identity import StageIdentity

        ti = context["ti"]
        owner = self.owner_of_task(ti)
        return StageIdentity(owner=str(owner), attempt=str(ti.try_number), notify=self.log.info)

    def on_kill(self) -> None:
        """Cancel what the stage created if a user killed the task, and end the jobs of its run if the run has
        ended without its teardowns. If the worker shuts down, the next attempt continues.

        Airflow calls this in a signal handler, at any point of the task. The cancellation runs in a separate
        thread, because the interrupted thread may hold locks.
        """
        if self._handle is None:
            self._killed_early = True  # the task continues after this handler: `_catch_up_on_kill`
            return
        thread = threading.Thread(target=self._cancel_if_killed, name="on_kill", daemon=True)
        thread.start()
        thread.join(KILL_SECONDS)

    def _catch_up_on_kill(self) -> None:
        """When the stage has begun, do what `on_kill` could not do before."""
        if self._killed_early:
            self._cancel_if_killed()

    def _cancel_if_killed(self) -> None:
        from edl_workflows.airflow.hooks import kills

        assert self._handle is not None
        try:
            done = kills.cancel_if_killed(
                self.hook, self._ti, self._handle, self.on_kill_action, self.log.info
            )
        except (AirflowRuntimeError, EdlError):
            self.log.exception("%s could not be cancelled; cancel it manually", self._handle)
            return
        if done and self.on_kill_action == "delete":
            self.report_job("ABORT", self._ti)


class StageOperator(StageTask):
    """A stage that changes something. It cancels what it created if it is killed or exceeds its time limit.

    Args:
        wait_for_completion: wait for the stage's goal; if false, the task ends once the stage has begun.
        completion_timeout: time limit of the whole wait, deferred or not, from the start of the task.
            ``execution_timeout`` limits it in the same way, also while the task is deferred. After it, what
            the stage created is cancelled.
        on_kill_action: what to do with the object that the stage created when a user kills the task or its
            time limit passes. The action is stored on the object, for `ReapOrphanedJobsOperator`.
        kwargs: arguments of `StageTask`.
    """

    def __init__(
        self,
        *,
        wait_for_completion: bool = True,
        completion_timeout: timedelta | None = None,
        on_kill_action: OnKillAction = "delete",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.wait_for_completion = wait_for_completion
        self.completion_timeout = completion_timeout
        self.on_kill_action = on_kill_action

    def execute(self, context: "Context") -> dict[str, Any]:
        """Begin the stage, or continue the stage of an earlier attempt, and wait for its goal."""
        self._ti = context["ti"]
        with raised_for_airflow():
            try:
                done = self._finished(context)
            except AirflowTaskTimeout:
                # It is raised once and can interrupt any code, even a cancellation. A second cancellation
                # does no harm.
                self._cancel()
                raise
            return self.deliver(context, done.outputs)

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: "Context"
    ) -> Any:
        """Resume after a deferral; if Airflow itself ended the wait, cancel what the stage created."""
        self._ti = context["ti"]
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as error:
            self._handle, _ = self._load_state(context)
            if (outputs := self._outputs_if_reached()) is not None:
                return self.deliver(context, outputs)
            self._cancel()
            subject = self._handle or f"task {self.task_id}"
            raise AirflowStageTimeoutError(
                f"{subject} did not reach its goal in time; no triggerer reported it: is one running?"
            ) from error
        except TaskDeferralError:
            self._handle, _ = self._load_state(context)
            if self._last_attempt():
                self._cancel()
            raise

    def deliver(self, context: "Context", outputs: "Outputs") -> dict[str, Any]:
        """Return the outputs, and record the delivery: a later run of the task must not reuse this result."""
        result = super().deliver(context, outputs)
        if self._handle is not None:
            self._store_state(context, self._handle, delivered=True)
        return result

    def failure(self, error: EdlError) -> Exception:
        """The error as an Airflow exception. Objects that no later attempt will continue are cancelled
        first."""
        raised = as_airflow(super().failure(error))
        over = isinstance(raised, JobFailedError | JobFinishedError | PlanFailedError | JobDisappearedError)
        no_retry = isinstance(raised, AirflowFailException) or self._last_attempt()
        if not over and (no_retry or isinstance(raised, StageTimeoutError)):
            self._cancel()
        return raised

    def identity(self, context: "Context") -> "StageIdentity":
        """The owner annotations, with the state that earlier attempts stored and the policy for an orphaned
        object."""
        handle, delivered = self._load_state(context)
        existing_name = handle.name if handle is not None and handle.owner and not delivered else ""
        lifetime: Lifetime = "task" if self.wait_for_completion else "run"
        return replace(
            super().identity(context),
            existing_name=existing_name,
            rerun=delivered,
            on_cancel=self.on_kill_action,
            lifetime=lifetime,
        )

    def _finished(self, context: "Context") -> "Done":
        """Run the stage to its end; a failure is raised as an Airflow exception, after the necessary
        cancellation."""
        from edl_workflows.pipelines.waiting.results import Done, Skipped

        try:
            result = self._run_stage(context)
        except EdlError as error:
            raise self.failure(error) from error
        except Exception:
            if self._last_attempt():
                self._cancel()
            raise
        if isinstance(result, Done):
            return result
        if isinstance(result, Skipped):
            raise AirflowStageSkipped(result.reason)
        raise self.failure(result.error)

    def _run_stage(self, context: "Context") -> "StageEnd":
        from edl_workflows.pipelines.waiting.results import InProgress
        from edl_workflows.runtime.process.signals import alarm_waits

        # If Airflow's time-out interrupted the creation, the object could exist without a handle to cancel
        # it.
        with alarm_waits():
            handle = self.begin(context)
        self._catch_up_on_kill()
        self._store_state(context, handle, delivered=False)
        if handle.owner:
            self.report_job("RUNNING" if handle.is_adopted else "START", self._ti)
        result = self.check_now(handle)
        return self._wait(context, handle, result) if isinstance(result, InProgress) else result

    def check_now(self, handle: "Handle") -> "StageResult":
        """Evaluate the stage's goal now, since a task whose goal is already reached need not be deferred."""
        from edl_workflows.pipelines.stages import driver

        return driver.check_now(self.hook.cluster(), handle)

    def _outputs_if_reached(self) -> "Outputs | None":
        """The outputs if the goal was reached while nobody waited; None if not, or if the cluster is
        unavailable."""
        from edl_workflows.pipelines.waiting.results import Done

        if self._handle is None:
            return None
        try:
            result = self.check_now(self._handle)
        except EdlError:
            self.log.exception("Can't determine whether %s has reached its goal", self._handle)
            return None
        return result.outputs if isinstance(result, Done) else None

    def _wait(self, context: "Context", handle: "Handle", now: "InProgress") -> "StageEnd":
        from edl_workflows.pipelines.stages import driver
        from edl_workflows.pipelines.waiting.results import Done

        if not self.wait_for_completion:
            return Done(now.outputs)
        deadline, queue_deadline = self._deadline(context), self.queue_deadline(context)
        if self.deferrable:
            self.defer_until(handle, deadline, queue_deadline)
        source, notify = self.hook.source(), self.log.info
        if self.log_request is None:
            return driver.wait_for_goal(source, handle, deadline, notify, queue_deadline=queue_deadline)
        from edl_workflows.airflow.hooks import written_logs
        from edl_workflows.pipelines.waiting.training_logs import LogRequest, TrainingLogs

        async def wait() -> "StageEnd":
            request = LogRequest.model_validate(self.log_request)
            logs = TrainingLogs(source, handle, request, written_logs.write_line, self.log.warning)
            return await driver.await_goal(
                source, handle, deadline, notify, queue_deadline=queue_deadline, logs=logs
            )

        return asyncio.run(wait())

    def _deadline(self, context: "Context") -> float | None:
        limits = [limit for limit in (self.completion_timeout, self.execution_timeout) if limit is not None]
        start = context["ti"].start_date
        return (start + min(limits)).timestamp() if limits else None

    def _store_state(self, context: "Context", handle: "Handle", *, delivered: bool) -> None:
        state: JsonValue = {"handle": handle.model_dump(mode="json"), DELIVERED: delivered}
        task_store(context).set(STATE_KEY, state)

    def _load_state(self, context: "Context") -> "tuple[Handle | None, bool]":
        from edl_workflows.pipelines.waiting.goals import Handle

        state = task_store(context).get(STATE_KEY)
        if not isinstance(state, dict):
            return None, False
        delivered = bool(state.get(DELIVERED))
        if "handle" not in state:  # older Airflow versions keep nothing else from an earlier attempt
            return None, delivered
        try:
            return Handle.model_validate(state["handle"]), delivered
        except ValueError:
            self.log.warning(
                "An earlier attempt stored the state of another version of this package: %s", state
            )
            return None, False

    def _last_attempt(self) -> bool:
        return bool(self._ti.try_number > self._ti.max_tries)

    def _cancel(self) -> None:
        from edl_workflows.pipelines.waiting import ownership

        if self._handle is None:
            return
        try:
            done = ownership.cancel_object(self.hook.cluster(), self._handle, self.on_kill_action)
            message = ownership.describe_cancellation(self.on_kill_action, done=done)
            self.log.info("%s %s", self._handle, message)
            if done and self.on_kill_action == "delete":
                self.report_job("ABORT", self._ti)
        except EdlError:
            # The task must fail with the error that caused this cancellation, not with this one.
            self.log.exception("%s could not be cancelled; cancel it manually", self._handle)
