"""An installation in the test cluster as `edl install` prints it, and the accounts that use it."""

import contextlib
import copy
import ipaddress
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from edl_workflows.core.exceptions import EdlError, StageTimeoutError
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.install import rbac, workloads
from edl_workflows.pipelines.install.admission import admission_policies
from edl_workflows.pipelines.install.crds import render_yaml
from edl_workflows.pipelines.install.flow_control import flow_schemas
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart, PullPolicy
from edl_workflows.pipelines.install.workloads import CONTAINER_SECURITY, MASTER_TEMPLATE, POD_SECURITY
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.waiting.goals import GoneGoal, Handle
from edl_workflows.pipelines.waiting.results import Failed
from edl_workflows.runtime.kube import client, logs, resources, transport
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.resources import Object, Scope
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.components import PLAIN_RUNTIME
from tests.cluster.bed.wait import until
from tests.unit.core.jobs.network_policies import admits

USER = 65532
"""Who the pods run as. The image of the bed's nodes has no user of its own, as a real one has."""
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_NETWORK = (resources.NETWORK_POLICIES, resources.PODS)
RBAC = "rbac.authorization.k8s.io/v1"
READY_SECONDS = 240
TEMPLATE_LABEL = "tests.example/template"
TOLERATION = {"key": "tests.example/pool", "operator": "Exists", "effect": "NoSchedule"}
PLACEMENT: Object = {
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [TOLERATION],
    "priorityClassName": "system-cluster-critical",
}
"""Of all pods of an installation and of its jobs."""
SMALL = {"requests": {"cpu": "20m", "memory": "64Mi"}}
"""The bed's node has two cores for everything."""
LIMITED = {**SMALL, "limits": {"cpu": "2", "memory": "1Gi"}}
MASTER_CPU_LIMIT = "1500m"
TIME_TO_LIVE = 15
"""Seconds for which jobs stay that don't say so themselves."""
_ESTABLISHED = "01"
"""State of a connection in ``/proc/PID/net/tcp``."""
STEPS_FOR_EVER = """
import time
from edl_workflows.training import connect

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


Change = Callable[[Object], None]
"""What the bed needs otherwise in the spec of a pod of the installation."""


def changed(objects: list[Object], change: Change) -> list[Object]:
    """The same installation, with all its pods changed: its own and the masters'."""
    objects = copy.deepcopy(objects)
    for one in objects:
        if one["kind"] == "Deployment":
            change(one["spec"]["template"]["spec"])
        if one["kind"] == "ConfigMap":
            template = yaml.safe_load(one["data"][MASTER_TEMPLATE])
            change(template["spec"])
            one["data"][MASTER_TEMPLATE] = yaml.safe_dump(template)
    return objects


def from_host(bed: Bed) -> Change:
    """Programs that every container of the bed has without an image of ours."""

    def change(spec: Object) -> None:
        spec["securityContext"]["runAsUser"] = USER
        container = spec["containers"][0]
        command = container.get("command", [*workloads.COMMAND, "master", "run"])
        container["command"] = [bed.python, "-m", "edl_workflows", *command[len(workloads.COMMAND) :]]

    return change


def from_image(spec: Object) -> None:
    """Programs of the image alone: the bed's usual runtime would lay the machine's over them."""
    spec["runtimeClassName"] = PLAIN_RUNTIME


def _pod_template(of: str) -> Object:
    return {"metadata": {"labels": {TEMPLATE_LABEL: of}}, "spec": dict(PLACEMENT)}


def check_template(pod: Object, of: str) -> None:
    """See that a real pod has what one of the installation's templates says.

    Args:
        pod: as the API server has it.
        of: which template: ``installation``, ``master`` or ``training``.
    """
    spec = pod["spec"]
    assert pod["metadata"]["labels"][TEMPLATE_LABEL] == of
    assert spec["nodeSelector"] == PLACEMENT["nodeSelector"]
    assert spec["priorityClassName"] == PLACEMENT["priorityClassName"]
    assert TOLERATION in spec["tolerations"]  # Kubernetes adds others


def apply(bed: Bed, objects: list[Object], *flags: str) -> None:
    """`kubectl apply`; an unknown or doubled field is an error."""
    bed.kubectl("apply", "--validate=strict", *flags, "-f", "-", stdin=render_yaml(objects))


