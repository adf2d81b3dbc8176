"""Jobs whose pods another operator of their kind made."""

from typing import Any

import pytest

from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from tests.cases.kinds import KIND_CASES
from tests.cases.kinds.di_job import make_di_job
from tests.cases.kinds.elastic_job import make_elastic_job
from tests.cases.kinds.training_job import make_training_job
from tests.cases.kubeflow import KUBEFLOW_KINDS
from tests.jobs_namespace import JobsNamespace

Manifest = dict[str, Any]
KUBEFLOW = "training.kubeflow.org"


def _made_by_kubeflow(kind: str) -> tuple[Manifest, str, Manifest]:
    """A job, and its worker as training-operator names and labels it."""
    job = KIND_CASES[kind].example
    name = job["metadata"]["name"]
    labels = {
        "operator-name": f"{kind.lower()}-controller",
        "job-name": name,
        "replica-type": "worker",
        "replica-index": "0",
    }
    return job, f"{name}-worker-0", {f"{KUBEFLOW}/{key}": label for key, label in labels.items()}


JOBS: dict[str, tuple[Manifest, str, Manifest]] = {
    **{kind: _made_by_kubeflow(kind) for kind in KUBEFLOW_KINDS},
    "DIJob": (
        make_di_job(),
        "gobigger-learner-0",
        {"diengine/job": "gobigger", "diengine/operator": "di-operator", "diengine/task-name": "learner",
         "diengine/generation": "0", "diengine/task-rank": "0"},
    ),
    "TrainingJob": (
        make_training_job(),
        "ctr-trainer-0",
        {"paddlepaddle.org/job-name": "ctr", "paddlepaddle.org/replica-type": "trainer",
         "paddlepaddle.org/replica-index": "0"},
    ),
    "ElasticJob": (
        make_elastic_job(),
        "elasticjob-digits-dlrover-master",
        {"app": "dlrover", "elasticjob.dlrover/name": "digits",
         "elasticjob.dlrover/replica-type": "dlrover-master", "elasticjob.dlrover/replica-index": "0"},
    ),
}  # fmt: skip
"""Kind → a job, and the name and labels of a pod as the kind's other operator makes it."""


def test_each_kind_is_shown_beside_its_other_operator() -> None:
    """The tests of this module cover all kinds."""
    assert JOBS.keys() == KIND_CASES.keys(), "JOBS needs a pod as the kind's other operator makes it"


