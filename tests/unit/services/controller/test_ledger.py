"""The account of a job in a world that a test fills, as watches and the controller's own writes do."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.actions import Actions
from edl_workflows.core.jobs.elastic_job.faults import RESTART_CAUSES
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.usage.model import HeldResource
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.schemas.definition import structural_schema
from edl_workflows.runtime.kube.client import ObjectList
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.watch import EventType, StreamedEvent
from edl_workflows.services.controller.accounting import ledger as ledger_module
from edl_workflows.services.controller.accounting.job_metrics import ExportedJobs
from edl_workflows.services.controller.accounting.ledger import UsageLedger
from edl_workflows.services.controller.observed_cluster import JobGroup, ObservedCluster
from edl_workflows.services.master.state.nodes import relaunch
from edl_workflows.services.master.state.nodes.registry import ExitReason
from tests.unit.services.controller.support import elastic_job

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KIND = next(kind for kind in kinds.KINDS if kind.name == "ElasticJob")
LABELS = ("ElasticJob", "ns")
STATUS: dict[str, Any] = {
    "phase": "Running",
    "usage": {"time": "2026-01-01T00:00:00Z", "seconds": {"useful": 1}},
    "restarts": {"counts": {"Killed": 1}},
    "goodput": {"seconds": {"training": 1}},
}


def text(seconds: float) -> str:
    """The moment so many seconds after the beginning, as the API server writes it."""
    return (BEGIN + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


class WatchedJob:
    """A job with pods of one core that run from the beginning on.

    Attributes:
        seconds: the controller's time, since the beginning.
        seen: the core-seconds of the job at each moment at which a worker was woken.
    """

    def __init__(self) -> None:
        self.seconds, self._version = 0.0, 0
        self.seen: list[float] = []
        cluster = Cluster(api_client=None, namespace="ns", key="none")
        self.world = ObservedCluster(
            cluster,
            NamespaceSelection.of("ns"),
            kinds.watched_sources([KIND]),
            [KIND.source.api],
            self._wake,
            lambda *_: None,
        )
        self.ledger = UsageLedger(self.world, [KIND], self.now, lambda _group: None)
        self.registry = CollectorRegistry()
        self.metrics = ExportedJobs(self.registry)
        self.metrics.observe(self.world, self.ledger, lambda _key: True, self.now)
        self.status: dict[str, Any] = {"phase": "Running"}
        self.store()

    def now(self) -> datetime:
        """The controller's time."""
        return BEGIN + timedelta(seconds=self.seconds)

    @property
    def manifest(self) -> dict[str, Any]:
        """The job as the cache has it."""
        (job,) = self.world.of_group(KIND.source, JobGroup("ns", "mnist"))
        return job

    def store(self, **status: Any) -> None:
        """Store fields of the job's status, and watch it."""
        job = elastic_job()
        self.status = {**self.status, **status}
        metadata = {"namespace": "ns", "uid": "job", "creationTimestamp": text(0)}
        self._watch(
            EventType.MODIFIED, KIND.source, {**job, "metadata": metadata | job["metadata"]}, self.status
        )

    def run_pod(self, name: str, ended: float | None = None) -> dict[str, Any]:
        """Watch a pod that runs, or has ended."""
        state: dict[str, Any] = {"running": {"startedAt": text(0)}}
        if ended is not None:
            state = {"terminated": {"startedAt": text(0), "finishedAt": text(ended), "exitCode": 0}}
        owner = {"kind": "ElasticJob", "name": "mnist", "uid": "job", "controller": True}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": name,
                "labels": {names.JOB_LABEL: "mnist", names.REPLICA_TYPE_LABEL: "worker"},
                "ownerReferences": [owner],
            },
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
        }
        status = {
            "phase": "Running" if ended is None else "Succeeded",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": text(0)}],
            "containerStatuses": [{"name": "main", "restartCount": 0, "state": state}],
        }
        return self._watch(EventType.MODIFIED, KIND.pods, pod, status)

    def remove_pod(self, pod: dict[str, Any]) -> None:
        """Watch the deletion of a pod by somebody else."""
        self._watch(EventType.DELETED, KIND.pods, pod, pod["status"])

    def list_no_pods(self) -> None:
        """List the pods after all were deleted by somebody else."""
        (informer,) = self.world._by_source[KIND.pods].informers
        informer._store(ObjectList([], str(self._version + 1)))

    def _watch(self, event: EventType, source: Any, obj: dict[str, Any], status: Any) -> dict[str, Any]:
        self._version += 1
        metadata = obj["metadata"] | {"resourceVersion": str(self._version)}
        stored = {**obj, "metadata": metadata, "status": status}
        (informer,) = self.world._by_source[source].informers
        informer._take(StreamedEvent(event, stored, str(self._version)))
        return stored

    def _wake(self, _group: JobGroup) -> None:
        jobs = self.world.of_group(KIND.source, JobGroup("ns", "mnist"))
        usage = self.ledger.measure(KIND, jobs[0]) if jobs else None
        self.seen.append(sum(usage.cpu.values()) if usage else 0.0)

    def extend(self, status: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The account that is written with a decision; None for none."""
        actions = self.ledger.extend(KIND, self.manifest, Actions(status=status), self.now())
        return (actions.status or {}).get("usage")

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of a metric, by the values of their labels in alphabetical order."""
        samples = (sample for family in self.registry.collect() for sample in family.samples)
        return {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value
            for sample in samples
            if sample.name == name
        }


def nullable_statuses() -> Iterator[dict[str, Any]]:
    """Statuses of ElasticJobs in which one field is null that may be null."""
    fields = structural_schema(ElasticJob)["properties"]["status"]["properties"]
    for field, schema in fields.items():
        if schema.get("nullable"):
            yield {field: None}
        for inner, inner_schema in schema.get("properties", {}).items():
            if inner_schema.get("nullable"):
                yield {field: {inner: None}}
    yield {"restarts": {}}
    yield {"goodput": {"seconds": {}}}


@pytest.mark.parametrize("nulls", list(nullable_statuses()), ids=str)
def test_a_field_that_is_null_stops_nothing(nulls: dict[str, Any]) -> None:
    """A job's master may write null into each field of the status that may be null: the watch, the account
    and the metrics go on."""
    job = WatchedJob()
    job.store(**STATUS)
    job.run_pod("a")
    job.seconds = 100
    job.store(**nulls)
    job.store(**STATUS)
    job.store(**nulls)

    assert job.manifest["metadata"]["resourceVersion"] == "6"
    measured = job.ledger.measure(KIND, job.manifest)
    assert measured is not None
    assert measured.hours(HeldResource.CPU) == pytest.approx(100 / 3600)
    assert job.extend({"reason": "x"}) is not None
    assert sum(job.samples("edl_jobs").values()) == 1.0


def test_the_fields_that_may_be_null_are_found() -> None:
    """The test before has the fields that the controller reads."""
    nulls = list(nullable_statuses())
    assert all({field: None} in nulls for field in ("usage", "restarts", "goodput"))


def test_a_node_whose_clock_is_ahead_costs_one_write() -> None:
    """A pod that ends after the controller's time is counted until its end, so that the account is not
    written again until then."""
    job = WatchedJob()
    job.run_pod("a", ended=90)
    job.store(phase="Succeeded")
    job.seconds = 60
    usage = job.extend()
    assert usage is not None
    assert usage["time"] == text(90)
    job.store(usage=usage)
    job.seconds = 61

    assert job.extend() is None


def test_a_decision_after_a_deletion_counts_the_pod() -> None:
    """The worker that a deletion wakes sees what the pod held."""
    job = WatchedJob()
    pod = job.run_pod("a")
    job.seconds, job.seen = 50, []
    job.remove_pod(pod)

    assert job.seen == [50.0]


def test_a_decision_after_a_list_counts_all_pods() -> None:
    """The worker that is woken by the first of several deletions sees what all pods held."""
    job = WatchedJob()
    job.run_pod("a")
    job.run_pod("b")
    job.seconds, job.seen = 50, []
    job.list_no_pods()

    assert job.seen == [100.0, 100.0]


def test_pods_of_deleted_jobs_are_forgotten() -> None:
    """A job that the controller itself deletes leaves nothing behind."""
    job = WatchedJob()
    job.remove_pod(job.run_pod("a"))
    job.ledger.look()
    assert job.ledger._gone.keys() == {"job"}
    job.world.removed(job.manifest)
    job.ledger.look()

    assert job.ledger._gone == {}


def test_a_young_account_is_not_written_again() -> None:
    """With an older definition that drops what else is written, reconciling ends after two writes; the last
    account of a job is written in any case."""
    job = WatchedJob()
    job.run_pod("a")
    job.seconds = 10
    usage = job.extend({"unknown": 1})
    assert usage is not None
    job.store(usage={**usage, "cpu": {"unknown": 10.0}})
    job.seconds = 10.5
    assert job.extend({"unknown": 1}) is None
    assert job.extend({"phase": "Succeeded"}) is not None
    job.seconds = 11.5
    assert job.extend({"unknown": 1}) is not None
    job.seconds = 10.5
    job.store(phase="Succeeded")
    job.run_pod("a", ended=10.25)

    assert job.extend() is not None


def test_an_old_account_is_due_until_it_is_written() -> None:
    """A conflict does not leave an old account unwritten."""
    job = WatchedJob()
    job.run_pod("a")
    job.seconds = 4000
    job.ledger.look()
    assert job.extend() is not None
    assert job.extend() is not None
    job.ledger.look()
    assert job.extend() is not None
    job.ledger.note_written(job.manifest)

    assert job.extend() is None


def test_accounts_of_ended_jobs_are_not_read_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for old accounts reads those of jobs that may need a write only."""
    job = WatchedJob()
    read: list[Any] = []
    monkeypatch.setattr(ledger_module, "read_usage", read.append)
    job.seconds = 4000
    job.ledger.look()
    assert len(read) == 1
    job.store(phase="Failed")
    read.clear()
    job.ledger.look()

    assert read == []


def test_waiting_is_observed_once_it_is_stored() -> None:
    """An older definition drops the account: then each write has the waiting time again, and none counts."""
    job = WatchedJob()
    before = job.manifest
    job.metrics.note_stored(KIND, before, before)
    assert job.samples("edl_job_queue_seconds_count") == {}
    job.store(usage={"time": text(9), "queueSeconds": 3.0})
    job.metrics.note_stored(KIND, before, job.manifest)
    job.metrics.note_stored(KIND, job.manifest, job.manifest)

    assert job.samples("edl_job_queue_seconds_sum") == {LABELS: 3.0}
    assert job.samples("edl_job_queue_seconds_count") == {LABELS: 1.0}


def test_a_job_waits_until_a_training_pod_runs() -> None:
    """An ElasticJob is Running as soon as its master runs, but waits while its workers wait for machines;
    nobody waits for a suspended job."""
    job = WatchedJob()
    running = {"type": "Running", "status": "True", "lastTransitionTime": text(60)}
    job.store(phase="Running", conditions=[running])
    job.seconds = 9060
    assert job.samples("edl_jobs_longest_wait_seconds") == {LABELS: 9000.0}
    job.store(phase="Suspended")
    assert job.samples("edl_jobs_longest_wait_seconds") == {}
    job.store(phase="Running")
    job.run_pod("a")

    assert job.samples("edl_jobs_longest_wait_seconds") == {}


def test_ended_jobs_are_counted_once() -> None:
    """A job counts when its last phase is stored, not when it is seen or written again."""
    job = WatchedJob()
    before = job.manifest
    job.store(phase="Failed")
    job.metrics.note_stored(KIND, before, job.manifest)
    job.metrics.note_stored(KIND, job.manifest, job.manifest)

    assert job.samples("edl_jobs_ended_total") == {(*LABELS, "Failed"): 1.0}


def test_series_end_with_the_jobs_of_their_namespace() -> None:
    """Counters stay while a namespace has jobs, however old, and ten minutes longer, so that Prometheus sees
    their last values; then they begin anew."""
    job = WatchedJob()
    job.store(restarts={"counts": {"Killed": 1}})
    key = ("Killed", *LABELS)
    job.seconds = 9000
    assert job.samples("edl_job_restarts_total") == {key: 1.0}
    job.world.removed(job.manifest)
    job.samples("edl_jobs")
    job.seconds = 9500
    assert job.samples("edl_job_restarts_total") == {key: 1.0}
    job.seconds = 9601
    job.samples("edl_jobs")
    assert job.samples("edl_job_restarts_total") == {}
    job.metrics._count_restarts(KIND, {"metadata": {"namespace": "ns"}}, "Killed", 2)

    assert job.samples("edl_job_restarts_total") == {key: 2.0}


def test_unknown_causes_of_restarts_are_one_series() -> None:
    """Whatever a master writes, there are few series."""
    job = WatchedJob()
    job.store(restarts={"counts": {"Killed": 1}})
    job.store(restarts={"counts": {"Killed": 2, "x" * 300: 2, "y": 1}})

    assert job.samples("edl_job_restarts_total") == {("Killed", *LABELS): 2.0, ("Other", *LABELS): 3.0}


def test_all_causes_that_masters_count_are_known() -> None:
    """The controller knows why nodes end, and why all processes are restarted."""
    whole = {relaunch.HANG, relaunch.RECOVERY, relaunch.RESUME, relaunch.ROLLBACK}
    assert set(ExitReason) - {ExitReason.SUCCEEDED} | whole == RESTART_CAUSES
