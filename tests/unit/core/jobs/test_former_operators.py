"""Jobs whose status was written by the operator of their kind that ran before ours."""

from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.view import JobPhase, JobView
from tests.cases.kinds.di_job import make_di_job
from tests.cases.kinds.elastic_job import make_elastic_job
from tests.cases.kinds.tf_job import make_tf_job
from tests.cases.kinds.training_job import make_training_job
from tests.jobs_namespace import JobsNamespace

Manifest = dict[str, Any]
HANDED_OVER = {"elastic.iml.github.io/take-over": "true"}
START, END = "2024-05-01T10:00:00Z", "2024-05-01T12:00:00Z"


def condition(kind: str, status: str = "True", reason: str = "") -> Manifest:
    """A condition as the Kubeflow operators, DLRover and DI-orchestrator write it."""
    return {
        "type": kind, "status": status, "reason": reason or f"TFJob{kind}", "message": f"said of {kind}",
        "lastUpdateTime": END, "lastTransitionTime": END,
    }  # fmt: skip


def of_tf_operator(*conditions: Manifest, **fields: Any) -> Manifest:
    """A TFJob's status: no phase, and counters without those that are 0."""
    return {
        "conditions": [condition("Created"), condition("Running", "False"), *conditions],
        "replicaStatuses": {
            "PS": {"active": 1},
            "Worker": {"succeeded": 2, "labelSelector": {"matchLabels": {}}},
        },
        "startTime": START,
        "completionTime": END,
    } | fields  # fmt: skip


SUCCEEDED, FAILED = condition("Succeeded"), condition("Failed")
FINISHED = {
    "TFJob succeeded": (make_tf_job(), of_tf_operator(SUCCEEDED), JobPhase.SUCCEEDED),
    "TFJob failed": (make_tf_job(), of_tf_operator(condition("Restarting"), FAILED), JobPhase.FAILED),
    "TFJob whose chief succeeded before a worker failed": (
        make_tf_job(),
        of_tf_operator(SUCCEEDED, FAILED),
        JobPhase.FAILED,
    ),
    "TFJob refused as invalid": (
        make_tf_job(),
        {"conditions": [condition("Failed", reason="InvalidTFJobSpec")], "replicaStatuses": None},
        JobPhase.FAILED,
    ),
    "TFJob succeeded, with a spec that we refuse": (
        make_tf_job(Worker=(1, "Sometimes")),
        of_tf_operator(SUCCEEDED),
        JobPhase.SUCCEEDED,
    ),
    "suspended TFJob that had succeeded": (
        make_tf_job(policies={"suspend": True}),
        of_tf_operator(SUCCEEDED),
        JobPhase.SUCCEEDED,
    ),
    "ElasticJob of DLRover": (
        make_elastic_job(),
        {
            "phase": "Succeeded",
            "status": {"conditions": [condition("Succeeded", reason="JobSucceeded")], "startTime": START},
        },
        JobPhase.SUCCEEDED,
    ),
    "TrainingJob": (
        make_training_job(),
        {
            "phase": "succeeded", "reason": "Success", "scale_status": {},
            "replica_statuses": [{"training_resource_type": "TRAINER", "state": "", "resource_states": {}}],
        },
        JobPhase.SUCCEEDED,
    ),
    "TrainingJob with records of scaling": (
        make_training_job(),
        {"phase": "failed", "scale_records": {"ScaleRecords": []}},
        JobPhase.FAILED,
    ),
    "DIJob": (
        make_di_job(),
        {
            "phase": "Succeeded", "replicas": 4, "readyReplicas": 0, "restarts": 1,
            "completionTimestamp": END,
            "conditions": [condition("Running", "False"), condition("Succeeded", reason="JobSucceeded")],
        },
        JobPhase.SUCCEEDED,
    ),
    "DIJob whose phase was not written": (
        make_di_job(),
        {"phase": "Unknown", "conditions": [condition("Failed", reason="JobFailed")]},
        JobPhase.FAILED,
    ),
}  # fmt: skip


