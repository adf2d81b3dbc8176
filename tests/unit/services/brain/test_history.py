"""The input of advice: the shares of a cluster, and which jobs get one."""

from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.protocol.brain import OptimizeRequest
from edl_workflows.core.scaling.dlrover.brain import algorithms
from edl_workflows.core.scaling.dlrover.brain.messages import question_of
from edl_workflows.services.brain.history import AdviceInputs, claim_of, shared_capacity, worker_shares
from edl_workflows.services.brain.observations import ClusterObservation, JobObservation
from edl_workflows.services.brain.store.records import JobKey, JobReport, StoredJob
from edl_workflows.services.brain.store.store import BrainStore
from tests.unit.services.brain import support
from tests.unit.services.brain.support import facts, role, sample

sqlite_store = support.sqlite_store
NOW = 1_000_000.0
GIB = 2.0**30


def stored(uid: str, requests: dict[str, float] | None = None, **more: Any) -> StoredJob:
    """A job whose master reports. If its pods' resources are given, the monitor sees it too."""
    seen = None
    if requests is not None:
        seen = JobObservation(uid, "ElasticJob", "team", "mnist", "Running", requests=requests)
    return StoredJob(JobKey("team", uid), facts(uid, **more), seen, NOW, None)


def held(cpu: float) -> dict[str, float]:
    """The requests of pods with this many cores, each as large as `role`."""
    return {"cpu": cpu, "memory": cpu * 2 * GIB}


def cluster(cpu: float, taken: float = 0.0, **more: float) -> ClusterObservation:
    """A cluster with this many cores, of which pods request some."""
    return ClusterObservation(
        NOW, allocatable={"cpu": cpu, "memory": 1000 * GIB} | more, requested={"cpu": taken}
    )


def test_two_jobs_share_a_cluster() -> None:
    """Workers of equal size share what other pods leave; parameter servers keep theirs."""
    jobs = [stored("a", held(12.0)), stored("b", held(12.0))]
    found = worker_shares(jobs, cluster(48.0, taken=32.0))
    # 48 cores - 8 of others - 2 parameter servers of 4 = 32 cores: 8 workers of 4.
    assert found == {JobKey("team", "a"): 4, JobKey("team", "b"): 4}


def test_a_job_that_stays_as_it_is_keeps_what_it_has() -> None:
    """A job whose workers may not change keeps their number, regardless of fairness."""
    fixed = {"ps": role(), "worker": role(9, auto_scale=False)}
    found = worker_shares(
        [stored("a", held(40.0), roles=fixed), stored("b", held(12.0))], cluster(60.0, taken=52.0)
    )
    assert found == {JobKey("team", "a"): 9, JobKey("team", "b"): 4}


def test_a_job_can_t_take_by_what_it_says() -> None:
    """Lower bounds above the nodes that a job has do not take nodes from other jobs."""
    greedy = {"ps": role(), "worker": role(2, bounds={"count": {"low": 50, "high": 60}})}
    found = worker_shares([stored("a", {}, roles=greedy), stored("b", {})], cluster(48.0))
    assert found[JobKey("team", "b")] >= 4


def test_a_job_that_does_not_exist_takes_nothing(sqlite_store: BrainStore) -> None:
    """Reports about jobs that the monitor does not see change no advice for other jobs, however many there
    are."""
    real = {"ps": role(), "worker": role(9)}
    sqlite_store.record(JobReport(facts("real", roles=real)), NOW)
    seen = JobObservation("real", "ElasticJob", "team", "mnist", "Running", requests=held(40.0))
    sqlite_store.record_jobs([seen], [], NOW)
    sqlite_store.record_cluster(cluster(48.0, 40.0))
    for number in range(5):
        invented = facts(f"fake-{number}", namespace="other", roles={"worker": role(60, cpu=4.0)})
        sqlite_store.record(JobReport(invented), NOW + 1 + number)
    assert [job.key.uid for job in sqlite_store.running(NOW - 60, 3)] == ["real"]

    request = asked("real", roles=real)
    advice = algorithms.optimize_job(
        question_of(request), AdviceInputs(sqlite_store).request(request, NOW + 10)
    )
    worker = advice.node_group_resources.get("worker")
    assert worker is None or worker.count is None or worker.count >= 9


INVENTED = {
    "more workers than it has": {"worker": role(500)},
    "larger workers": {"worker": role(2, cpu=1e6)},
    "many large parameter servers": {"ps": role(1_000, cpu=1_000.0), "worker": role(2)},
    "workers whose count is fixed": {"worker": role(500, auto_scale=False)},
    "bounds that begin high": {"worker": role(500, bounds={"count": {"low": 400, "high": 500}})},
}


@pytest.mark.parametrize("invented", INVENTED.values(), ids=INVENTED)
def test_what_is_reserved_is_what_pods_hold(invented: dict[str, Any]) -> None:
    """The resources that the pods request count, so that a job can't displace another tenant's by the numbers
    it reports."""
    liar = stored("liar", held(8.0), namespace="other", roles=invented)
    honest = stored("honest", held(24.0), roles={"worker": role(6)})
    found = worker_shares([replace(liar, key=JobKey("other", "liar")), honest], cluster(48.0, taken=32.0))
    # 48 cores, of which the liar's pods hold 8: at least half is left.
    assert found[JobKey("team", "honest")] >= 6


