"""The rows that the monitor makes from manifests."""

from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.scale_plan.model import ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.services.brain import observations
from edl_workflows.services.brain.observations import ChangeObservation, ClusterObservation, RoleObservation

GIB = 2.0**30


def node(name: str, cpu: str = "8", *, ready: str = "True") -> dict[str, Any]:
    """A node as the API returns it."""
    status = {
        "allocatable": {"cpu": cpu, "memory": "16Gi"},
        "conditions": [{"type": "Ready", "status": ready}],
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}


def pod(
    name: str, phase: str = "Running", *, on: str = "n1", job: str = "", **metadata: Any
) -> dict[str, Any]:
    """A pod with one core as the API returns it."""
    labels = {names.JOB_LABEL: job} if job else {}
    container = {"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "labels": labels, **metadata},
        "spec": {"nodeName": on, "containers": [container]} if on else {"containers": [container]},
        "status": {"phase": phase},
    }


def elastic_job(**status: Any) -> dict[str, Any]:
    """A valid job."""
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    metadata = {"name": "mnist", "namespace": "ns", "uid": "u1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": metadata,
        "spec": {"replicaSpecs": {"worker": {"replicas": 2, "template": template}}},
        "status": status,
    }


def plan(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A ScalePlan."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u2", **metadata},
        "spec": {"ownerJob": "mnist", **spec},
    }


def test_a_sample_counts_what_holds_room() -> None:
    """Ready nodes count as capacity; pods that are bound and have not ended count as requests; pods that are
    being deleted do not count."""
    pods = [
        pod("runs"),
        pod("starts", "Pending"),
        pod("waits", "Pending", on=""),
        pod("over", "Succeeded"),
        pod("going", deletionTimestamp="2026-01-01T00:00:00Z"),
    ]
    nodes = [node("n1"), node("n2", "4", ready="False"), node("n3", "500m")]

    sample = observations.sample_cluster(
        [observations.reduce_node(one) for one in nodes],
        [observations.reduce_pod(one) for one in pods],
        {"cpu": 0.5},
        7.0,
    )

    expected = ClusterObservation(
        time=7.0,
        nodes=3,
        nodes_ready=2,
        allocatable={"cpu": 8.5, "memory": 32 * GIB},
        requested={"cpu": 2.0, "memory": 2 * GIB, "pods": 2.0},
        used={"cpu": 0.5},
        pods_running=1,
        pods_pending=2,
    )
    assert expected == sample


def test_no_node_is_a_sample_too() -> None:
    """An empty cluster gives a sample without resources."""
    assert ClusterObservation(time=1.0) == observations.sample_cluster([], [], {}, 1.0)


def test_a_jobs_pods_are_added_up() -> None:
    """Pods are summed up by the job label of their kind and by namespace. Pods that wait or have ended
    request nothing."""
    pods = [
        pod("a", job="mnist"),
        pod("b", job="mnist"),
        pod("c", "Pending", on="", job="mnist"),
        pod("d", "Failed", job="mnist"),
        pod("e"),
    ]

    held = observations.requests_by_job(map(observations.reduce_pod, pods))

    assert held == {(names.JOB_LABEL, "ns", "mnist"): {"cpu": 2.0, "memory": 2 * GIB, "pods": 2.0}}
    job = observations.with_requests(
        observations.observe_job(ELASTIC_JOB, elastic_job()), names.JOB_LABEL, held
    )
    assert job.requests["cpu"] == 2.0


def test_metrics_are_added_up() -> None:
    """The metrics of all nodes are summed up."""
    found = [{"usage": {"cpu": "250m", "memory": "1Gi"}}, {"usage": {"cpu": "1"}}, {}]

    assert observations.total_usage(found) == {"cpu": 1.25, "memory": GIB}


def test_a_job_is_told_with_its_plan() -> None:
    """A job's row has its phase, replicas, progress and the plan of its optimizer, with times in Unix
    seconds."""
    seen = observations.observe_job(
        ELASTIC_JOB,
        elastic_job(
            phase="Running",
            startTime="2026-01-01T00:00:10Z",
            replicaStatuses={"worker": {"desired": 2, "ready": 1}, "dlrover-master": {"desired": 1}},
            progress={"step": 40, "speed": 2.5},
            autoscaling={
                "optimizer": "brain",
                "stage": "job_stage_running",
                "reasons": {"worker": "more pay"},
                "notes": ["ps: enough"],
            },
        ),
    )

    assert (
        seen.phase,
        seen.step,
        seen.speed,
        seen.created,
        seen.started,
    ) == ("Running", 40, 2.5, 1767225600.0, 1767225610.0)
    assert {"worker": RoleObservation(2, 1)} == seen.replicas
    assert (
        seen.optimizer,
        seen.stage,
        seen.reasons,
        seen.notes,
    ) == ("brain", "job_stage_running", {"worker": "more pay"}, ("ps: enough",))


