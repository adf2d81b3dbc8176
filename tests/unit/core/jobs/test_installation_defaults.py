"""What an installation sets for all jobs: the template below training pods, and the time to live."""

from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.manifests import put_below_pod
from edl_workflows.core.kubernetes import names
from tests.cases.kinds import KIND_CASES
from tests.cases.kinds.tf_job import make_tf_job
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.examples import make_example

Manifest = dict[str, Any]
END = "2026-01-01T00:00:00Z"
TEMPLATE: Manifest = {
    "metadata": {"labels": {"cost-center": "vision"}, "annotations": {"sidecar.istio.io/inject": "false"}},
    "spec": {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "training",
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "containers": [
            {
                "name": "main",
                "securityContext": {"allowPrivilegeEscalation": False},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            }
        ],
    },
}


def pods_with(kind: str, settings: InstallationSettings) -> list[Manifest]:
    """The pods of a new job of this kind; of an ElasticJob the master and a worker."""
    world = JobsNamespace()
    world.settings = settings
    job = world.add(make_example(kind))
    if kind == "ElasticJob":
        name = job["metadata"]["name"]
        pod = {"name": f"{name}-edljob-worker-0", "type": "worker", "id": 0, "rankIndex": 0}
        metadata = {"name": "plan", "labels": {names.JOB_LABEL: name, "scale-type": "auto"}}
        spec = {"ownerJob": name, "createPods": [pod]}
        plan = {"apiVersion": job["apiVersion"], "kind": "ScalePlan", "metadata": metadata, "spec": spec}
        world.settle()
        world.add(plan)
    world.settle()
    return [obj for (child, _), obj in world.objects.items() if child == "Pod"]


def is_master(pod: Manifest) -> bool:
    """Whether it is an ElasticJob's master."""
    return bool(pod["metadata"]["labels"].get(names.REPLICA_TYPE_LABEL) == names.MASTER_TYPE)


@pytest.mark.parametrize("kind", KIND_CASES)
def test_the_template_is_below_the_training_pods_of_every_kind(kind: str) -> None:
    """Each training pod has what the template says; masters have a template of their own."""
    plain = pods_with(kind, InstallationSettings())
    pods = pods_with(kind, InstallationSettings(training_template=TEMPLATE))
    training = [pod for pod in pods if not is_master(pod)]

    assert training
    assert [pod for pod in pods if is_master(pod)] == [pod for pod in plain if is_master(pod)]
    for pod in training:
        spec, metadata = pod["spec"], pod["metadata"]
        assert metadata["labels"]["cost-center"] == "vision"
        assert metadata["annotations"]["sidecar.istio.io/inject"] == "false"
        assert (spec["tolerations"], spec["priorityClassName"]) == (
            TEMPLATE["spec"]["tolerations"],
            "training",
        )
        assert spec["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False}
        assert "shm" in [volume["name"] for volume in spec["volumes"]]
        assert "HTTPS_PROXY" in [variable["name"] for variable in spec["containers"][0]["env"]]


def test_what_the_job_says_wins() -> None:
    """Fields of the job's template stay; volumes, mounts, variables and labels of both are there."""
    own = {"name": "team", "value": "speech"}
    box = {"name": "train", "image": "train:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "a", "labels": {"cost-center": "speech", "job": "a"}},
        "spec": {
            "priorityClassName": "urgent",
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [box | {"env": [own]}, {"name": "other"}],
        },
    }
    merged = put_below_pod(TEMPLATE, pod)

    assert merged["metadata"]["name"] == "a"
    assert merged["metadata"]["labels"] == {"cost-center": "speech", "job": "a"}
    assert merged["spec"]["priorityClassName"] == "urgent"
    assert [volume["name"] for volume in merged["spec"]["volumes"]] == ["data", "shm"]
    first, second = merged["spec"]["containers"]
    assert (first["name"], first["image"], second) == ("train", "train:1", {"name": "other"})
    assert [mount["mountPath"] for mount in first["volumeMounts"]] == ["/data", "/dev/shm"]
    assert first["env"] == [own, {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]


@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_job_goes_by_the_installations_time_to_live(kind: str) -> None:
    """It applies to jobs that this operator has finished, and that name no time of their own."""
    world = JobsNamespace()
    world.settings = replace(world.settings, ttl_seconds_after_finished=600)
    status = {
        "phase": KIND_CASES[kind].ends[0],
        "completionTime": END,
        "startTime": END,
        "observedGeneration": 1,
    }
    manifest = make_example(kind)
    kept = make_example(kind)
    kept["metadata"]["name"] = "kept"
    kept["spec"]["ttlSecondsAfterFinished"] = 3600
    for one in (manifest, kept):
        world.add({**one, "status": status})
    world.tick(600)
    world.settle()

    assert [name for child, name in world.objects if child == kind] == ["kept"]


def test_a_job_of_another_cluster_stays() -> None:
    """The controller that reconciles the job deletes it."""
    world = JobsNamespace()
    world.settings = replace(world.settings, ttl_seconds_after_finished=0)
    manifest = make_tf_job(policies={"managedBy": "kueue.x-k8s.io/multikueue"})
    status = {"phase": "Succeeded", "completionTime": END, "startTime": END}
    world.add({**manifest, "status": status})
    world.settle()

    assert ("TFJob", "mnist") in world.objects
