"""Stages that tests run for a pipeline's task."""

import time
from typing import Any

from edl_workflows.kube.connect import Cluster
from edl_workflows.stages import driver
from edl_workflows.stages.catalog import stage_of
from edl_workflows.stages.goals import Handle
from edl_workflows.stages.identity import StageIdentity
from edl_workflows.stages.outputs import Outputs

ME = StageIdentity("airflow/dag/run/task/-1")
RETRY = StageIdentity(ME.owner, attempt="2")
CLEARED = StageIdentity(ME.owner, attempt="2", rerun=True)


def run(
    cluster: Cluster, stage: str, who: StageIdentity = ME, seconds: float = 30, **request: Any
) -> Outputs:
    """One stage from its beginning to its goal."""
    found = stage_of(stage)
    return driver.run_stage(cluster, found, found.request.of(request), who, time.time() + seconds)


def begin(cluster: Cluster, stage: str, who: StageIdentity = ME, **request: Any) -> Handle:
    """Only its beginning."""
    found = stage_of(stage)
    return found.begin(cluster, found.request.of(request), who)
