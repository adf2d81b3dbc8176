"""Sensors on ElasticJobs and their plans."""

from collections.abc import Sequence
from typing import Any, ClassVar

from edl_workflows.sensors.job import JobSensor, StageSensor


class ElasticJobSensor(JobSensor):
    """Wait for an ElasticJob; all as `JobSensor`."""

    def __init__(self, *, kind: str = "ElasticJob", **kwargs: Any) -> None:
        super().__init__(kind=kind, **kwargs)


class ScalePlanSensor(StageSensor):
    """Wait until a ScalePlan has reached a phase, or a later one. A plan that fails fails the task.

    Returns (XCom) what the operators that make plans do.

    Args:
        name: the plan's, as ``migrate.output["name"]``.
        phase: Pending, Checkpointing, Checkpointed, Migrating, Restarting, Verifying or Succeeded.
        kwargs: as `ElasticJobSensor`.
    """

    stage_name: ClassVar[str] = "wait-plan"
    template_fields: Sequence[str] = (
        "name", "namespace", "phase", "kubernetes_conn_id", "config_file", "cluster_context",
    )  # fmt: skip

    def __init__(self, *, name: str, phase: str = "Succeeded", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.phase = phase

    def request_values(self) -> dict[str, Any]:
        """Which plan, and how far."""
        return {"name": self.name, "phase": self.phase}
