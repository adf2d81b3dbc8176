"""What people are told, on SQLite and on PostgreSQL."""

import itertools

import pytest

from edl_workflows.core.exceptions import NotFoundError
from edl_workflows.core.protocol.brain import JobEnd
from edl_workflows.services.brain.observations import (
    ChangeObservation,
    ClusterObservation,
    JobObservation,
    RoleObservation,
)
from edl_workflows.services.brain.page import messages, queries
from edl_workflows.services.brain.page.queries import RowRange
from edl_workflows.services.brain.store.records import JobReport, StoredAdvice
from edl_workflows.services.brain.store.store import BrainStore
from tests.unit.services.brain import support
from tests.unit.services.brain.support import facts, sample

_postgres_folder, database_url, store = support._postgres_folder, support.database_url, support.store

NOW = 1_000_000.0
ALL = None


def test_a_job_of_which_only_its_master_tells(store: BrainStore) -> None:
    """Without a monitor, the phase follows from the master's reports. Roles are those that the job wants, and
    the number of ready nodes is unknown."""
    ends = {
        "running": None,
        "done": JobEnd(time=NOW, completed=True),
        "lost": JobEnd(time=NOW, completed=False),
    }
    for uid, end in ends.items():
        store.record(JobReport(facts(uid), [sample(NOW - 15, step=1), sample(NOW, step=7)], end=end), NOW)
    told = {job.uid: job for job in queries.query_jobs(store, ALL, RowRange(), NOW).jobs}
    assert {uid: job.phase for uid, job in told.items()} == {
        "running": "Running",
        "done": "Succeeded",
        "lost": "Failed",
    }
    assert (told["done"].step, told["done"].speed, told["done"].finished) == (7, 10.0, NOW)
    worker = told["running"].replicas["worker"]
    assert (worker.desired, worker.ready) == (2, None)


def test_a_job_that_the_monitor_sees(store: BrainStore) -> None:
    """The job has the counts that the monitor saw, and the progress that its master reported."""
    seen = JobObservation(
        "uid-1", "ElasticJob", "team", "mnist", "Pending", replicas={"ps": RoleObservation(2, 1)}, step=3
    )
    store.record_jobs([seen], [], NOW)
    assert queries.query_job(store, ALL, "uid-1", NOW).job.step == 3
    store.record(JobReport(facts(), [sample(NOW, step=9)]), NOW)
    told = queries.query_job(store, ALL, "uid-1", NOW).job
    assert (told.phase, told.step, told.replicas["ps"].ready) == ("Pending", 9, 1)


def test_goodput(store: BrainStore) -> None:
    """Goodput counts neither steps that were made again nor the time without training."""
    #        gains  gains  lost(back to 100)  again 200  gains  stands still
    steps = [0, 100, 200, 100, 200, 300, 300]
    store.record(JobReport(facts(), [sample(NOW + 10 * i, step=step) for i, step in enumerate(steps)]), NOW)
    store.record(JobReport(facts("young"), [sample(NOW), sample(NOW + 10, step=5)]), NOW)
    told = {job.uid: job.goodput for job in queries.query_jobs(store, ALL, RowRange(), NOW).jobs}
    assert told["uid-1"] == pytest.approx(3 / 6)
    assert told["young"] is None


def test_lists_are_paged_and_searched(store: BrainStore) -> None:
    """Lists are paged with the newest first. Wildcard characters in a search match only themselves."""
    for number in range(7):
        store.record(JobReport(facts(f"uid-{number}", name=f"job-{number}")), NOW + number)
    first = queries.query_jobs(store, ALL, RowRange(3, 0), NOW)
    assert (first.total, [job.name for job in first.jobs]) == (7, ["job-6", "job-5", "job-4"])
    assert [job.name for job in queries.query_jobs(store, ALL, RowRange(3, 6), NOW).jobs] == ["job-0"]
    assert [job.name for job in queries.query_jobs(store, ALL, RowRange(), NOW, search="b-3").jobs] == [
        "job-3"
    ]
    assert queries.query_jobs(store, ALL, RowRange(), NOW, search="%").total == 0
    assert queries.query_jobs(store, ALL, RowRange(), NOW, phase="Failed").total == 0
    assert queries.query_jobs(store, {"team"}, RowRange(), NOW).total == 7
    assert queries.query_jobs(store, {"other"}, RowRange(), NOW).total == 0
    assert queries.query_jobs(store, set(), RowRange(), NOW).total == 0


def test_curves_have_few_points(store: BrainStore) -> None:
    """However long the history is, a curve has few points, evenly chosen, including the newest one."""
    times = [NOW + i for i in range(1_203)]
    for start in range(0, len(times), 500):
        some = [sample(time, step=int(time - NOW), workers=1) for time in times[start : start + 500]]
        store.record(JobReport(facts(), some), NOW)
    for time in times:
        if time % 3 == 0:
            store.record_cluster(ClusterObservation(time, nodes=2))
    points = queries.query_job(store, ALL, "uid-1", NOW).points
    assert len(points) == 401
    assert points[-1].time == times[-1]
    assert {b.time - a.time for a, b in itertools.pairwise(points)} == {3.0}
    assert points[0].nodes == {"ps": 1, "worker": 1}
    cluster = queries.query_cluster(store, NOW, NOW, monitored=True)
    assert len(cluster.points) <= messages.MAX_POINTS
    assert cluster.points[-1].nodes == 2


def test_an_answer_goes_into_its_scale_plan(store: BrainStore) -> None:
    """An answer of Brain is listed until the job has a ScalePlan made from it. Then the plan is listed, with
    its result."""
    store.record_advice(StoredAdvice("a", "team", "mnist", NOW, ("worker: 3 nodes",), "room"))
    store.record_advice(StoredAdvice("b", "team", "other", NOW, ("worker: 3 nodes",), "room"))
    assert queries.query_plans(store, ALL, RowRange(), NOW).total == 2
    plan = ChangeObservation(
        "p", "team", "mnist-autoscale-1", "mnist", ("worker: 3",), "room", "Succeeded", created=NOW + 5
    )
    store.record_plans([plan], [], NOW + 6)
    told = queries.query_plans(store, ALL, RowRange(), NOW)
    assert [(one.name, one.job, one.phase) for one in told.plans] == [
        ("mnist-autoscale-1", "mnist", "Succeeded"),
        ("", "other", ""),
    ]
    assert [one.id for one in queries.query_plans(store, ALL, RowRange(), NOW, job="other").plans] == ["b"]
    assert queries.query_plans(store, {"else"}, RowRange(), NOW).total == 0
    store.record_advice(StoredAdvice("c", "team", "mnist", NOW + 9, ("worker: 4 nodes",), "more room"))
    assert queries.query_plans(store, ALL, RowRange(), NOW).total == 3


def test_no_such_job(store: BrainStore) -> None:
    """A job that does not exist, or is in a namespace of others, is not found."""
    store.record(JobReport(facts()), NOW)
    for namespaces, uid in ((ALL, "gone"), ({"other"}, "uid-1")):
        with pytest.raises(NotFoundError):
            queries.query_job(store, namespaces, uid, NOW)
