"""A machine is lost on a real cluster, and its Node stays: the kubelet is stopped, its containers run on."""

import time
from collections.abc import Iterator

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import lost_pods, names
from edl_workflows.core.kubernetes.api import TF_JOBS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import PODS
from tests.cases.kinds import KIND_CASES
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until
from tests.cluster.training import Place, PodJob, container
from tests.e2e.records import all_records, trained

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


@pytest.fixture
def kubelet(bed: Bed) -> Iterator[None]:
    """The node's kubelet is started again afterwards, and its node is ready."""
    yield
    bed.daemon("kubelet").start()
    ready = 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
    until(lambda: set(bed.kubectl("get", "nodes", "-o", ready).split()) == {"True"}, "ready nodes", 120)


def _submit_sleeper(here: Place) -> str:
    """A TFJob of one worker that sleeps; the name of its pod."""
    single = KIND_CASES["TFJob"].installed
    assert single is not None
    sleeper = container(here.bed).runs("-c", "import time; time.sleep(3600)")
    spec = single.make_spec({"containers": [sleeper], "terminationGracePeriodSeconds": GRACE}, 1)
    head = {"apiVersion": TF_JOBS.api_version, "kind": "TFJob", "metadata": {"name": "sleeper"}}
    client.create(here.cluster, {**head, "spec": spec})
    pod = "sleeper-worker-0"

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
    sleeper = _submit_sleeper(here)
    master, worker = job.pod(names.MASTER_TYPE)["metadata"], job.pod(names.WORKER_TYPE, 1)["metadata"]
    before = {pod["metadata"]["name"] for pod in job.pods(names.WORKER_TYPE)}

    bed.daemon("kubelet").stop(kill=True)
    stopped = time.monotonic()
    # On a cluster with one node only, Kubernetes evicts nothing from it.
    for metadata in (worker, client.get(here.cluster, PODS, sleeper)["metadata"]):
        options = client.DeletionOptions(uid=metadata["uid"], grace_seconds=GRACE)
        client.delete(here.cluster, PODS, metadata["name"], options=options)
    limit = GRACE + lost_pods.CONFIRM_SECONDS + 30
    job.until(lambda: _names(job, names.WORKER_TYPE) - before or None, limit, "another worker")
    print(f"worker deleted to its replacement's pod: {time.monotonic() - stopped:.1f} s")

    def says_lost() -> str | None:
        status = client.get(here.cluster, TF_JOBS, "sleeper")["status"]
        return status["message"] if status["reason"] == "PodLost" else None

    message = job.until(says_lost, limit, "the TFJob says it")
    assert f"kubectl delete pod {sleeper}" in message

    limit = 40 + lost_pods.UNREACHABLE_SECONDS + 60
    job.until(lambda: _names(job, names.MASTER_TYPE) - {master["name"]} or None, limit, "another master")
    print(f"kubelet stopped to the next master's pod: {time.monotonic() - stopped:.1f} s")
    job.until(lambda: master["name"] not in _names(job, names.MASTER_TYPE) or None, 30, "no old master")

    bed.daemon("kubelet").start()
    job.await_running(names.WORKER_TYPE, 2, frozenset({worker["name"]}), seconds=240)
    job.until(lambda: says_lost() is None or None, 120, "the TFJob goes on")
    job.go_on(seconds=240)
    assert job.get().status.master_restarts == 0
    job.training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED)
    assert set(trained(job.training.folder)) == all_records(EPOCHS)


def _names(job: PodJob, role: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in job.pods(role)}
