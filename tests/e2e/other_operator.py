"""A PyTorchJob whose pod is made by hand, as Kubeflow's operator would make it."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from edl_workflows.core.exceptions import NotFoundError
from edl_workflows.core.jobs.pytorch_job.model import PYTORCH_JOBS
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS

LEFT_SECONDS = 3.0
"""How long a job is watched that must be left alone; a controller acts within a fraction of a second."""


def hand_over_a_job(cluster: Cluster, name: str, container: Mapping[str, Any]) -> None:
    """The controller leaves the other operator's pod alone and says so. Once the job is annotated, it
    replaces the pod."""
    template = {
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{**container, "name": "pytorch"}]}
    }
    spec = {
        "runPolicy": {"suspend": True},  # until the pod is there
        "pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template}},
    }
    api = {"apiVersion": PYTORCH_JOBS.api_version, "kind": PYTORCH_JOBS.kind}
    job = client.create(cluster, {**api, "metadata": {"name": name}, "spec": spec})
    pod_name = f"{name}-worker-0"
    owner = {**api, "name": name, "uid": job["metadata"]["uid"], "controller": True}
    prefix = "training.kubeflow.org"
    labels = {
        f"{prefix}/operator-name": "pytorchjob-controller",
        f"{prefix}/job-name": name,
        f"{prefix}/replica-type": "worker",
        f"{prefix}/replica-index": "0",
    }
    metadata = {"name": pod_name, "labels": labels, "ownerReferences": [owner]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    uid = client.create(cluster, pod)["metadata"]["uid"]
    _until(lambda: _conditions(cluster, name).get("LeftAlone") == "True", "it is left alone")
    client.patch(cluster, PYTORCH_JOBS, name, {"spec": {"runPolicy": {"suspend": False}}})
    time.sleep(LEFT_SECONDS)
    kept = client.get(cluster, PODS, pod_name)["metadata"]

    assert (kept["uid"], "deletionTimestamp" in kept) == (uid, False)
    annotations = {names.TAKE_OVER_ANNOTATION: "true"}
    client.patch(cluster, PYTORCH_JOBS, name, {"metadata": {"annotations": annotations}})
    _until(lambda: _uid(cluster, pod_name) not in ("", uid), "its pod is replaced")
    assert _conditions(cluster, name)["LeftAlone"] == "False"
    client.delete(cluster, PYTORCH_JOBS, name)


def _conditions(cluster: Cluster, name: str) -> dict[str, str]:
    status = client.get(cluster, PYTORCH_JOBS, name).get("status") or {}
    return {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}


def _uid(cluster: Cluster, pod: str) -> str:
    try:
        return str(client.get(cluster, PODS, pod)["metadata"]["uid"])
    except NotFoundError:
        return ""


def _until(holds: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.2)
