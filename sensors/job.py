"""Sensors on jobs of any kind. They only wait; they neither create nor cancel objects."""

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from edl_workflows.airflow.hooks.airflow_versions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from edl_workflows.airflow.hooks.errors import AirflowStageSkipped, raised_for_airflow
from edl_workflows.core.exceptions import EdlError, JobFailedError, PlanFailedError, StageTimeoutError
from edl_workflows.operators.base import StageTask, WhenFinished
from edl_workflows.operators.cluster import CLUSTER_FIELDS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from edl_workflows.pipelines.stages.driver import GoalWait


class StageSensor(StageTask, BaseSensorOperator):
    """A sensor whose condition is the goal of a stage. One that is out of time, or whose job has failed, is
    never retried; out of time is also one that ``execution_timeout`` interrupts within a poke."""

    repeatable: ClassVar[bool] = True
    final_errors: ClassVar[tuple[type[EdlError], ...]] = (JobFailedError, PlanFailedError)
    _goal_wait: "GoalWait | None" = None
    """Shared by all pokes in this process."""

    def poke(self, context: "Context") -> PokeReturnValue:
        """Evaluate the goal once."""
        from edl_workflows.pipelines.waiting.results import Done, Failed, Skipped

        with raised_for_airflow():
            if self._goal_wait is None:
                self._goal_wait = self._begin_wait(context)
            result = self._goal_wait.check(self.hook.cluster())
            if isinstance(result, Failed):
                raise self.failure(result.error)
        if isinstance(result, Skipped):
            raise AirflowStageSkipped(result.reason)
        if isinstance(result, Done):
            return PokeReturnValue(True, self.deliver(context, result.outputs))
        return PokeReturnValue(False)

    def _begin_wait(self, context: "Context") -> "GoalWait":
        from edl_workflows.pipelines.stages.driver import GoalWait
        from edl_workflows.pipelines.waiting.identity import Notify, notify_nobody

        notify: Notify = notify_nobody if self.deferrable else self.log.info  # a trigger logs itself
        handle = self.begin(context)
        self._catch_up_on_kill()
        return GoalWait(handle, queue_deadline=self.queue_deadline(context), notify=notify)

    def execute(self, context: "Context") -> Any:
        """Poke like any sensor or, if deferrable, evaluate once and then wait in the triggerer.

        The smaller of ``timeout`` and ``execution_timeout`` limits the wait. But a sensor with
        ``mode="reschedule"`` is executed anew for each poke, and Airflow limits each of these.
        """
        self._ti = context["ti"]
        if self.reschedule and not self.deferrable:
            return super().execute(context)
        if self.execution_timeout is not None:
            self.timeout = min(self.timeout, self.execution_timeout.total_seconds())
        try:
            try:
                if not self.deferrable:
                    return super().execute(context)
                first = self.poke(context)
            except AirflowTaskTimeout as error:  # Airflow's alarm, which only knows execution_timeout
                raise AirflowSensorTimeout(f"not within the execution_timeout of {self.timeout} s") from error
        except (AirflowSensorTimeout, AirflowFailException) as error:  # Airflow's own loop does the same
            if self.soft_fail:
                raise AirflowSkipException(f"skipped by soft_fail: {error}") from error
            raise
        if not first.is_done and self._handle is not None:
            self.defer_until(self._handle, time.time() + self.timeout, self.queue_deadline(context))
        return first.xcom_value

    def failure(self, error: EdlError) -> Exception:
        """The exception to raise. A time-out becomes Airflow's own exception, which ``soft_fail``
        recognizes."""
        raised = super().failure(error)
        return AirflowSensorTimeout(str(error)) if isinstance(error, StageTimeoutError) else raised


class JobSensor(StageSensor):
    """Wait for a job's phase, training step or condition. If several are given, all must hold at once.

    If the job does not exist yet, the sensor waits for it. If the job fails, the task fails at once, without
    retries. The result (XCom) is that of `SubmitJobOperator`.

    Args:
        name: name of the job.
        phases: wait for any of these phases: Pending, Running, Scaling, Restarting, Suspended, Succeeded,
            Failed; Succeeded if nothing else is given. May also be the text of a list, or names separated by
            commas.
        step: global training step.
        condition: type of a condition, or its type and a status other than True: ``Running=False``.
        kind: kind of the job.
        queue_timeout: how long, from the start of the task, the job may wait for pods or quota before it runs
            for the first time; then the task fails, and its message says what the job waits for.
        if_finished: what to do if the job succeeds without reaching what is waited for: "skip" the task
            (default), "fail" it without retries, or let it "succeed".
        kwargs: arguments of `StageTask` and of every sensor: ``timeout``, ``soft_fail``; ``poke_interval``
            and ``mode`` if it is not deferred.
    """

    stage_name: ClassVar[str] = "wait"
    template_fields: Sequence[str] = ("name", "phases", "step", "condition", *CLUSTER_FIELDS)

    def __init__(
        self,
        *,
        name: str,
        phases: Iterable[str] | str | None = None,
        step: int | str | None = None,
        condition: str | None = None,
        kind: str,
        queue_timeout: timedelta | None = None,
        if_finished: WhenFinished = "skip",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.phases = phases
        self.step = step
        self.condition = condition
        self.kind = kind
        self.queue_timeout = queue_timeout
        self.if_finished = if_finished
