"""Pods that nobody will ever run, because the API server refuses them as invalid, or the node refuses them.
Jobs of all kinds end soon, and say what their user has to change.
"""

import copy
from typing import Any

import pytest

from edl_workflows.core.jobs.actions import Refusal
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.refused_pods import own_paths
from edl_workflows.core.jobs.view import JobPhase
from tests.cases.kinds import KIND_CASES
from tests.jobs_namespace import JobsNamespace

JOB_KINDS = [kind for kind in KINDS if kind.view is not None]
each_kind = pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: kind.name)
WORDS = "cannot create Pod default/p: spec.containers[0].env[0].value: must be a string"


class RefusedJob:
    """A job whose pods are refused."""

    def __init__(self, kind: Kind, *, invalid: bool) -> None:
        self.kind, self.world = kind, JobsNamespace()
        job = self.world.add(copy.deepcopy(KIND_CASES[kind.name].example))
        self.name = job["metadata"]["name"]
        for pod in self.wanted_pods():
            self.world.refuse[pod] = Refusal("Pod", pod, invalid, WORDS)

    def wanted_pods(self) -> list[str]:
        trial = JobsNamespace()
        trial.add(copy.deepcopy(KIND_CASES[self.kind.name].example))
        trial.settle()
        return [name for what, name in trial.objects if what == "Pod"]

    @property
    def job(self) -> dict[str, Any]:
        return self.world.objects[self.kind.name, self.name]

    @property
    def phase(self) -> JobPhase:
        return self.kind.view_stored(self.job).phase


@each_kind
def test_an_invalid_pod_ends_its_job(kind: Kind) -> None:
    """The API server refuses a pod with 400 or 422, and nobody edits pods: the job fails at once, with the
    refusal as its message, and the final status is complete."""
    refused = RefusedJob(kind, invalid=True)
    refused.world.settle()
    status = refused.job["status"]

    assert refused.phase is JobPhase.FAILED
    assert status["reason"] == "PodRefused"
    assert "env[0].value: must be a string" in status["message"]
    assert status["completionTime"]
    assert any(c["type"] == "Failed" and c["status"] == "True" for c in status["conditions"])
    assert [event.reason for event in refused.world.events].count("PodRefused") == 1


@each_kind
def test_what_a_policy_or_a_quota_refuses_is_tried_again(kind: Kind) -> None:
    """Whoever keeps the policy or the quota can let the pods in."""
    refused = RefusedJob(kind, invalid=False)
    for _ in range(3):
        refused.world.reconcile()
    assert refused.phase is not JobPhase.FAILED
    assert refused.job["status"]["reason"] == "CreateRefused"
    refused.world.refuse.clear()
    refused.world.tick(30)
    refused.world.settle()
    assert any(what == "Pod" for what, _ in refused.world.objects)


@each_kind
def test_a_pod_that_no_node_can_run_ends_its_job(kind: Kind) -> None:
    """The node refuses a pod before it starts anything of it, for a reason that holds on any node. The job of
    any kind fails with the node's words, whatever its restart policy."""
    world = JobsNamespace()
    job = copy.deepcopy(KIND_CASES[kind.name].example)
    for spec in job["spec"].get("tfReplicaSpecs", job["spec"].get("pytorchReplicaSpecs", {})).values():
        spec["restartPolicy"] = "ExitCode"
    name = world.add(job)["metadata"]["name"]
    world.settle()
    for (what, pod), manifest in list(world.objects.items()):
        if what == "Pod":
            world.set_pod(pod, "Failed", None, "Unsupported")
            manifest["status"]["message"] = "the embedded cluster can't run this pod: tty: not supported"
    for _ in range(3):
        world.settle()
        world.tick(1.0)
    stored = world.objects[kind.name, name]

    assert kind.view_stored(stored).phase is JobPhase.FAILED
    assert "tty: not supported" in stored["status"]["message"]


@pytest.mark.parametrize(
    ("spec", "role", "message", "expected"),
    [
        (
            {"tfReplicaSpecs": {"PS": {"template": {}}, "Worker": {"template": {}}}},
            "worker",
            "cannot create Pod a/b: spec.containers[0].name: Required",
            "cannot create Pod a/b: spec.tfReplicaSpecs.Worker.template.spec.containers[0].name: Required",
        ),
        (
            {"tasks": [{"type": "learner", "template": {}}, {"type": "collector", "template": {}}]},
            "collector",
            "cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value",
            "cannot unmarshal number into Go struct field spec.tasks[1].template.spec.containers.env.value",
        ),
        ({"image": "x"}, "trainer", "spec.containers[0].image: bad", "spec.containers[0].image: bad"),
    ],
)
def test_paths_are_those_of_the_users_job(
    spec: dict[str, Any], role: str, message: str, expected: str
) -> None:
    """A user has no pods, but templates of roles; a job without templates keeps the pod's paths."""
    assert own_paths({"spec": spec}, role, message) == expected