def seen(world: JobsNamespace, manifest: Manifest) -> JobView:
    """The job as pipelines see it."""
    row = kinds.kind_of(manifest["kind"])
    assert row.view is not None
    return row.view(row.model.parse(world.objects[row.name, manifest["metadata"]["name"]]))


def taken_over(manifest: Manifest, status: Manifest) -> tuple[JobsNamespace, Manifest]:
    """A world in which our controller finds a job with this status."""
    world = JobsNamespace()
    job = world.add({**manifest, "status": status})
    world.settle()
    return world, job


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_job_is_not_trained_again(name: str) -> None:
    """A job that a former operator finished stays finished, whether its status says so by a phase or only by
    conditions."""
    manifest, status, phase = FINISHED[name]
    world, job = taken_over(manifest, status)

    assert [key for key in world.objects if key[0] in ("Pod", "Service", "Secret", "ConfigMap")] == []
    assert job["status"]["phase"].capitalize() == phase
    assert [event.reason for event in world.events] == []


@pytest.mark.parametrize("name", [name for name in FINISHED if "refuse" not in name])
def test_a_finished_job_is_seen_as_finished(name: str) -> None:
    """A job that a former operator finished is seen as finished both before and after our controller has
    updated its status."""
    manifest, status, phase = FINISHED[name]
    untouched = JobsNamespace()
    untouched.add({**manifest, "status": status})
    world, _ = taken_over(manifest, status)

    assert (seen(untouched, manifest).phase, seen(world, manifest).phase) == (phase, phase)


def test_what_the_former_operator_counted_and_timed_stays() -> None:
    """A finished TFJob keeps its times, its reason and the counts of replicas whose pods are gone."""
    _, job = taken_over(make_tf_job(), of_tf_operator(SUCCEEDED))

    status = job["status"]
    assert (status["startTime"], status["completionTime"]) == (START, END)
    assert (status["reason"], status["message"]) == ("TFJobSucceeded", "said of Succeeded")
    assert status["replicaStatuses"]["Worker"]["succeeded"] == 2


def test_the_time_to_live_goes_on() -> None:
    """A TFJob whose time to live had started under the former operator is deleted when it is over."""
    manifest = make_tf_job(policies={"ttlSecondsAfterFinished": 60})
    world, _ = taken_over(manifest, of_tf_operator(SUCCEEDED))

    assert ("TFJob", "mnist") not in world.objects


@pytest.mark.parametrize("name", [name for name in FINISHED if "refuse" not in name])
def test_the_time_to_live_of_the_installation_is_for_its_own_jobs(name: str) -> None:
    """A job that another operator finished is never deleted unless the job itself says so: that operator, or
    its users, may still need it."""
    manifest, status, phase = FINISHED[name]
    world = JobsNamespace()
    world.settings = replace(world.settings, ttl_seconds_after_finished=86400)
    world.add({**manifest, "status": status})
    for _ in range(3):
        world.settle()
        world.tick(86400 * 365)

    assert seen(world, manifest).phase == phase


def test_a_suspended_job_stays_suspended_until_it_is_resumed() -> None:
    """A TFJob that training-operator had suspended gets no pods; handed over and resumed it is started like a
    new one."""
    suspended = of_tf_operator(
        condition("Suspended"), startTime=None, completionTime=None, replicaStatuses={}
    )
    world, _ = taken_over(make_tf_job(policies={"suspend": True}), suspended)
    before = (
        seen(world, make_tf_job()).phase.capitalize(),
        [name for kind, name in world.objects if kind == "Pod"],
    )
    world.edit("TFJob", "mnist", {"metadata": {"annotations": HANDED_OVER}})
    world.settle()
    world.edit("TFJob", "mnist", {"spec": {"runPolicy": {"suspend": False}}})
    world.settle()

    assert before == ("Suspended", [])
    assert sorted(name for kind, name in world.objects if kind == "Pod") == [
        "mnist-ps-0", "mnist-worker-0", "mnist-worker-1",
    ]  # fmt: skip