@pytest.mark.parametrize("speed", [-1.0, float("inf"), float("nan")], ids=str)
def test_a_speed_that_none_has_is_no_speed(speed: float) -> None:
    """A speed that is negative or not finite is stored as 0."""
    assert (
        observations.observe_job(ELASTIC_JOB, elastic_job(progress={"step": 1, "speed": speed})).speed == 0.0
    )


def test_a_job_that_does_not_validate_is_told() -> None:
    """A job that does not validate is reported with its phase and the error."""
    broken = elastic_job(phase="Running")
    broken["spec"]["replicaSpeks"] = {}

    seen = observations.observe_job(ELASTIC_JOB, broken)

    assert (seen.phase, seen.reason, seen.uid) == ("Running", "InvalidSpec", "u1")
    assert "replicaSpeks" in seen.message


def test_texts_are_cut() -> None:
    """Texts of manifests are cut to a maximal length, so that their author can't fill the store."""
    notes, reasons = ["x" * 5000] * 100, {f"worker-{index}": "y" * 5000 for index in range(100)}

    seen = observations.observe_job(
        ELASTIC_JOB, elastic_job(message="z" * 5000, autoscaling={"notes": notes, "reasons": reasons})
    )

    assert len(seen.notes) == observations.MAX_LINES + 1
    assert seen.notes[-1] == "and 80 more"
    assert len(seen.reasons) == observations.MAX_LINES
    texts = [seen.message, *seen.notes, *seen.reasons.values()]
    assert max(map(len, texts)) == observations.MAX_TEXT


def test_a_plan_is_told_with_its_reason() -> None:
    """A plan is stored with its changes and its reason. It has no phase until an executor has seen it."""
    manifest = plan({"replicaResourceSpecs": {"worker": {"replicas": 4}}, "reason": "workers are short"})

    expected = ChangeObservation(
        uid="u2",
        namespace="ns",
        name="p",
        job="mnist",
        changes=("worker: 4 replicas",),
        reason="workers are short",
    )
    assert expected == observations.observe_plan(manifest)


def test_what_only_carries_out_is_not_told() -> None:
    """Auto plans, which carry out other plans, and invalid plans are not recorded."""
    auto = plan({}, labels={names.JOB_LABEL: "mnist", names.SCALE_TYPE_LABEL: names.SCALE_AUTO})

    assert observations.observe_plan(auto) is None
    assert observations.observe_plan(plan({"replicaResourceSpeks": {}})) is None


CHANGES = [
    pytest.param(
        {"replicaResourceSpecs": {"worker": {"replicas": 1, "resource": {"cpu": "2", "memory": "4Gi"}}}},
        ["worker: 1 replica with 2 CPU, 4Gi memory"],
        id="count and size",
    ),
    pytest.param(
        {"replicaResourceSpecs": {"ps": {"resource": {"gpu": "1"}}}}, ["ps: with 1 GPU"], id="size alone"
    ),
    pytest.param(
        {"replicaResourceSpecs": {"worker": {"resource": {"gpu": "1", "gpuType": "Tesla-V100"}}}},
        ["worker: with 1 GPU, GPUs of type Tesla-V100"],
        id="type of GPUs",
    ),
    pytest.param({"replicaResourceSpecs": {"ps": {}}}, ["ps: as it is"], id="nothing"),
    pytest.param(
        {"migratePods": [{"name": "m-edljob-ps-0", "resource": {"cpu": "8"}}], "checkpoint": True},
        ["replace m-edljob-ps-0 with 8 CPU", "take a checkpoint first"],
        id="migration",
    ),
    pytest.param({"migrateRanks": {0: {"memory": "8Gi"}}}, ["replace ps 0 with 8Gi memory"], id="rank"),
    pytest.param({"removePods": [{"name": "a"}, {"name": "b"}]}, ["remove 2 pods"], id="removal"),
    pytest.param({"checkpoint": True}, ["take a checkpoint"], id="checkpoint"),
]


@pytest.mark.parametrize(("spec", "lines"), CHANGES)
def test_changes_in_words(spec: dict[str, Any], lines: list[str]) -> None:
    """Each change of a plan is a line."""
    assert lines == observations.describe_changes(ScalePlanSpec.model_validate(spec))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_kept_small(kind: Any) -> None:
    """Only the identity and the row of a job are kept, even if it is invalid."""
    manifest = {"kind": kind.name, "metadata": {"name": "x", "uid": "u"}, "spec": {"wrong": ["long"] * 1000}}

    kept = observations.reducer_of(kind)(manifest)

    assert {"apiVersion", "kind", "metadata", observations.SEEN} == set(kept)
