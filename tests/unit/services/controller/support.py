"""Manifests and waiting for the controller's tests."""

from importlib import resources as package_files
from typing import Any

import yaml

from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Scope


def crds() -> list[dict[str, Any]]:
    """The definitions of our kinds."""
    folder = package_files.files("edl_workflows.core.jobs") / "crds"
    files = (file for file in folder.iterdir() if file.name.endswith(".yaml"))
    return [yaml.load(file.read_text(), yaml.CSafeLoader) for file in files]


def elastic_job(name: str = "mnist", workers: int = 1) -> dict[str, Any]:
    """A job that validates."""
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": {"worker": {"replicas": workers, "template": template}}},
    }


def auto_plan(job: str, *workers: int, name: str = "plan") -> dict[str, Any]:
    """A plan, as the master writes it, that makes these workers."""
    pods = [
        {"name": names.node_name(job, "worker", index), "id": index, "type": "worker", "rankIndex": index}
        for index in workers
    ]
    labels = {names.JOB_LABEL: job, names.SCALE_TYPE_LABEL: names.SCALE_AUTO}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": name, "labels": labels},
        "spec": {"ownerJob": job, "createPods": pods},
    }


def status_of(cluster: Cluster, name: str) -> dict[str, Any]:
    """A job's status, empty before there is one."""
    status: dict[str, Any] = client.get(cluster, ELASTIC_JOBS, name).get("status") or {}
    return status


def names_of(cluster: Cluster, scope: Scope) -> list[str]:
    """Names of all objects of a scope."""
    return [obj["metadata"]["name"] for obj in client.list_objects(cluster, scope).items]
