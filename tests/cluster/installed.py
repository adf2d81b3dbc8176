"""An installation in the test cluster as `edl install` prints it, and the accounts that use it."""

import contextlib
import copy
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edl_workflows.exceptions import EdlError
from edl_workflows.install.manifests import installation, render
from edl_workflows.install.options import InstallOptions, PullPolicy
from edl_workflows.install.workloads import CONTAINER_SECURITY, MASTER_TEMPLATE, POD_SECURITY
from edl_workflows.jobs import names
from edl_workflows.kube import client, logs, resources
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import Object, Scope
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until

USER = 65532
"""Who the pods run as. The image of the bed's nodes has no user of its own, as a real one has."""
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
READY_SECONDS = 120
STEPS_FOR_EVER = """
import time
from edl_workflows.agent import connect

with connect() as job:
    if job.node.type == "ps":
        job.serve()
    job.wait_until_active()
    step = 0
    while True:
        step += 1
        job.report_step(step)
        job.between_steps()
        time.sleep(0.2)
"""
"""Trains nothing, and needs no framework for it."""


def make_namespace(cluster: Cluster, name: str, labels: dict[str, str]) -> None:
    """Make a namespace that pods may be made in."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    client.create(cluster, manifest)
    until(
        lambda: client.find(cluster, resources.SERVICE_ACCOUNTS, "default", name) is not None,
        f"account of {name}",
    )


def for_bed(objects: list[Object], bed: Bed) -> list[Object]:
    """The same installation with programs that the bed's nodes have without an image of ours."""
    changed = copy.deepcopy(objects)
    for one in changed:
        if one["kind"] == "Deployment":
            pod = one["spec"]["template"]["spec"]
            pod["securityContext"]["runAsUser"] = USER
            pod["containers"][0]["command"][0] = bed.python
        if one["kind"] == "ConfigMap":
            template = yaml.safe_load(one["data"][MASTER_TEMPLATE])
            template["spec"]["securityContext"]["runAsUser"] = USER
            command = [bed.python, "-m", "edl_workflows.cli", "master", "run"]
            resources_ = {"requests": {"cpu": "50m", "memory": "128Mi"}}
            template["spec"]["containers"][0] |= {"command": command, "resources": resources_}
            one["data"][MASTER_TEMPLATE] = yaml.safe_dump(template)
    return changed


def apply(bed: Bed, objects: list[Object], *flags: str) -> None:
    """`kubectl apply`; an unknown or doubled field is an error."""
    bed.kubectl("apply", "--validate=strict", *flags, "-f", "-", stdin=render(objects))


def job(
    bed: Bed, name: str, program: str = STEPS_FOR_EVER, roles: tuple[str, ...] = ("worker",)
) -> dict[str, Any]:
    """An ElasticJob with one node a role that runs a Python program, in pods that a restricted namespace admits."""
    container = {
        "name": "main",
        "image": bed.image,
        "imagePullPolicy": "Never",
        "command": [bed.python, "-m", "edl_workflows.cli", "agent", "run", "--", bed.python, "-c", program],
        "securityContext": CONTAINER_SECURITY,
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
    }
    spec = {"securityContext": POD_SECURITY | {"runAsUser": USER}, "containers": [container]}
    node = {"replicas": 1, "template": {"spec": spec}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"optimizeMode": "manual", "replicaSpecs": dict.fromkeys(roles, node)},
    }


@dataclass(frozen=True)
class Installed:
    """A running installation for one namespace.

    Attributes:
        bed: where.
        cluster: the administrator, in the namespace with the jobs.
        options: of the installation.
        folder: for the accounts' kubeconfigs.
    """

    bed: Bed
    cluster: Cluster
    options: InstallOptions
    folder: Path

    @property
    def jobs(self) -> str:
        """The namespace with the jobs."""
        return self.options.jobs_namespace

    def wait_ready(self) -> None:
        """Wait until every replica of every Deployment is ready."""
        self.bed.kubectl(
            "-n", self.options.namespace, "rollout", "status", "deployment", f"--timeout={READY_SECONDS}s"
        )

    def pods(self) -> list[Object]:
        """The controllers' pods that are to go on."""
        scope = Scope(
            resources.PODS, self.options.namespace, f"app.kubernetes.io/component={names.CONTROLLER}"
        )
        listed = client.list_objects(self.cluster, scope).items
        return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]

    def leader(self) -> str:
        """The pod that holds the Lease; "" for none."""
        lease = client.find(self.cluster, resources.LEASES, names.CONTROLLER, self.options.namespace)
        holder = str(lease["spec"].get("holderIdentity") or "") if lease else ""
        return holder.split("_")[0]

    def account(self, name: str, role: str) -> Cluster:
        """The connection of a service account in the jobs' namespace that has the cluster role `role` there."""
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": self.jobs},
        }
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": self.jobs},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.jobs}],
        }
        apply(self.bed, [account, binding])
        return self.as_account(name)

    def as_account(self, name: str) -> Cluster:
        """The connection of a service account in the jobs' namespace, by a token of its own."""
        token = self.bed.kubectl("-n", self.jobs, "create", "token", name).strip()
        admin = yaml.safe_load(self.bed.kubeconfig.read_text())
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bed", "cluster": admin["clusters"][0]["cluster"]}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [
                {"name": "bed", "context": {"cluster": "bed", "user": name, "namespace": self.jobs}}
            ],
            "current-context": "bed",
        }
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        return Cluster.from_kubeconfig(path)

    def explain(self) -> str:
        """What all its pods are doing, for a failed test."""
        told = []
        for namespace in (self.options.namespace, self.jobs):
            for pod in client.list_objects(self.cluster, Scope(resources.PODS, namespace)).items:
                name = pod["metadata"]["name"]
                told.append(f"== {namespace}/{name}: {json.dumps(pod.get('status', {}))[:2000]}")
                with contextlib.suppress(EdlError):
                    told.append(logs.read(self.cluster, name, namespace)[-4000:])
        return "\n".join(told)


@contextlib.contextmanager
def installed(bed: Bed, cluster: Cluster, name: str) -> Iterator[Installed]:
    """Install for a namespace of its own with `name` in it, and uninstall.

    The cluster's definitions and the roles for people stay: other tests use them.
    """
    options = InstallOptions(bed.image, f"{name}-system", f"{name}-jobs", pull_policy=PullPolicy.NEVER)
    make_namespace(cluster, options.jobs_namespace, RESTRICTED)
    with tempfile.TemporaryDirectory() as folder:
        running = Installed(bed, cluster.in_namespace(options.jobs_namespace), options, Path(folder))
        try:
            apply(bed, for_bed(installation(options), bed))
            yield running
        finally:
            # Jobs first, while their controller lives: nothing of theirs waits for a finalizer of its own.
            for namespace in (options.jobs_namespace, options.namespace):
                client.delete(cluster, resources.NAMESPACES, namespace)
