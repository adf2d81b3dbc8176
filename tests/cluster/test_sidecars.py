"""Containers that injectors add to pods, on a real cluster: the job's own container decides."""

from typing import Any

import pytest

from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names, pod_state
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import EVENTS, PODS, Scope
from tests.cases.kinds import KIND_CASES
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until
from tests.cluster.training import Place, PodJob, container
from tests.e2e.submitted import Training

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PROXY = "a-proxy"
"""The kubelet sorts the statuses of containers by name: that of the proxy comes first."""
SMALL = {"resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}}
"""What a container requests: many run at once."""


def _proxy(bed: Bed) -> dict[str, Any]:
    return {**container(bed).runs("-c", "import time; time.sleep(3600)"), **SMALL, "name": PROXY}


def _inject(bed: Bed, pod_spec: dict[str, Any], *, native: bool = False) -> None:
    """Add a proxy, as service meshes do: before the others, or as a sidecar among the init containers."""
    pod_spec["terminationGracePeriodSeconds"] = 2
    if native:
        pod_spec["initContainers"] = [{**_proxy(bed), "restartPolicy": "Always"}]
    else:
        pod_spec["containers"].insert(0, _proxy(bed))


def _templates(value: Any) -> list[dict[str, Any]]:
    """The pod specs in a job's spec."""
    if isinstance(value, list):
        return [found for one in value for found in _templates(one)]
    if not isinstance(value, dict):
        return []
    if "containers" in value:
        return [value]
    return [found for one in value.values() for found in _templates(one)]


def _name(kind_name: str, code: int, native: bool) -> str:
    return f"beside-{kind_name.lower()}-{code}-{'native' if native else 'plain'}"


ENDS = [
    ("TFJob", 0, JobPhase.SUCCEEDED),
    ("TFJob", 1, JobPhase.FAILED),
    ("PyTorchJob", 0, JobPhase.SUCCEEDED),
    ("PyTorchJob", 1, JobPhase.FAILED),
    ("DIJob", 0, JobPhase.SUCCEEDED),
]


@pytest.fixture(scope="module")
def jobs(here: Place) -> None:
    """A job for each case, submitted at once: what takes long is to wait."""
    for native in (False, True):
        for kind_name, code, _ in ENDS:
            kind, single = kinds.kind_of(kind_name), KIND_CASES[kind_name].installed
            assert single is not None
            program = container(here.bed).runs("-c", f"import sys; print('done'); sys.exit({code})")
            spec = single.make_spec({"containers": [program | SMALL], "restartPolicy": "Never"}, 1)
            for template in _templates(spec):
                _inject(here.bed, template, native=native)
            name = _name(kind_name, code, native)
            head = {"apiVersion": kind.source.api.api_version, "kind": kind_name, "metadata": {"name": name}}
            client.create(here.cluster, {**head, "spec": spec})


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("native", [False, True], ids=["plain", "native"])
@pytest.mark.parametrize(("kind_name", "code", "phase"), ENDS)
def test_a_job_ends_with_its_own_container(
    here: Place, kind_name: str, code: int, phase: JobPhase, native: bool
) -> None:
    """A job whose program ends beside a proxy that runs on ends like the program, and no pod stays."""
    kind, name = kinds.kind_of(kind_name), _name(kind_name, code, native)

    def ends() -> bool:
        manifest = client.get(here.cluster, kind.source.api, name)
        return kind.view_stored(manifest).phase.final

    until(ends, f"{kind_name} {name} ends", 240)
    manifest = client.get(here.cluster, kind.source.api, name)
    assert kind.view_stored(manifest).phase is phase, manifest["status"]

    def stopped() -> bool:
        scope = Scope(PODS, here.cluster.namespace, label_selector=kind.pods_of(name))
        return all(pod_state.has_stopped(pod) for pod in client.list_objects(here.cluster, scope).items)

    until(stopped, "no container of its pods runs", 60)
    if not native and kind_name != "DIJob":
        events = client.list_objects(here.cluster, Scope(EVENTS, here.cluster.namespace)).items
        said = [event["message"] for event in events if event["involvedObject"].get("name") == name]
        assert any(f"{PROXY} still runs" in note for note in said), said
    client.delete(here.cluster, kind.source.api, name)


@pytest.mark.tensorflow
def test_workers_and_master_beside_a_proxy(here: Place) -> None:
    """A worker that is killed beside a proxy is replaced at once with the right cause, not after its
    heartbeat's 600 s; the job succeeds although no pod of it would end by itself."""
    training = Training(here.folder / "beside", 40, 0.4, {"ps": 1, "worker": 2})
    training.folder.mkdir(parents=True)
    manifest = training.manifest("beside", container(here.bed))
    specs = manifest["spec"]["replicaSpecs"]
    specs[names.MASTER_TYPE] = {
        "template": {
            "spec": {"containers": [container(here.bed).runs("-m", "edl_workflows", "master", "run")]}
        }
    }
    # The templates of elastic jobs begin with their own container; an injector would put a proxy before it.
    for spec in specs.values():
        spec["template"]["spec"]["terminationGracePeriodSeconds"] = 5
        containers = spec["template"]["spec"]["containers"]
        if all(one["name"] != PROXY for one in containers):
            containers.append(_proxy(here.bed))
    client.create(here.cluster, manifest)
    job = PodJob(here.cluster, "beside", training)
    job.wait_step(5)
    victim = job.pod(names.WORKER_TYPE, 1)["metadata"]["name"]
    job.kill_agent(victim)
    job.await_running(names.WORKER_TYPE, 2, frozenset({victim}), seconds=60)
    job.go_on()
    training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED)
    job.until(lambda: not job.running(names.MASTER_TYPE), 60, "the master's pod has ended")
