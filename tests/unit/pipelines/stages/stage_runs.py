"""Stages that tests run for a pipeline's task."""

import time
from typing import Any

from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.catalog import stage_of
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.outputs import Outputs
from edl_workflows.runtime.kube.connect import Cluster

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
