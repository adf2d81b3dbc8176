"""What a controller's cache keeps of objects."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from edl_workflows.core.jobs import cache_fields, manifests
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOBS
from edl_workflows.core.jobs.elastic_job.model import ElasticJobStatus
from edl_workflows.core.jobs.elastic_job.status import OWNED
from edl_workflows.core.kubernetes import pod_state
from tests.call_counts import count_calls

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "7", "labels": {"x": "y"},
        "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
        "annotations": {"long": "text"}, "managedFields": [{"manager": "kubelet"}],
        "ownerReferences": [{"kind": "ElasticJob", "name": "j", "uid": "2", "controller": True}],
    },
    "spec": {"containers": [{"name": "main", "image": "train:1", "env": []}, {"name": "log"}], "volumes": []},
    "status": {
        "phase": "Failed",
        "reason": "Evicted",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "False", "reason": "x", "message": "y"}],
        "containerStatuses": [
            {"name": "main", "image": "train:1", "state": {"terminated": {"exitCode": 3, "finishedAt": "t"}}}
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "read",
    [
        pod_state.has_ended,
        pod_state.is_ready,
        pod_state.own_end,
        manifests.was_disrupted,
        manifests.why_pending,
        manifests.owner_of,
        manifests.delete_object,
        manifests.is_terminating,
        manifests.waits_for_finalizer,
    ],
)
def test_decisions_read_the_same_of_what_is_kept(read: Any) -> None:
    """Every function that decides on a pod gives the same answer for the cached copy."""
    assert read(cache_fields.keep_pod(POD)) == read(POD)


def test_the_rest_goes() -> None:
    """The cache drops the pod template, addresses, annotations and managed fields."""
    pod = cache_fields.keep_pod(POD)
    assert pod["spec"] == {"containers": [{"name": "main"}, {"name": "log"}]}
    assert "podIP" not in pod["status"]
    assert pod["metadata"].keys().isdisjoint({"annotations", "managedFields"})


def test_a_secret_is_not_kept() -> None:
    """The cache keeps that a Secret exists, but not its content."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": POD["metadata"],
        "data": {"token": "c2VjcmV0"},
    }
    assert cache_fields.keep_head(secret).keys() == {"apiVersion", "kind", "metadata"}


def test_whole_objects_lose_only_bookkeeping() -> None:
    """A cached job has everything that its user wrote, and the original object is not changed."""
    assert cache_fields.keep_whole(POD) == {
        **POD,
        "metadata": {k: v for k, v in POD["metadata"].items() if k != "managedFields"},
    }
    assert "managedFields" in POD["metadata"]


def test_cached_job_has_what_the_controller_wrote() -> None:
    """The controller compares its decision with the status in its cache, so the cache keeps each field that
    it writes: a missing one would be written again and again, and an edit of the replicas would make no plan.
    """
    status = {
        "phase": "Running",
        "reason": "JobRunning",
        "message": "all run",
        "observedGeneration": 3,
        "conditions": [{"type": "Running", "status": "True"}],
        "replicaStatuses": {"worker": {"desired": 2, "active": 2}},
        "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "2026-01-02T00:00:00Z",
        "masterRestarts": 1,
        "scalePlan": "plan",
        "specReplicas": {"worker": 2},
    }
    progress = {"progress": {"step": 7}, "goodput": {"ratio": 1.0}}

    assert ELASTIC_JOBS.keep({**POD, "status": status | progress})["status"] == status
    assert {ElasticJobStatus.model_fields[field].alias for field in OWNED} == status.keys()


@pytest.mark.parametrize("keep", [cache_fields.keep_whole, ELASTIC_JOBS.keep])
def test_event_of_a_job_costs_the_same_with_a_long_history(keep: Callable[[Any], object]) -> None:
    """A cache keeps no history, and doesn't walk it: 100 points of history cost an event not one call more
    than no points."""
    job = {**POD, "status": {"phase": "Running", "history": []}}
    points = [{"time": "2026-01-01T00:00:00Z", "step": step, "nodes": {"worker": 2}} for step in range(100)]
    long = {**POD, "status": {"phase": "Running", "history": points}}

    assert count_calls(partial(keep, long)) == count_calls(partial(keep, job))
    assert "history" not in cache_fields.keep_whole(long)["status"]
