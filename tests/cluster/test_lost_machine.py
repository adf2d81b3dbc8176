"""A machine is lost on a real cluster, and its Node stays: the kubelet is stopped, its containers run on."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import lost_pods, names
from edl_workflows.core.kubernetes.api import TF_JOBS
from edl_workflows.core.kubernetes.pod_state import condition_of
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS
from tests.cases.kinds import KIND_CASES
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.kwok import fake_nodes
from tests.cluster.bed.wait import until
from tests.cluster.installed import job as elastic_job
from tests.cluster.training import Place, PodJob, container
from tests.e2e.records import all_records, trained
from tests.e2e.submitted import SubmittedJob

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.long,
]

GRACE = 5
"""Seconds that the deleted pods get."""
EPOCHS = 60
TOLERATIONS = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}
    for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
]
"""How long a pod stays on a lost node, instead of Kubernetes' 300 s."""
EVICTED_SECONDS = 120
"""Kubernetes sees after 50 s that a node is lost, and taints it within 10 s."""


@pytest.fixture
def kubelet(bed: Bed) -> Iterator[None]:
    """The node's kubelet is started again afterwards, and its node is ready."""
    yield
    bed.daemon("kubelet").start()
    ready = 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
    until(lambda: set(bed.kubectl("get", "nodes", "-o", ready).split()) == {"True"}, "ready nodes", 120)


@pytest.fixture
def other_nodes(bed: Bed) -> Iterator[None]:
    """The cluster has other nodes, which take no pods of ours: where all nodes are lost, Kubernetes evicts
    nothing."""
    with fake_nodes(bed, 3):
        yield


def _submit_sleeper(here: Place, name: str, **pod_fields: Any) -> str:
    """A TFJob of one worker that sleeps; the name of its pod."""
    single = KIND_CASES["TFJob"].installed
    assert single is not None
    sleeper = container(here.bed).runs("-c", "import time; time.sleep(3600)")
    pod_spec = {"containers": [sleeper], "terminationGracePeriodSeconds": GRACE, **pod_fields}
    spec = single.make_spec(pod_spec, 1)
    head = {"apiVersion": TF_JOBS.api_version, "kind": "TFJob", "metadata": {"name": name}}
    client.create(here.cluster, {**head, "spec": spec})
    pod = f"{name}-worker-0"

    def runs() -> bool:
        found = client.find(here.cluster, PODS, pod)
        return found is not None and found["status"].get("phase") == "Running"

    until(runs, "the TFJob runs", 120)
    return pod


@pytest.mark.usefixtures("kubelet")
def test_jobs_go_on_after_their_machine_was_lost(here: Place, bed: Bed) -> None:
    """With the kubelet stopped, a deleted worker is replaced as soon as its grace period is over, not after
    its heartbeat's 600 s; the master is replaced after a minute, whether it still runs or not. A TFJob, whose
    pods have fixed names, says what to do. When the kubelet is back, all of them go on."""
    job: PodJob = here.submit("lost", EPOCHS, 0.4, {"ps": 1, "worker": 2})
    job.wait_step(5)
    sleeper = _submit_sleeper(here, "sleeper")
    master, worker = job.pod(names.MASTER_TYPE)["metadata"], job.pod(names.WORKER_TYPE, 1)["metadata"]
    before = {pod["metadata"]["name"] for pod in job.pods(names.WORKER_TYPE)}

    bed.daemon("kubelet").stop(kill=True)
    stopped = time.monotonic()
    for metadata in (worker, client.get(here.cluster, PODS, sleeper)["metadata"]):
        options = client.DeletionOptions(uid=metadata["uid"], grace_seconds=GRACE)
        client.delete(here.cluster, PODS, metadata["name"], options=options)
    limit = GRACE + lost_pods.CONFIRM_SECONDS + 30
    job.until(lambda: _names(job, names.WORKER_TYPE) - before or None, limit, "another worker")
    print(f"worker deleted to its replacement's pod: {time.monotonic() - stopped:.1f} s")

    message = job.until(lambda: _lost_pod(here, "sleeper"), limit, "the TFJob says it")
    assert f"kubectl delete pod {sleeper}" in message

    limit = 40 + lost_pods.UNREACHABLE_SECONDS + 60
    job.until(lambda: _names(job, names.MASTER_TYPE) - {master["name"]} or None, limit, "another master")
    print(f"kubelet stopped to the next master's pod: {time.monotonic() - stopped:.1f} s")
    job.until(lambda: master["name"] not in _names(job, names.MASTER_TYPE) or None, 30, "no old master")

    bed.daemon("kubelet").start()
    job.await_running(names.WORKER_TYPE, 2, frozenset({worker["name"]}), seconds=240)
    job.until(lambda: _lost_pod(here, "sleeper") is None or None, 120, "the TFJob goes on")
    job.go_on(seconds=240)
    assert job.get().status.master_restarts == 0
    job.training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED)
    assert set(trained(job.training.folder)) == all_records(EPOCHS)


@pytest.mark.usefixtures("other_nodes", "kubelet")
def test_pods_that_kubernetes_evicts_are_replaced(here: Place, bed: Bed) -> None:
    """With the kubelet stopped, Kubernetes taints the node and evicts the pods that tolerate that for some
    seconds. A worker is replaced at once, since nobody will confirm its end. A TFJob, whose pods have fixed
    names, says what to do. When the kubelet is back, both go on."""
    manifest = elastic_job(bed, "evicted")
    manifest["spec"]["replicaSpecs"][names.WORKER_TYPE]["template"]["spec"]["tolerations"] = TOLERATIONS
    job = SubmittedJob.submit(here.cluster, manifest)
    job.wait_step(1, 240)
    sleeper = _submit_sleeper(here, "evicted-sleeper", tolerations=TOLERATIONS)
    before = _names(job, names.WORKER_TYPE)

    bed.daemon("kubelet").stop(kill=True)
    stopped = time.monotonic()
    for pod in (*before, sleeper):
        job.until(lambda pod=pod: _was_evicted(here, pod) or None, EVICTED_SECONDS, f"{pod} is evicted")  # type: ignore[misc]
    print(f"kubelet stopped to the evictions: {time.monotonic() - stopped:.1f} s")
    job.until(lambda: _names(job, names.WORKER_TYPE) - before or None, 30, "another worker")
    print(f"kubelet stopped to the replacement's pod: {time.monotonic() - stopped:.1f} s")
    message = job.until(lambda: _lost_pod(here, "evicted-sleeper"), 30, "the TFJob says it")
    assert f"kubectl delete pod {sleeper}" in message

    bed.daemon("kubelet").start()
    progress = job.get().status.progress
    job.wait_step((progress.step if progress else 0) + 10, 240)
    job.until(lambda: _lost_pod(here, "evicted-sleeper") is None or None, 120, "the TFJob goes on")
    client.delete(here.cluster, ELASTIC_JOBS, job.name)


def _was_evicted(here: Place, pod: str) -> bool:
    """Whether the taint manager has deleted a pod."""
    found = client.get(here.cluster, PODS, pod)
    by_taint = condition_of(found, "DisruptionTarget").get("reason") == "DeletionByTaintManager"
    return by_taint and "deletionTimestamp" in found["metadata"]


def _lost_pod(here: Place, tf_job: str) -> str | None:
    """What a TFJob says of its lost pod; None if it has none."""
    status = client.get(here.cluster, TF_JOBS, tf_job)["status"]
    return str(status["message"]) if status["reason"] == "PodLost" else None


def _names(job: SubmittedJob, role: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in job.pods(role)}
