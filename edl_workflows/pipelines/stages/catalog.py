"""The registry of all stages, for drivers that are given the name of a stage: the CLI, Argo's agent,
Airflow's operators."""

from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.stages.apply_plan import APPLY_PLAN
from edl_workflows.pipelines.stages.autoscale import AUTOSCALE
from edl_workflows.pipelines.stages.cancel import CANCEL
from edl_workflows.pipelines.stages.checkpoint import CHECKPOINT
from edl_workflows.pipelines.stages.collect import COLLECT
from edl_workflows.pipelines.stages.delete import DELETE
from edl_workflows.pipelines.stages.description import StageSpec
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS
from edl_workflows.pipelines.stages.plan_scale import PLAN_SCALE
from edl_workflows.pipelines.stages.scale import SCALE
from edl_workflows.pipelines.stages.submit import SUBMIT
from edl_workflows.pipelines.stages.suspend import RESUME, SUSPEND
from edl_workflows.pipelines.stages.wait import WAIT, WAIT_PLAN

STAGES: tuple[StageSpec[Any], ...] = (
    SUBMIT, WAIT, WAIT_PLAN, COLLECT, CANCEL, SCALE, CHECKPOINT, MIGRATE_PS, PLAN_SCALE, APPLY_PLAN,
    SUSPEND, RESUME, DELETE, AUTOSCALE,
)  # fmt: skip
"""In the order of Argo's template library ``edl-stages``, which leaves out `AUTOSCALE`."""


def stage_of(name: str) -> StageSpec[Any]:
    """The stage of a name.

    Raises:
        InvalidError: there is no such stage.
    """
    for stage in STAGES:
        if stage.name == name:
            return stage
    raise InvalidError(f"{name!r} is not a stage; the stages are {', '.join(stage.name for stage in STAGES)}")