def job(
    bed: Bed, name: str, program: str = STEPS_FOR_EVER, roles: tuple[str, ...] = ("worker",)
) -> dict[str, Any]:
    """An ElasticJob with one node a role that runs a Python program, in pods that a restricted namespace
    admits."""
    command = [bed.python, "-m", "edl_workflows", "agent", "run", "--", bed.python, "-c", program]
    return _job(name, restricted_pod(bed, command), roles)


def restricted_pod(bed: Bed, command: list[str]) -> Object:
    """The spec of a pod that a restricted namespace admits."""
    spec = _pod(bed.image, command)
    spec["securityContext"]["runAsUser"] = USER
    return spec


def image_job(image: str, name: str) -> dict[str, Any]:
    """An ElasticJob whose one worker ends at once; it is made of the installation's image, as its master
    is."""
    spec = _pod(image, ["edl", "agent", "run", "--", "python", "-c", "pass"])
    return _job(name, spec | {"runtimeClassName": PLAIN_RUNTIME}, ("worker",))


def _pod(image: str, command: list[str]) -> Object:
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": command}
    security = {"securityContext": CONTAINER_SECURITY, "resources": SMALL}
    return {"securityContext": dict(POD_SECURITY), "containers": [container | security]}


def _job(name: str, spec: Object, roles: tuple[str, ...]) -> dict[str, Any]:
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
        return self.options.jobs_namespaces.names[0]

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
        """The connection of a new service account in the jobs' namespace that has the cluster role `role`
        there."""
        return account_of(self.bed, self.jobs, name, self.folder, role)

    def as_account(self, name: str) -> Cluster:
        """The connection of a service account that is there."""
        return _connect(self.bed, self.jobs, name, self.folder)

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


def account_of(
    bed: Bed, namespace: str, name: str, folder: Path, role: str | list[dict[str, Any]]
) -> Cluster:
    """The connection of a new service account.

    Args:
        bed: where.
        namespace: where it lives, and has rights.
        name: its own, and that of its binding.
        folder: for its kubeconfig.
        role: a cluster role, or the rules of a role of its own.
    """
    metadata = {"name": name, "namespace": namespace}
    objects: list[Object] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}]
    reference = (
        {"kind": "ClusterRole", "name": role} if isinstance(role, str) else {"kind": "Role", "name": name}
    )
    if not isinstance(role, str):
        objects.append({"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": role})
    binding = {"apiVersion": RBAC, "kind": "RoleBinding", "metadata": metadata}
    subject = {"kind": "ServiceAccount", **metadata}
    objects.append(
        binding | {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", **reference}, "subjects": [subject]}
    )
    apply(bed, objects)
    return _connect(bed, namespace, name, folder)


def _connect(bed: Bed, namespace: str, name: str, folder: Path) -> Cluster:
    """As a service account, by a token of its own."""
    token = bed.token(namespace, name)
    admin = yaml.safe_load(bed.kubeconfig.read_text())
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": admin["clusters"][0]["cluster"]}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": name, "namespace": namespace}}],
        "current-context": "bed",
    }
    path = folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(config))
    return Cluster.from_kubeconfig(path)


def allowed(cluster: Cluster, user: str, right: dict[str, str]) -> bool:
    """What the API server's authorizers say.

    Args:
        cluster: the administrator.
        user: whose right it is.
        right: group, resource, verb, and the namespace if it is of one.
    """
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": right},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    request = transport.ApiRequest("create", "subjectaccessreviews", path, "review access", body=review)
    answer = transport.send(cluster, request)
    return bool(answer["status"]["allowed"])


