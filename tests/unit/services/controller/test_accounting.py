"""The account of what jobs' pods hold, in their statuses and for Prometheus."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.usage.model import HeldResource, read_usage
from edl_workflows.core.kubernetes import api, names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.controller import manager
from edl_workflows.services.controller.manager import Manager, ManagerOptions
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.observed_cluster import JobGroup
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import auto_plan, elastic_job, status_of

BEGIN = datetime.now(UTC).replace(microsecond=0)
MASTER = names.master_pod_name("mnist", 0)
WORKERS = [names.node_name("mnist", "worker", index) for index in (0, 1)]
OWNER = {names.OWNER_ANNOTATION: "airflow/digits/run/train/-1"}
GPUS = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"nvidia.com/gpu": "1"}}


def text(hours: float) -> str:
    """The moment so many hours after the beginning, as the API server writes it."""
    return (BEGIN + timedelta(hours=hours)).isoformat().replace("+00:00", "Z")


def set_pod(cluster: Cluster, name: str, begun: float, ended: float | None = None, code: int = 0) -> None:
    """Let a pod's program run from one moment to another, in hours, as a kubelet reports it."""
    state: dict[str, Any] = {"running": {"startedAt": text(begun)}}
    if ended is not None:
        state = {"terminated": {"startedAt": text(begun), "finishedAt": text(ended), "exitCode": code}}
    phase = "Running" if ended is None else "Failed" if code else "Succeeded"
    pod = client.get(cluster, api.PODS, name)
    container = pod["spec"]["containers"][0]["name"]
    ready = {"type": "Ready", "status": "True" if ended is None else "False"}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": text(begun)}
    status = {
        "phase": phase,
        "conditions": [bound, ready],
        "containerStatuses": [{"name": container, "restartCount": 0, "state": state}],
    }
    client.patch_status(cluster, api.PODS, name, status)


class CountedJob:
    """A job of two workers with a GPU each, under controllers that the test starts and stops.

    Attributes:
        hours: the controllers' time, since the beginning.
    """

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hours = 0.0
        monkeypatch.setattr(manager, "_now", self.now)
        self.cluster = cluster
        self.manager: Manager | None = None
        self.metrics = ControllerMetrics()
        self.start_controller()
        job = elastic_job(workers=2)
        job["metadata"]["annotations"] = OWNER
        job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]["resources"] = GPUS
        client.create(cluster, job)
        client.create(cluster, auto_plan("mnist", 0, 1))
        for pod in (MASTER, *WORKERS):
            eventually(partial(self._exists, pod))

    def now(self) -> datetime:
        """The controllers' time."""
        return BEGIN + timedelta(hours=self.hours)

    def _exists(self, pod: str) -> bool:
        return client.find(self.cluster, api.PODS, pod) is not None

    def start_controller(self) -> None:
        """Replace the controller by a new one."""
        self.stop_controller()
        self.metrics = ControllerMetrics()
        options = ManagerOptions(NamespaceSelection.of(self.cluster.namespace), workers=2, kinds=KINDS)
        self.manager = Manager(self.cluster, options, self.metrics, lambda: None)
        self.manager.start()

    def stop_controller(self) -> None:
        """Stop it."""
        if self.manager is not None:
            self.manager.stop()
        self.manager = None

    def gpu_hours(self) -> dict[str, float]:
        """As the status has them, by part."""
        usage = read_usage({"status": status_of(self.cluster, "mnist")})
        held = usage.held(HeldResource.GPU) if usage else {}
        return {str(part): round(seconds / 3600, 3) for part, seconds in held.items()}

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of a metric, by the values of their labels in alphabetical order."""
        families = self.metrics.registry.collect()
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
            if sample.name == name
        }

    def write_goodput(self, **seconds: int) -> None:
        """Account for the job's time as its master does."""
        client.patch_status(
            self.cluster, api.ELASTIC_JOBS, "mnist", {"goodput": {"seconds": seconds, "time": text(3)}}
        )

    def run_pods(self) -> None:
        """Let all pods run from the beginning on."""
        for pod in (MASTER, *WORKERS):
            set_pod(self.cluster, pod, 0)
        self.wait_active(2)

    def wait_active(self, workers: int) -> None:
        """Wait until the status has so many active workers, and nothing is left to do."""
        counts = partial(status_of, self.cluster, "mnist")
        eventually(lambda: counts()["replicaStatuses"]["worker"].get("active") == workers)
        self.settle()

    def settle(self) -> None:
        """Wait until the controller has nothing left to do."""
        eventually(lambda: self.manager is not None and self.manager.idle)

    def remove_pod(self, name: str) -> None:
        """Delete a pod at once."""
        client.delete(self.cluster, api.PODS, name, options=DeletionOptions(grace_seconds=0))
        eventually(lambda: self.manager is not None and not self._is_cached(name))

    def _is_cached(self, pod: str) -> bool:
        assert self.manager is not None
        group = JobGroup(self.cluster.namespace, "mnist")
        return self.manager.world.find("v1", "Pod", group, pod) is not None


