"""Wrong manifests of every kind on a real API server, with our definitions and a controller behind them, and
pods that the API server refuses."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

from edl_workflows.core.exceptions import ForbiddenError, InvalidError, NotFoundError
from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.elastic_job.pods import master_pod
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes.api import TF_JOBS
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.cases.kind import KindCases, Manifest, Mistake, make_manifest
from tests.cases.kinds import KIND_CASES
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until
from tests.cluster.installed import job, restricted_pod
from tests.cluster.training import Place

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MISTAKES = [
    pytest.param(cases, mistake, id=f"{kind}-{mistake.name}")
    for kind, cases in KIND_CASES.items()
    for mistake in cases.mistakes
]


def make_example(cases: KindCases) -> Manifest:
    """The kind's example, in no namespace."""
    manifest = copy.deepcopy(cases.example)
    manifest["metadata"].pop("namespace", None)
    return manifest


@pytest.mark.parametrize("kind", [kind for kind, cases in KIND_CASES.items() if cases.mistakes])
def test_the_manifest_without_the_mistake_is_accepted(here: Place, kind: str) -> None:
    """What is wrong in the other test is the mistake alone."""
    manifest = make_example(KIND_CASES[kind])

    assert client.create(here.cluster, manifest, dry_run=True)["kind"] == kind


@pytest.mark.parametrize(("cases", "mistake"), MISTAKES)
def test_a_wrong_manifest_starts_nothing(here: Place, cases: KindCases, mistake: Mistake) -> None:
    """Either the API server rejects the manifest, or the controller fails the job with a reason that names
    the field. No pod is created."""
    manifest = make_example(cases)
    mistake.change(manifest)
    try:
        made = client.create(here.cluster, manifest)
    except (InvalidError, NotFoundError):
        return

    api = kind_of(made["kind"]).source.api
    try:
        until(lambda: _status(here.cluster, made).get("reason") == "InvalidSpec", "the job fails", 30)
        status = _status(here.cluster, made)
        assert status["phase"].lower() == "failed"
        assert re.search(mistake.message, f"{made['kind']} {made['metadata']['name']}: {status['message']}")
        selector = kind_of(made["kind"]).pods_of(made["metadata"]["name"])
        scope = resources.Scope(resources.PODS, here.cluster.namespace, label_selector=selector)
        assert client.list_objects(here.cluster, scope).items == []
    finally:
        client.delete(here.cluster, api, made["metadata"]["name"])


def template_path(kind: str) -> str:
    """Where jobs of a kind have the template of their pods, as messages write it."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in KIND_CASES[kind].template)
    return "".join(parts).removeprefix(".")


def make_job(bed: Bed, kind: str, name: str, **pod_fields: Any) -> Manifest:
    """A job of one pod with these fields in its spec."""
    single = KIND_CASES[kind].installed
    pod = restricted_pod(bed, [bed.python, "-c", "pass"]) | pod_fields
    if single is not None:
        return make_manifest(kind_of(kind).source.api.api_version, kind, name, **single.make_spec(pod, 1))
    manifest = job(bed, name)
    manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"] |= pod_fields
    return manifest


@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_pod_that_is_invalid_ends_its_job(here: Place, kind: str) -> None:
    """A job whose manifest is accepted, but whose pods the API server refuses with 422, fails soon. Its
    message names the field as it stands in the manifest."""
    manifest = make_job(here.bed, kind, f"invalid-{kind.lower()}", dnsPolicy="Wrong")
    made = client.create(here.cluster, manifest)
    until(lambda: _phase(here.cluster, made) is JobPhase.FAILED, f"{kind} fails", 90)

    status = _status(here.cluster, made)
    assert status["reason"] == "PodRefused"
    assert f"{template_path(kind)}.spec.dnsPolicy: Unsupported value" in status["message"]
    client.delete(here.cluster, kind_of(kind).source.api, made["metadata"]["name"])


FORBIDDEN: dict[str, tuple[Manifest, str]] = {
    "account": ({"serviceAccountName": "nobody"}, "create the ServiceAccount in this namespace"),
    "priority": ({"priorityClassName": "none"}, "or remove priorityClassName"),
    "runtime": ({"runtimeClassName": "none"}, "or remove runtimeClassName"),
}
"""Fields of a pod for which admission forbids it (403), and the advice."""


@pytest.mark.parametrize("cause", FORBIDDEN)
def test_the_advice_on_a_forbidden_pod_fits_its_cause(here: Place, cause: str) -> None:
    """Admission answers with 403, as a missing right does. The job waits, since somebody may change what
    admission looks at; its message says what to do, and does not ask for a Role."""
    fields, advice = FORBIDDEN[cause]
    made = client.create(here.cluster, make_job(here.bed, "TFJob", f"forbidden-{cause}", **fields))
    _is_forbidden(here.cluster, made, advice)


@pytest.fixture
def quota(here: Place) -> Iterator[None]:
    """The namespace has a ResourceQuota that counts limits.cpu."""
    space = ("-n", here.cluster.namespace)
    here.bed.kubectl(*space, "create", "quota", "counted", "--hard=limits.cpu=1")
    counted = ("get", "quota", "counted", "-o", "jsonpath={.status.hard}")
    until(lambda: "limits.cpu" in here.bed.kubectl(*space, *counted), "the quota is in force")
    yield
    here.bed.kubectl(*space, "delete", "quota", "counted")


@pytest.mark.usefixtures("quota")
def test_a_quota_that_counts_cpu_limits_admits_masters(here: Place) -> None:
    """The quota refuses a pod without a CPU limit, and the job's message says what to set. An installation
    can give its masters a limit."""
    made = client.create(here.cluster, make_job(here.bed, "TFJob", "forbidden-quota"))
    _is_forbidden(here.cluster, made, "(requests, limits) in resources of the pod template's containers")

    elastic = ElasticJob.parse(client.create(here.cluster, job(here.bed, "counted"), dry_run=True))
    template = {"spec": {"serviceAccountName": "default"}}  # that of the master does not exist
    unlimited = InstallationSettings(master_template=template)
    with pytest.raises(ForbiddenError, match=r"must specify limits\.cpu"):
        client.create(here.cluster, master_pod(elastic, 0, 0, unlimited), dry_run=True)
    limited = InstallationSettings(master_template=template, master_cpu_limit="500m")
    client.create(here.cluster, master_pod(elastic, 0, 0, limited), dry_run=True)


def _is_forbidden(cluster: Cluster, made: Manifest, advice: str) -> None:
    """See that a TFJob says why its pod is refused, and delete it."""
    until(lambda: _status(cluster, made).get("reason") == "CreateRefused", "the refusal is told", 60)
    message = _status(cluster, made)["message"]

    assert advice in message
    assert "Role" not in message
    assert _phase(cluster, made) is not JobPhase.FAILED
    client.delete(cluster, TF_JOBS, made["metadata"]["name"])


def _phase(cluster: Cluster, made: Manifest) -> JobPhase:
    kind = kind_of(made["kind"])
    return kind.view_stored(client.get(cluster, kind.source.api, made["metadata"]["name"])).phase


def _status(cluster: Cluster, made: dict[str, Any]) -> dict[str, Any]:
    api = kind_of(made["kind"]).source.api
    found: dict[str, Any] = client.get(cluster, api, made["metadata"]["name"]).get("status") or {}
    return found
