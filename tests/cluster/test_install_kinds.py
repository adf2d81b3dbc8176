"""The installation with jobs of the kinds that other systems brought: the same accounts, with no right more,
do the same."""

import time
import uuid
from typing import Any

import pytest

from edl_workflows.core.exceptions import ForbiddenError, NotFoundError
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes.api import DI_JOBS, POD_GROUPS, TF_JOBS
from edl_workflows.pipelines.install import rbac
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.pipelines.stages.description import R, StageSpec
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest
from edl_workflows.pipelines.stages.wait import WAIT, WaitRequest
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object
from tests.cases.kind import make_manifest
from tests.cases.kinds import KIND_CASES
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until
from tests.cluster.installed import (
    Installed,
    apply,
    here,
    keeps_strangers_out,
    pipeline,
    restricted_pod,
    wait_in_vain,
)

__all__ = ["here", "pipeline"]

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE = 240
"""Seconds; a busy machine takes a minute to start a program with its libraries."""
FOREVER = "import time; time.sleep(1000)"
GRACE = {"terminationGracePeriodSeconds": 2}
"""No program here listens to SIGTERM."""

RESIZES_ITSELF = """
import concurrent.futures, json, os, urllib.request

url = f"{os.environ['DI_SERVER_URL']}/v2alpha1/{os.environ['DI_JOB_ID']}.{os.environ['DI_JOB_GENERATION']}"

def ask(method, call, **body):
    headers = {"Authorization": f"Bearer {os.environ['DI_TOKEN']}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"{url}/{call}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.load(answer)["data"]

if os.environ["DI_RANK"] != "0":
    import time
    time.sleep(1000)
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    # At once: some meet the others' edit, and are made again on top of it.
    for method in ("POST", "DELETE") * 5 + ("POST",):
        list(pool.map(lambda _: ask(method, "replicas", replicas=1), range(2)))
places = ask("GET", "replicas?timeout=60")
assert len(places) == 4, places
ask("POST", "profilings", data={"places": len(places)})
"""
"""Of a job's first replica, which asks the DI server for two more."""


INSTALLED = {kind: cases.installed for kind, cases in KIND_CASES.items() if cases.installed}
each_kind = pytest.mark.parametrize("name", INSTALLED)


def make_job(bed: Bed, kind: str, name: str, program: str, replicas: int) -> Object:
    """A job of pods of one role, which run a Python program."""
    pod = restricted_pod(bed, [bed.python, "-c", program]) | GRACE
    spec = INSTALLED[kind].make_spec(pod, replicas)
    return make_manifest(kinds.kind_of(kind).source.api.api_version, kind, name, **spec)


def _prefix(kind: str) -> str:
    """Of names of jobs: a TFJob and a PyTorchJob of the same name would need the same pods."""
    return kind.lower()


def run(cluster: Cluster, stage: StageSpec[R], request: R) -> None:
    """Run a stage to its goal."""
    driver.run_stage(
        cluster, stage, request, StageIdentity(f"tests/cluster/{uuid.uuid4()}"), time.time() + PATIENCE
    )


@each_kind
def test_a_job_of_any_kind_needs_no_more(here: Installed, pipeline: Cluster, name: str) -> None:
    """The same accounts can run, scale, wait for, suspend and delete jobs of each kind."""
    kind, role, own = kinds.kind_of(name), INSTALLED[name].role, _prefix(name)
    wanted = make_job(here.bed, name, f"{own}-lives", FOREVER, 2)
    begun = SUBMIT.begin(pipeline, SubmitRequest(manifest=wanted), StageIdentity(f"tests/cluster/{own}"))
    triggerer = here.account(f"{own}-triggerer", rbac.TRIGGERER)
    viewer = here.account(f"{own}-viewer", rbac.VIEWER)
    running = WaitRequest(name=begun.name, kind=kind.name, phases=(JobPhase.RUNNING,))
    run(pipeline, WAIT, running)
    keeps_strangers_out(here, kind, begun.name)
    one = ScaleRequest(job=begun.name, kind=kind.name, replicas={role: ReplicaResourceSpec(replicas=1)})
    run(pipeline, SCALE, one)

    wait_in_vain(viewer, begun)
    with pytest.raises(ForbiddenError):
        client.delete(viewer, kind.source.api, begun.name)
    assert kind.view is not None
    assert (
        kind.view(kind.model.parse(client.get(viewer, kind.source.api, begun.name))).phase is JobPhase.RUNNING
    )
    wait_in_vain(triggerer, begun)
    assert ownership.cancel_object(triggerer, begun, "suspend")
    run(pipeline, WAIT, running.model_copy(update={"phases": (JobPhase.SUSPENDED,)}))
    assert ownership.cancel_object(triggerer, begun)

    ends = make_job(here.bed, name, f"{own}-ends", "pass", 1)
    run(pipeline, SUBMIT, SubmitRequest(manifest=ends))
    run(pipeline, DELETE, DeleteRequest(name=f"{own}-ends", kind=kind.name))


