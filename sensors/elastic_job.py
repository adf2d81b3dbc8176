"""Sensors on ElasticJobs and their ScalePlans."""

from collections.abc import Sequence
from typing import Any, ClassVar

from edl_workflows.operators.base import WhenFinished
from edl_workflows.operators.cluster import CLUSTER_FIELDS
from edl_workflows.sensors.job import JobSensor, StageSensor


class ElasticJobSensor(JobSensor):
    """Wait for an ElasticJob. Arguments and result are those of `JobSensor`."""

    def __init__(self, *, kind: str = "ElasticJob", **kwargs: Any) -> None:
        super().__init__(kind=kind, **kwargs)


class ScalePlanSensor(StageSensor):
    """Wait until a ScalePlan has reached a phase or a later one. If the plan fails, the task fails.

    The result (XCom) is that of the operators that create plans.

    Args:
        name: name of the plan, as ``migrate.output["name"]``.
        phase: Pending, Checkpointing, Checkpointed, Migrating, Restarting, Verifying or Succeeded.
        if_finished: what to do if the job succeeds before the plan does: "skip" the task (default), "fail" it
            without retries, or let it "succeed".
        kwargs: arguments of `ElasticJobSensor`.
    """

    stage_name: ClassVar[str] = "wait-plan"
    template_fields: Sequence[str] = ("name", "phase", *CLUSTER_FIELDS)

    def __init__(
        self, *, name: str, phase: str = "Succeeded", if_finished: WhenFinished = "skip", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.if_finished = if_finished
        self.name = name
        self.phase = phase