@pytest.fixture
def job(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedJob]:
    """A job that waits for its pods to be bound."""
    made = CountedJob(cluster, monkeypatch)
    yield made
    made.stop_controller()


def test_the_account_equals_the_times_of_the_pods(job: CountedJob) -> None:
    """Two workers with a GPU, one for an hour and one until the controller deletes it because the job has
    ended, after three hours: the account has four GPU-hours."""
    cluster = job.cluster
    job.run_pods()
    job.hours = 1
    set_pod(cluster, WORKERS[0], 0, 1)
    job.remove_pod(WORKERS[0])
    job.hours = 3
    set_pod(cluster, MASTER, 0, 3)
    eventually(lambda: status_of(cluster, "mnist").get("phase") == "Succeeded")
    eventually(lambda: client.find(cluster, api.PODS, WORKERS[1]) is None)
    job.settle()

    assert sum(job.gpu_hours().values()) == 4
    usage = status_of(cluster, "mnist")["usage"]
    assert sum(usage["cpu"].values()) == pytest.approx(3600 * (4 * 2 + 3 * 0.1))
    assert usage["queueSeconds"] >= 0
    ended = ("ElasticJob", cluster.namespace, "Succeeded")
    assert job.samples("edl_jobs_ended_total") == {ended: 1.0}


def test_hours_go_on_after_a_restart_of_the_controller(job: CountedJob) -> None:
    """A controller that was restarted exports the hours of pods that had gone before, with the job's pipeline
    and divided by what the job's time was spent on."""
    cluster = job.cluster
    job.run_pods()
    job.hours = 2
    job.write_goodput(training=6000, redone=1200, queued=100)
    set_pod(cluster, WORKERS[0], 0, 2)
    job.wait_active(1)
    job.remove_pod(WORKERS[0])
    job.hours = 5
    job.start_controller()

    eventually(lambda: bool(job.samples("edl_job_gpu_hours")))
    key = ("mnist", "ElasticJob", cluster.namespace)
    assert job.samples("edl_job_gpu_hours") == {
        (*key, "useful", "airflow/digits"): pytest.approx(4 * 5 / 6),
        (*key, "lost", "airflow/digits"): pytest.approx(4 / 6),
        (*key, "unknown", "airflow/digits"): pytest.approx(3),
    }


def test_jobs_are_counted_by_phase(job: CountedJob) -> None:
    """Each namespace with jobs of a kind has the number of jobs in each phase."""
    namespace = job.cluster.namespace
    eventually(lambda: job.samples("edl_jobs").get(("ElasticJob", namespace, "Pending")) == 1.0)
    job.hours = 2
    assert job.samples("edl_jobs_longest_wait_seconds") == {
        ("ElasticJob", namespace): pytest.approx(7200, abs=60)
    }
    job.run_pods()

    eventually(lambda: job.samples("edl_jobs").get(("ElasticJob", namespace, "Running")) == 1.0)
    assert job.samples("edl_jobs_longest_wait_seconds") == {}
    assert sum(job.samples("edl_jobs").values()) == 1.0
    assert len(job.samples("edl_jobs")) == 7


def test_waiting_and_restarts_are_counted(job: CountedJob) -> None:
    """A job's time in the queue is observed once; restarts are counted from the master's reports, not those
    from before the controller began."""
    cluster, kind = job.cluster, ("ElasticJob", job.cluster.namespace)
    job.run_pods()
    eventually(lambda: job.samples("edl_job_queue_seconds_count").get(kind) == 1.0)
    patch = {"restarts": {"counts": {"OOMKilled": 2}}}
    client.patch_status(cluster, api.ELASTIC_JOBS, "mnist", patch)
    killed = ("OOMKilled", *kind)
    eventually(lambda: job.samples("edl_job_restarts_total").get(killed) == 2.0)
    job.start_controller()
    eventually(lambda: bool(job.samples("edl_jobs")))
    patch["restarts"]["counts"]["OOMKilled"] = 3
    client.patch_status(cluster, api.ELASTIC_JOBS, "mnist", patch)

    eventually(lambda: job.samples("edl_job_restarts_total").get(killed) == 1.0)
    assert job.samples("edl_job_queue_seconds_count") == {}


def test_old_accounts_are_written(job: CountedJob) -> None:
    """While pods run and nothing else is written, the account is written once an hour, and not more often."""
    cluster = job.cluster
    job.run_pods()
    assert job.manager is not None
    job.hours = 0.9
    job.manager.ledger.look()
    job.settle()
    assert job.gpu_hours() == {}
    job.hours = 1.1
    job.manager.ledger.look()

    eventually(lambda: job.gpu_hours() == {"unknown": 2.2})
    assert status_of(cluster, "mnist")["phase"] == "Running"