def beside_another(kind: str) -> tuple[JobsNamespace, Manifest]:
    """A job of this kind, one running pod of which another operator made."""
    world, (manifest, name, labels) = JobsNamespace(), JOBS[kind]
    job = world.add(manifest)
    label = kinds.kind_of(kind).labels[0]
    owner = {
        "apiVersion": job["apiVersion"], "kind": kind, "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"], "controller": True,
    }  # fmt: skip
    metadata = {
        "name": name,
        "labels": labels | {label: job["metadata"]["name"]},
        "ownerReferences": [owner],
    }
    spec = {"containers": [{"name": "main", "image": "train:1"}]}
    world.add({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    world.set_pod(name, "Running")
    return world, job


def children(world: JobsNamespace) -> dict[str, str]:
    """Uids of all objects but the job, by name; "" for one that is being deleted."""
    return {
        name: "" if obj["metadata"].get("deletionTimestamp") else obj["metadata"]["uid"]
        for (kind, name), obj in world.objects.items()
        if kind not in JOBS
    }


def left_alone(job: Manifest) -> Manifest:
    """The job's condition."""
    conditions: list[Manifest] = (job.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == "LeftAlone"), {})


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_that_another_operator_runs_is_left_alone(kind: str) -> None:
    """Nothing of such a job is created, deleted or changed, except that a condition and one Event say why."""
    world, job = beside_another(kind)
    before = children(world)
    world.settle()

    assert children(world) == before
    assert set(job["status"]) == {"conditions"}
    assert left_alone(job)["status"] == "True"
    assert next(iter(before)) in left_alone(job)["message"]
    assert [event.reason for event in world.events] == ["PodsOfAnotherOperator"]


@pytest.mark.parametrize("kind", JOBS)
def test_it_stays_left_alone_between_two_pods_of_the_other_operator(kind: str) -> None:
    """An operator that replaces a pod deletes it first. In between, the job is not started here."""
    world, job = beside_another(kind)
    world.settle()
    for name in children(world):
        del world.objects["Pod", name]
    world.settle()

    assert children(world) == {}
    assert left_alone(job)["status"] == "True"


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_is_taken_over_on_request(kind: str) -> None:
    """With the annotation the job is run here: it gets pods of ours, and the condition turns False."""
    world, job = beside_another(kind)
    before = set(children(world).values())
    world.settle()
    world.edit(
        kind, job["metadata"]["name"], {"metadata": {"annotations": {names.TAKE_OVER_ANNOTATION: "true"}}}
    )
    for _ in range(5):
        world.settle()
        world.reap()
        if kind == "ElasticJob":  # a running master is kept
            world.objects.pop(("Pod", JOBS[kind][1]), None)
    world.settle()

    assert left_alone(job)["status"] == "False"
    assert job["status"]["phase"]
    pods = {obj["metadata"]["uid"] for (child, _), obj in world.objects.items() if child == "Pod"}
    assert pods
    assert pods.isdisjoint(before)


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_that_is_run_here_stays_so(kind: str) -> None:
    """A pod that somebody else makes for a job with pods of ours does not stop the job."""
    other, _ = beside_another(kind)
    name, labels = JOBS[kind][1], other.objects["Pod", JOBS[kind][1]]["metadata"]["labels"]
    world = JobsNamespace()
    job = world.add(JOBS[kind][0])
    world.settle()
    owner = {"apiVersion": job["apiVersion"], "kind": kind, "name": job["metadata"]["name"]}
    owner |= {"uid": job["metadata"]["uid"], "controller": True}
    metadata = {"name": f"{name}-9", "labels": labels, "ownerReferences": [owner]}
    spec = {"containers": [{"name": "main", "image": "train:1"}]}
    world.add({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    world.settle()

    assert left_alone(job) == {}


def test_a_job_that_is_left_alone_tells_pipelines_why() -> None:
    """Kubeflow's operator writes conditions and no phase. Pipelines see the phase that the conditions mean,
    and why this controller does nothing."""
    world, job = beside_another("TFJob")
    running = [{"type": name, "status": "True", "reason": f"TFJob{name}"} for name in ("Created", "Running")]
    world.edit("TFJob", "mnist", {"status": {"conditions": running}})
    world.settle()
    view = kinds.kind_of("TFJob").view_stored(job)

    assert (view.phase, view.reason) == (JobPhase.RUNNING, "PodsOfAnotherOperator")
    assert [c["type"] for c in job["status"]["conditions"]] == ["Created", "Running", "LeftAlone"]
    assert names.TAKE_OVER_ANNOTATION in view.message


def test_plans_of_a_job_that_is_left_alone_are_left_alone() -> None:
    """DLRover's operator carries out the auto plans of its masters; a second pod for each node would train
    beside the first."""
    world, job = beside_another("ElasticJob")
    world.settle()
    before = children(world)
    labels = {"elasticjob.dlrover/name": "digits", "scale-type": "auto"}
    metadata = {"name": "digits-plan-0", "labels": labels}
    pod = {"name": "digits-worker-0", "type": "worker", "id": 0, "rankIndex": 0}
    spec = {"ownerJob": "digits", "createPods": [pod]}
    plan = world.add(
        {"apiVersion": job["apiVersion"], "kind": "ScalePlan", "metadata": metadata, "spec": spec}
    )
    world.settle()

    assert "status" not in plan
    assert {name: uid for name, uid in children(world).items() if name in before} == before
    assert set(children(world)) == {*before, "digits-plan-0"}
