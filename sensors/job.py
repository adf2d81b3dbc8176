"""Sensors on jobs of any kind: wait for what another task, or somebody else, began. They make nothing, cancel nothing."""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout

from edl_workflows.exceptions import EdlError, StageTimeoutError
from edl_workflows.hooks.errors import raised_for_airflow
from edl_workflows.operators.base import StageTask
from edl_workflows.operators.rendered import given_or_none, rendered_list

if TYPE_CHECKING:
    from airflow.sdk import Context


class StageSensor(StageTask, BaseSensorOperator):
    """A sensor with a stage for its condition."""

    def poke(self, context: "Context") -> PokeReturnValue:
        """Look once."""
        from edl_workflows.stages.goals import Done, Failed

        with raised_for_airflow():
            result = self.look(self._handle or self.begin(context))
            if isinstance(result, Failed):
                raise result.error
        if isinstance(result, Done):
            return PokeReturnValue(True, self.deliver(context, result.outputs))
        self.log.info("%s %s", self._handle, result.message)
        return PokeReturnValue(False)

    def execute(self, context: "Context") -> Any:
        """Poke as every sensor does, or look once and wait in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        looked = self.poke(context)
        if not looked.is_done and self._handle is not None:
            self.defer_until(self._handle, time.time() + self.timeout)
        return looked.xcom_value

    def failure(self, error: EdlError) -> Exception:
        """A passed deadline in Airflow's own words, so that ``soft_fail`` understands it."""
        return AirflowSensorTimeout(str(error)) if isinstance(error, StageTimeoutError) else error


class JobSensor(StageSensor):
    """Wait for a job's phase, training step or condition; what is given must hold at once.

    A job that is not there yet is waited for. One that ends in a phase from which the goal can't be reached fails the task.
    Returns (XCom) what `SubmitJobOperator` does.

    Args:
        name: the job's.
        phases: any of these: Pending, Running, Scaling, Restarting, Suspended, Succeeded, Failed; Succeeded if nothing is given.
            Also as text, a list's or with commas between.
        step: the global step to have reached.
        condition: a condition's type, or with a status other than True: ``Running=False``.
        kind: of the job.
        kwargs: as `StageTask` and every sensor: ``timeout``, ``soft_fail``; ``poke_interval`` and ``mode`` where it is not deferred.
    """

    stage_name: ClassVar[str] = "wait"
    template_fields: Sequence[str] = (
        "name", "namespace", "phases", "step", "condition", "kubernetes_conn_id", "config_file", "cluster_context",
    )  # fmt: skip

    def __init__(
        self,
        *,
        name: str,
        phases: Iterable[str] | str | None = None,
        step: int | str | None = None,
        condition: str | None = None,
        kind: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.phases = phases
        self.step = step
        self.condition = condition
        self.kind = kind

    def request_values(self) -> dict[str, Any]:
        """Which job, and what of it."""
        phases = given_or_none(self.phases)
        return {
            "name": self.name,
            "kind": self.kind,
            "phases": phases and rendered_list(phases, "phases"),
            "step": given_or_none(self.step),
            "condition": self.condition,
        }