@pytest.mark.parametrize("state", ["Created", "Running", "Restarting", "Suspended"])
def test_a_job_without_pods_at_the_moment_is_left_to_its_operator(state: str) -> None:
    """Kubeflow's operator has no pod for a job that it has just seen, whose pods it replaces, or that it
    suspended. Its conditions show that it runs the job."""
    conditions = [condition(state)] if state != "Created" else []
    status = of_tf_operator(*conditions, replicaStatuses={}, completionTime=None)
    world, job = taken_over(make_tf_job(), status)

    assert list(world.objects) == [("TFJob", "mnist")]
    assert job["status"]["conditions"][-1]["type"] == "LeftAlone"
    assert "another operator wrote the status" in job["status"]["conditions"][-1]["message"]


def test_a_running_job_begins_anew_with_its_restarts_told() -> None:
    """When a job of training-operator is handed over, the pods that it created are replaced, since they were
    given another cluster: servers only after the workers have ended. The job counts as restarting, not as
    new."""
    world = JobsNamespace()
    running = of_tf_operator(replicaStatuses={"Worker": {"active": 1}}, completionTime=None)
    running["conditions"][1]["status"] = "True"
    job = world.add({**make_tf_job(), "status": running})
    job["metadata"]["annotations"] = HANDED_OVER
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "mnist", "uid": job["metadata"]["uid"]}
    owner |= {"controller": True}
    old = {}
    for role in ("ps", "worker"):
        labels = {
            "training.kubeflow.org/operator-name": "tfjob-controller",
            "training.kubeflow.org/job-name": "mnist",
            "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": "0",
        }
        name = f"mnist-{role}-0"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]},
        }
        old[name] = world.add(pod)["metadata"]["uid"]
        world.set_pod(name, "Running")

    def pods() -> Manifest:
        return {name: obj["metadata"] for (kind, name), obj in world.objects.items() if kind == "Pod"}

    world.settle()
    assert job["status"]["phase"] == "Restarting"
    assert [name for name, pod in pods().items() if "deletionTimestamp" in pod] == ["mnist-worker-0"]
    world.reap()
    world.settle()
    assert [name for name, pod in pods().items() if "deletionTimestamp" in pod] == ["mnist-ps-0"]
    world.reap()
    world.settle()

    assert pods().keys() == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    assert {pod["uid"] for pod in pods().values()}.isdisjoint(old.values())


def test_a_running_job_of_dlrover_ends_as_its_own_master_ends() -> None:
    """When a job of DLRover's operator is handed over, its master is not replaced while it runs, and its exit
    ends the job."""
    world = JobsNamespace()
    job = world.add({**make_elastic_job(), "status": {"phase": "Running", "status": {"conditions": []}}})
    job["metadata"]["annotations"] = HANDED_OVER
    name = "elasticjob-digits-dlrover-master-0"
    labels = {
        "app.kubernetes.io/name": "elasticjob",
        "elasticjob.dlrover/name": "digits",
        "elasticjob.dlrover/replica-type": "dlrover-master",
        "elasticjob.dlrover/replica-index": "0",
    }
    owner = {
        "apiVersion": job["apiVersion"], "kind": "ElasticJob", "name": "digits",
        "uid": job["metadata"]["uid"], "controller": True,
    }  # fmt: skip
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    container = {"name": "main", "image": "dlrover-master:1"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    world.add(pod)
    world.set_pod(name, "Running")
    world.settle()
    while_it_runs = (job["status"]["phase"], [name for kind, name in world.objects if kind == "Pod"])
    world.set_pod(name, "Succeeded", 0)
    world.settle()

    assert while_it_runs == ("Running", [name])
    assert job["status"]["phase"] == "Succeeded"
