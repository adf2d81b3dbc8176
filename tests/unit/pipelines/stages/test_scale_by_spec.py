"""Jobs of kinds that are scaled by their spec: `edl_workflows.pipelines.stages.scale`."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import ConflictError, InvalidError
from edl_workflows.core.jobs.scale_plan.model import NodeResource, ReplicaResourceSpec
from edl_workflows.core.kubernetes.api import DI_JOBS
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from tests.cases.kinds.di_job import make_di_job
from tests.unit.core.jobs.di_jobs import NAME

ME = StageIdentity(owner="tests/scale")
THREE = ScaleRequest(job=NAME, kind="DIJob", replicas={"collector": ReplicaResourceSpec(replicas=3)})


class Meanwhile:
    """Before each edit of ours somebody else changes the evaluator, so often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left = times
        self._patch = client.patch
        monkeypatch.setattr(client, "patch", self)

    def __call__(self, cluster: Cluster, *arguments: Any) -> dict[str, Any]:
        if self.left:
            self.left -= 1
            tasks = client.get(cluster, DI_JOBS, NAME)["spec"]["tasks"]
            tasks[2]["replicas"] += 1
            self._patch(cluster, DI_JOBS, NAME, {"spec": {"tasks": tasks}})
        return self._patch(cluster, *arguments)


def replicas(cluster: Cluster) -> dict[str, int]:
    return {task["type"]: task["replicas"] for task in client.get(cluster, DI_JOBS, NAME)["spec"]["tasks"]}


def test_what_others_change_at_the_same_time_stays(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in the spec can only be replaced as a whole. If somebody else has changed it in the meantime,
    the edit is made again on the new list."""
    client.create(cluster, make_di_job())
    Meanwhile(monkeypatch, times=2)
    handle = SCALE.begin(cluster, THREE, ME)
    assert replicas(cluster) == {"learner": 1, "collector": 3, "evaluator": 3}
    assert handle.goal.model_dump()["nodes"] == 7


def test_a_status_that_is_written_often_delays_the_edit_only(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the pods of a job change, its controller may write the status many times in a row. The edit
    waits longer from attempt to attempt, and is made."""
    client.create(cluster, make_di_job())
    Meanwhile(monkeypatch, times=8)
    SCALE.begin(cluster, THREE, ME)
    assert replicas(cluster)["collector"] == 3


def test_a_type_of_gpus_is_refused(cluster: Cluster) -> None:
    """A job that is scaled by its spec has no field for a GPU type. The error says to set it in the pod
    template."""
    client.create(cluster, make_di_job())
    size = NodeResource(gpu_type="Tesla-V100")
    change = {"collector": ReplicaResourceSpec(replicas=3, resource=size)}
    with pytest.raises(InvalidError, match="template"):
        SCALE.begin(cluster, THREE.model_copy(update={"replicas": change}), ME)
    assert replicas(cluster)["collector"] == 2


def test_one_who_always_comes_first_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """If others change the job at each attempt, the stage gives up with ConflictError in the end."""
    client.create(cluster, make_di_job())
    monkeypatch.setattr(client, "CONFLICT_SECONDS", 0.5)
    Meanwhile(monkeypatch, times=1000)
    with pytest.raises(ConflictError):
        SCALE.begin(cluster, THREE, ME)
    assert replicas(cluster)["collector"] == 2