def test_many_jobs_of_one_namespace_are_one_tenant() -> None:
    """However many jobs a namespace has, a job in another one gets half of the cluster if both want all of
    it."""
    many = [
        replace(
            stored(f"small-{i}", {"cpu": 0.0}, roles={"worker": role(0)}), key=JobKey("other", f"small-{i}")
        )
        for i in range(10)
    ]
    alone = stored("alone", held(40.0), roles={"worker": role(10)})
    found = worker_shares([*many, alone], cluster(80.0, taken=40.0))
    assert found[JobKey("team", "alone")] >= 10


def test_every_job_may_have_one_worker() -> None:
    """A job whose first pod does not fit may still have one worker."""
    waiting = stored("waiting", {"cpu": 0.0}, roles={"worker": role(1)})
    large = stored("large", held(48.0), roles={"worker": role(12, auto_scale=False)})
    assert worker_shares([waiting, large], cluster(48.0, taken=48.0))[JobKey("team", "waiting")] >= 1


def test_without_a_monitor_nothing_is_shared() -> None:
    """A cluster that is unknown or has no resources limits no job."""
    assert worker_shares([stored("a")], ClusterObservation(NOW)) == {}


CAPACITIES = {
    "others are taken off": ([], cluster(48.0, 8.0), {"cpu": 40.0, "memory": 1_024_000.0}),
    "the jobs' own pods are not": (
        [stored("a", {"cpu": 6.0})],
        cluster(48.0, 8.0),
        {"cpu": 46.0, "memory": 1_024_000.0},
    ),
    "GPUs of any maker": (
        [],
        cluster(4.0, **{"nvidia.com/gpu": 8.0, "amd.com/gpu": 1.0}),
        {"cpu": 4.0, "memory": 1_024_000.0, "gpu": 9.0},
    ),
    "a full cluster has nothing, and is still one": (
        [],
        cluster(4.0, 9.0),
        {"cpu": 1e-9, "memory": 1_024_000.0},
    ),
}


@pytest.mark.parametrize(("jobs", "sample_", "expected"), CAPACITIES.values(), ids=CAPACITIES)
def test_capacity(jobs: list[StoredJob], sample_: ClusterObservation, expected: dict[str, float]) -> None:
    """The capacity of a cluster is in cores, MiB and devices."""
    assert shared_capacity(jobs, sample_) == expected


def test_a_job_without_sense_has_no_claim() -> None:
    """A job without workers, or with impossible bounds, has no share."""
    assert claim_of(stored("a", {}, roles={"ps": role()})) is None
    impossible = {"worker": role(1, bounds={"count": {"low": 9, "high": 2}})}
    assert claim_of(stored("a", {}, roles=impossible)) is None


def asked(uid: str, **more: Any) -> OptimizeRequest:
    """A request for advice of a running job."""
    job = facts(uid, **more)
    nodes = [
        {"name": f"mnist-edljob-{name}-{i}", "role": name, "id": i, "resource": {"cpu": 4, "memory": 8_192}}
        for name, said in job.roles.items()
        for i in range(said.count)
    ]
    return OptimizeRequest.model_validate({"job": job, "stage": "job_stage_running", "nodes": nodes})


def test_a_job_beyond_its_share_gives_back(sqlite_store: BrainStore) -> None:
    """In a full cluster a large job shrinks in favour of a small one and gives the reason; the small one does
    not shrink."""
    large = {"ps": role(), "worker": role(9)}
    for uid, roles, cores in (("large", large, 40.0), ("small", {"ps": role(), "worker": role(1)}, 8.0)):
        sqlite_store.record(JobReport(facts(uid, roles=roles)), NOW)
        seen = JobObservation(uid, "ElasticJob", "team", "mnist", "Running", requests=held(cores))
        sqlite_store.record_jobs([seen], [], NOW)
    sqlite_store.record_cluster(cluster(48.0, 48.0))
    histories = AdviceInputs(sqlite_store)

    request = asked("large", roles=large)
    advice = algorithms.optimize_job(question_of(request), histories.request(request, NOW))
    assert advice.node_group_resources["worker"].count == 5
    assert "share" in advice.reasons["worker"]
    request = asked("small", roles={"ps": role(), "worker": role(1)})
    advice = algorithms.optimize_job(question_of(request), histories.request(request, NOW))
    assert advice.empty


def test_what_the_monitor_saw_long_ago_says_nothing(sqlite_store: BrainStore) -> None:
    """Observations of a monitor that has stopped are not used for shares."""
    sqlite_store.record(JobReport(facts()), NOW)
    seen = JobObservation("uid-1", "ElasticJob", "team", "mnist", "Running", requests=held(12.0))
    sqlite_store.record_jobs([seen], [], NOW)
    sqlite_store.record_cluster(cluster(48.0))
    request = asked("uid-1")
    assert AdviceInputs(sqlite_store).request(request, NOW + 100).claims
    assert not AdviceInputs(sqlite_store).request(request, NOW + 130).claims


def test_history_is_of_former_jobs(sqlite_store: BrainStore) -> None:
    """Advice uses the job's own samples and those of former jobs of its name."""
    former = facts("former")
    sqlite_store.record(JobReport(former, [sample(NOW - 9_000)]), NOW - 9_000)
    sqlite_store.record(JobReport(facts(), [sample(NOW)]), NOW)
    request = AdviceInputs(sqlite_store).request(asked("uid-1", training={"batch_size": 32}), NOW)
    assert request.job.samples == (sample(NOW),)
    assert [record.samples for record in request.history] == [(sample(NOW - 9_000),)]
    assert request.training.batch_size == 32