@contextlib.contextmanager
def installed(bed: Bed, cluster: Cluster, name: str, image: str, change: Change) -> Iterator[Installed]:
    """Install for a namespace of its own, and uninstall.

    The cluster's definitions, the roles for people and the priority levels stay: other tests use them.

    Args:
        bed: where.
        cluster: the administrator.
        name: begins the names of both namespaces.
        image: of everything.
        change: of each pod's spec.
    """
    # Not Brain, whose monitor is for all namespaces, and which needs a volume: see test_install_brain.py.
    parts = frozenset(InstallPart) - {InstallPart.BRAIN}
    own_pods = _pod_template("installation")
    own_pods["spec"]["containers"] = [{"name": "main", "resources": LIMITED}]
    options = InstallOptions(
        image,
        f"{name}-system",
        NamespaceSelection.of(f"{name}-jobs"),
        ("all",),
        pull_policy=PullPolicy.NEVER,
        parts=parts,
        pod_template=own_pods,
        master_template=_pod_template("master"),
        training_template=_pod_template("training"),
        master_cpu_limit=MASTER_CPU_LIMIT,
        ttl_seconds_after_finished=TIME_TO_LIVE,
    )
    (jobs,) = options.jobs_namespaces.names
    make_namespace(cluster, jobs, RESTRICTED)
    with tempfile.TemporaryDirectory() as folder:
        running = Installed(bed, cluster.in_namespace(jobs), options, Path(folder))
        try:
            apply(bed, changed(installation_manifests(options), change))
            yield running
        finally:
            # Jobs first, while their controller lives: nothing of theirs waits for a finalizer of its own.
            for namespace in (jobs, options.namespace):
                client.delete(cluster, resources.NAMESPACES, namespace)
            for one in (*admission_policies(options), *flow_schemas(options)):
                bed.kubectl("delete", one["kind"], one["metadata"]["name"], "--ignore-not-found")


@pytest.fixture(scope="module")
def here(request: pytest.FixtureRequest, installation: Installed) -> Iterator[Installed]:
    """The installation, for the modules that import this. If a test of theirs failed, it is printed what all
    pods are doing."""
    failed = request.session.testsfailed
    installation.wait_ready()
    yield installation
    if request.session.testsfailed > failed:
        print(installation.explain())


@pytest.fixture(scope="module")
def pipeline(here: Installed) -> Cluster:
    """A pipeline's account, with no more than `edl-pipeline`."""
    return here.account("pipeline", rbac.PIPELINE)


def keeps_strangers_out(here: Installed, kind: Kind, name: str) -> None:
    """See that the policies in a job's namespace, as the API server has them, admit its own pods alone.

    The bed's network plugin enforces none, so they are evaluated here.
    """
    listed = (client.list_objects(here.cluster, Scope(one, here.jobs)) for one in _NETWORK)
    policies, pods = (found.items for found in listed)
    selector = Scope(resources.PODS, here.jobs, kind.pods_of(name))
    own = client.list_objects(here.cluster, selector).items
    strangers = [pod for pod in pods if pod["metadata"]["uid"] not in {one["metadata"]["uid"] for one in own}]
    strangers.append({"metadata": {"namespace": here.jobs, "labels": {"app": "notebook"}}})
    assert own
    for target in own:
        for port in (names.MASTER_PORT, *names.NODE_PORTS["ps"], names.AGENT_PORT, 22270):
            assert all(admits(policies, source, target, port) for source in own)
            assert not any(admits(policies, source, target, port) for source in strangers)


def count_api_connections(namespace: str, pod: str) -> int:
    """How many connections to the API server a pod of this machine holds."""
    variables = {names.ENV_NAMESPACE: namespace, names.ENV_POD_NAME: pod}
    process = next(
        process
        for process in psutil.process_iter(["environ"])
        if variables.items() <= (process.info["environ"] or {}).items()
    )
    environment = process.environ()
    address = ipaddress.IPv4Address(environment["KUBERNETES_SERVICE_HOST"])
    server = (
        f"{int.from_bytes(address.packed, 'little'):08X}:{int(environment['KUBERNETES_SERVICE_PORT']):04X}"
    )
    # The table is of the pod's own network.
    rows = [line.split() for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(remote.endswith(server) and state == _ESTABLISHED for _, _, remote, state, *_ in rows)


def wait_in_vain(cluster: Cluster, handle: Handle) -> None:
    """Wait a moment for what does not come: a list, a watch and a last look."""
    never = handle.model_copy(update={"goal": GoneGoal()})
    result = driver.wait_for_goal(ClusterSource.of(cluster), never, time.time() + 2)
    assert isinstance(result, Failed)
    assert isinstance(result.error, StageTimeoutError), result.error