@each_kind
def test_a_job_lives_no_longer_than_it_says(here: Installed, pipeline: Cluster, name: str) -> None:
    """A job whose time to live is over is deleted."""
    job = f"{_prefix(name)}-soon-gone"
    manifest = make_job(here.bed, name, job, "pass", 1)
    manifest["spec"]["ttlSecondsAfterFinished"] = 0
    SUBMIT.begin(pipeline, SubmitRequest(manifest=manifest), StageIdentity(f"tests/cluster/{job}"))
    api = kinds.kind_of(name).source.api

    until(lambda: client.find(pipeline, api, job) is None, "its time to live is over", PATIENCE)


def test_a_di_job_resizes_itself(here: Installed, pipeline: Cluster) -> None:
    """A program in a pod finds the DI server and its token in the environment, requests more and fewer
    replicas, several at a time, gets their addresses, and reports data that appears in the status."""
    job = make_job(here.bed, "DIJob", "di-resizes", RESIZES_ITSELF, 2)
    job["spec"]["tasks"][0] |= {"maxReplicas": 4}
    job["spec"]["ttlSecondsAfterFinished"] = 3600  # a job that failed is to be looked at
    SUBMIT.begin(pipeline, SubmitRequest(manifest=job), StageIdentity("tests/cluster/di-resizes"))

    def reported() -> Any:
        return (client.get(pipeline, DI_JOBS, "di-resizes").get("status") or {}).get("profilings")

    until(lambda: reported() == {"places": 4}, "it reports", PATIENCE)
    run(pipeline, DELETE, DeleteRequest(name="di-resizes", kind="DIJob"))


def test_a_gang_is_told_to_volcano(here: Installed, bed: Bed, cluster: Cluster, pipeline: Cluster) -> None:
    """A scheduling policy creates a PodGroup, which follows the job. A PodGroup that somebody else created is
    not taken over."""
    apply(bed, [POD_GROUP_DEFINITION])
    until(lambda: _served(cluster), "PodGroups are served")
    foreign = {
        "apiVersion": POD_GROUPS.api_version,
        "kind": POD_GROUPS.kind,
        "metadata": {"name": "tf-taken", "namespace": here.jobs},
    }
    client.create(cluster, foreign)
    for name in ("tf-gang", "tf-taken"):
        manifest = make_job(here.bed, "TFJob", name, "pass", 2)
        manifest["spec"]["runPolicy"] = {"schedulingPolicy": {"queue": "q"}}
        SUBMIT.begin(pipeline, SubmitRequest(manifest=manifest), StageIdentity(f"tests/cluster/{name}"))

    def reason() -> str:
        return str((client.get(pipeline, TF_JOBS, "tf-taken").get("status") or {}).get("reason", ""))

    until(lambda: reason() == "NameConflict", "the clash is told")
    until(lambda: client.find(cluster, POD_GROUPS, "tf-gang", here.jobs) is not None, "the gang is made")
    group = client.get(cluster, POD_GROUPS, "tf-gang", here.jobs)
    assert group["spec"] == {"minMember": 2, "queue": "q"}
    one = {"worker": ReplicaResourceSpec(replicas=1)}
    SCALE.begin(
        pipeline, ScaleRequest(job="tf-gang", kind="TFJob", replicas=one), StageIdentity("tests/cluster/gang")
    )

    def members() -> int:
        return int(client.get(cluster, POD_GROUPS, "tf-gang", here.jobs)["spec"]["minMember"])

    until(lambda: members() == 1, "the gang is as large as its job")
    for name in ("tf-gang", "tf-taken"):
        client.delete(pipeline, TF_JOBS, name)


POD_GROUP_DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{POD_GROUPS.plural}.{POD_GROUPS.group}"},
    "spec": {
        "group": POD_GROUPS.group,
        "scope": "Namespaced",
        "names": {"kind": POD_GROUPS.kind, "plural": POD_GROUPS.plural, "singular": "podgroup"},
        "versions": [
            {
                "name": POD_GROUPS.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
"""As much of Volcano as a controller sees."""


def _served(cluster: Cluster) -> bool:
    try:
        client.list_objects(cluster, resources.Scope(POD_GROUPS, "default"))
    except NotFoundError:
        return False
    return True
