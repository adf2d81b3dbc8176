"""The installation's admission policies on a real API server: who is refused what, though RBAC allows it."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.install import rbac
from edl_workflows.pipelines.install.admission import admission_policies
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import InstallOptions
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.process import BedError
from tests.cluster.bed.wait import until
from tests.cluster.installed import RBAC, apply, make_namespace

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

MINE, OTHER = names.master_account_name("mine"), names.master_account_name("other")
PERSON, TRIGGERER, SHARED = "person", "triggerer", "masters"
EVERYTHING = [rbac.policy_rule("*", "*", "*")]


@dataclass(frozen=True)
class Guarded:
    """A namespace under the policies.

    Attributes:
        owner: reference to a job of it.
    """

    bed: Bed
    options: InstallOptions
    owner: dict[str, Any]

    def refusal(self, user: str, command: str, manifest: dict[str, Any]) -> str:
        """What the API server says against it; "" where it would do it. Nothing is changed."""
        namespace = (
            self.options.namespace if user == names.CONTROLLER else self.options.jobs_namespaces.names[0]
        )
        account = f"system:serviceaccount:{namespace}:{user}"
        where = ["-n", self.options.jobs_namespaces.names[0], "--as", account, "--dry-run=server"]
        try:
            if command == "patch":
                name = manifest["metadata"]["name"]
                body = json.dumps(
                    {key: value for key, value in manifest.items() if key in ("metadata", "spec")}
                )
                self.bed.kubectl("patch", manifest["kind"], name, "--type=merge", "-p", body, *where)
            else:
                self.bed.kubectl("create", "-f", "-", *where, stdin=json.dumps(manifest))
        except BedError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def guarded(bed: Bed, cluster: Cluster) -> Iterator[Guarded]:
    """A namespace where everybody may do everything but what the policies refuse."""
    own = f"test-{uuid.uuid4().hex[:6]}"
    options = InstallOptions(
        "registry.example/edl:1",
        f"{own}-system",
        NamespaceSelection.of(own),
        kinds=("all",),
        master_accounts=(SHARED,),
    )
    make_namespace(cluster, own, {})
    definitions = [
        one for one in installation_manifests(options) if one["kind"] == "CustomResourceDefinition"
    ]
    apply(bed, definitions)
    for one in definitions:
        bed.kubectl("wait", "--for=condition=Established", "--timeout=240s", f"crd/{one['metadata']['name']}")
    policies = list(admission_policies(options))
    try:
        for user in (names.CONTROLLER, MINE, OTHER, PERSON, SHARED):
            apply(bed, _may(options, user, EVERYTHING))
        apply(bed, _may(options, TRIGGERER, rbac.triggerer_rules()))
        where = cluster.in_namespace(own)
        for name in ("mine", "other"):
            client.create(where, _job(name))
        client.create(where, _plan("there", "mine", "auto"))
        client.create(where, _plan("by-hand", "mine", "manual"))
        client.create(where, _kubeflow_job("TFJob", "tf"))
        client.create(where, _kubeflow_job("PyTorchJob", "pytorch"))
        job = client.get(where, resources.ELASTIC_JOBS, "mine")
        reference = {
            "apiVersion": job["apiVersion"],
            "kind": "ElasticJob",
            "name": "mine",
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        apply(bed, policies)
        found = Guarded(bed, options, reference)
        until(lambda: found.refusal(PERSON, "create", _plan("p", "mine", "auto")) != "", "the policies hold")
        yield found
    finally:
        for one in reversed(policies):
            bed.kubectl("delete", one["kind"], one["metadata"]["name"], "--ignore-not-found")
        client.delete(cluster, resources.NAMESPACES, own)


def _may(options: InstallOptions, user: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    metadata = {"name": user, "namespace": options.jobs_namespaces.names[0]}
    namespace = options.namespace if user == names.CONTROLLER else options.jobs_namespaces.names[0]
    return [
        {"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
            "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": namespace}],
        },
    ]


def _job(name: str, **spec: Any) -> dict[str, Any]:
    node = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "none"}]}}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": {"worker": node}, **spec},
    }


def _kubeflow_job(kind: str, name: str) -> dict[str, Any]:
    """A job of one worker, named as the field with its replicas begins."""
    worker = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "none"}]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {f"{name}ReplicaSpecs": {"Worker": worker}},
    }


def _plan(name: str, job: str, scale_type: str) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": name, "labels": {names.SCALE_TYPE_LABEL: scale_type}},
        "spec": {"ownerJob": job, "replicaResourceSpecs": {"worker": {"replicas": 2}}},
    }


def _pod(**labels: str) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "labels": labels}, "spec": spec}


def _secret(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {"token": "known"},
    }


TOKEN = _secret(names.token_secret_name("mine"))
LABELLED = _pod(**{names.JOB_LABEL: "mine"})
TF_POD = {"training.kubeflow.org/job-name": "tf", "training.kubeflow.org/operator-name": "tfjob-controller"}
MPI_POD = TF_POD | {"training.kubeflow.org/operator-name": "mpijob-controller"}
IMAGE = {"containers": [{"name": "main", "image": "evil"}]}
TEMPLATE = {"replicaSpecs": {"worker": {"template": {"spec": IMAGE}}}}
TF_TEMPLATE = {"tfReplicaSpecs": {"Worker": {"template": {"spec": IMAGE}}}}


def _patch(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}


def _annotated(name: str, **annotations: str) -> dict[str, Any]:
    own = {f"{names.GROUP}/{key}": value for key, value in annotations.items()}
    return {"kind": "ElasticJob", "metadata": {"name": name, "annotations": own}}


def _held(name: str) -> dict[str, Any]:
    return {"kind": "ElasticJob", "metadata": {"name": name, "finalizers": ["example.com/hold"]}}


def _relabelled_job(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "ElasticJob", "metadata": {"name": name, "labels": labels}}


def _relabelled(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "ScalePlan", "metadata": {"name": name, "labels": labels}}


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "an auto plan of a person": (PERSON, "create", _plan("new", "mine", "auto")),
    "an auto plan of another job's master": (OTHER, "create", _plan("new", "mine", "auto")),
    "a manual plan of another job's master": (OTHER, "create", _plan("new", "mine", "manual")),
    "a manual plan that a person makes an auto one": (
        PERSON,
        "patch",
        _relabelled("by-hand", **{names.SCALE_TYPE_LABEL: names.SCALE_AUTO}),
    ),
    "a pod with a job's label": (PERSON, "create", LABELLED),
    "a pod with a TFJob's labels": (PERSON, "create", _pod(**TF_POD)),
    "a triggerer that changes a template": (TRIGGERER, "patch", _patch("ElasticJob", "mine", **TEMPLATE)),
    "a triggerer that suspends and changes": (
        TRIGGERER,
        "patch",
        _patch("ElasticJob", "mine", suspend=True, **TEMPLATE),
    ),
    "a triggerer that adds a field": (
        TRIGGERER,
        "patch",
        _patch("ElasticJob", "mine", optimizeMode="manual"),
    ),
    "a triggerer that lets a job grow": (TRIGGERER, "patch", _annotated("mine", autoscale="8-500")),
    "a triggerer that takes a job over": (TRIGGERER, "patch", _annotated("mine", owner="airflow/d/r/t/-1")),
    "a triggerer that relabels a job": (TRIGGERER, "patch", _relabelled_job("mine", team="other")),
    "a triggerer that keeps a job from being deleted": (TRIGGERER, "patch", _held("mine")),
    "a triggerer that suspends a job and keeps it": (
        TRIGGERER,
        "patch",
        _held("mine") | {"spec": {"suspend": True}},
    ),
    "a triggerer that changes a TFJob": (TRIGGERER, "patch", _patch("TFJob", "tf", **TF_TEMPLATE)),
    "a triggerer that changes a TFJob's policy": (
        TRIGGERER,
        "patch",
        _patch("TFJob", "tf", runPolicy={"suspend": True, "backoffLimit": 1}),
    ),
    "a triggerer that changes a PyTorchJob": (
        TRIGGERER,
        "patch",
        _patch("PyTorchJob", "pytorch", runPolicy={"suspend": True}, nprocPerNode="2"),
    ),
}
DONE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "an auto plan of the job's master": (MINE, "create", _plan("new", "mine", "auto")),
    "an auto plan of masters with one account": (SHARED, "create", _plan("new", "mine", "auto")),
    "a manual plan of a person": (PERSON, "create", _plan("new", "mine", "manual")),
    "a manual plan of the job's master": (MINE, "create", _plan("new", "mine", "manual")),
    "a label that a person puts on an auto plan": (PERSON, "patch", _relabelled("there", note="seen")),
    "a plan that the controller ties to its job": (
        names.CONTROLLER,
        "patch",
        _relabelled("there", tied="yes"),
    ),
    "a job's pod of the controller": (names.CONTROLLER, "create", LABELLED),
    "a pod without labels": (PERSON, "create", _pod(app="notebook")),
    "a pod of another operator": (PERSON, "create", _pod(**MPI_POD)),
    "a Secret without an owner": (PERSON, "create", TOKEN),
    "a triggerer that suspends": (TRIGGERER, "patch", _patch("ElasticJob", "mine", suspend=True)),
    "a triggerer that suspends a TFJob": (
        TRIGGERER,
        "patch",
        _patch("TFJob", "tf", runPolicy={"suspend": True}),
    ),
    "a triggerer that suspends a PyTorchJob": (
        TRIGGERER,
        "patch",
        _patch("PyTorchJob", "pytorch", runPolicy={"suspend": True}),
    ),
    "a triggerer that suspends and notes its attempt": (
        TRIGGERER,
        "patch",
        _annotated("mine", **{"owner-suspended": "1"}) | {"spec": {"suspend": True}},
    ),
    "a triggerer that notes that nobody waits": (
        TRIGGERER,
        "patch",
        _annotated("mine", **{"owner-gone": "2026-01-01T00:00:00Z"}),
    ),
    "a person who lets a job grow": (PERSON, "patch", _annotated("mine", autoscale="2-4")),
    "a person who adds a finalizer": (PERSON, "patch", _held("mine")),
    "a person who changes a template": (PERSON, "patch", _patch("ElasticJob", "mine", **TEMPLATE)),
}


@pytest.mark.parametrize("row", REFUSED)
def test_refused(guarded: Guarded, row: str) -> None:
    """A policy of the installation rejects the request, and its message says what would be right."""
    said = guarded.refusal(*REFUSED[row])
    assert "ValidatingAdmissionPolicy 'edl-" in said
    assert ": " in said.split("denied request")[-1]


@pytest.mark.parametrize("row", DONE)
def test_not_refused(guarded: Guarded, row: str) -> None:
    """The admission policies allow each account the requests that its component needs."""
    assert guarded.refusal(*DONE[row]) == ""


def test_a_forged_child_is_refused(guarded: Guarded) -> None:
    """Only the controller may create a Secret or a pod that claims a job as its owner, or turn an object into
    one by an edit."""
    for manifest in (TOKEN, _pod()):
        forged = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [guarded.owner]}}
        assert "ValidatingAdmissionPolicy 'edl-children" in guarded.refusal(PERSON, "create", forged)
        assert guarded.refusal(names.CONTROLLER, "create", forged) == ""
    default = {"kind": "ServiceAccount", "metadata": {"name": "default", "ownerReferences": [guarded.owner]}}
    assert "ValidatingAdmissionPolicy 'edl-children" in guarded.refusal(PERSON, "patch", default)
