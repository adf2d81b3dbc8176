"""What people are told, on SQLite and on PostgreSQL."""

import itertools

import pytest

from edl_workflows.brain.page import reading, views
from edl_workflows.brain.page.reading import Page
from edl_workflows.brain.seen import ClusterSample, JobSeen, PlanSeen, RoleSeen
from edl_workflows.brain.store.store import Store
from edl_workflows.brain.store.stored import Answer, Report
from edl_workflows.exceptions import NotFoundError
from edl_workflows.protocol.brain import JobEnd
from tests.unit.brain import support
from tests.unit.brain.support import facts, sample

_postgres_folder, database_url, store = support._postgres_folder, support.database_url, support.store

NOW = 1_000_000.0
ALL = None


def test_a_job_of_which_only_its_master_tells(store: Store) -> None:
    """Its phase follows from what was reported; roles are those that it wants, and nobody says how many are ready."""
    ends = {
        "running": None,
        "done": JobEnd(time=NOW, completed=True),
        "lost": JobEnd(time=NOW, completed=False),
    }
    for uid, end in ends.items():
        store.record(Report(facts(uid), [sample(NOW - 15, step=1), sample(NOW, step=7)], end=end), NOW)
    told = {job.uid: job for job in reading.jobs(store, ALL, Page(), NOW).jobs}
    assert {uid: job.phase for uid, job in told.items()} == {
        "running": "Running",
        "done": "Succeeded",
        "lost": "Failed",
    }
    assert (told["done"].step, told["done"].speed, told["done"].finished) == (7, 10.0, NOW)
    worker = told["running"].replicas["worker"]
    assert (worker.desired, worker.ready) == (2, None)


def test_a_job_that_the_monitor_sees(store: Store) -> None:
    """Is told with the monitor's counts, and with its master's progress where there is one."""
    seen = JobSeen("uid-1", "ElasticJob", "team", "mnist", "Pending", replicas={"ps": RoleSeen(2, 1)}, step=3)
    store.record_jobs([seen], [], NOW)
    assert reading.job(store, ALL, "uid-1", NOW).job.step == 3
    store.record(Report(facts(), [sample(NOW, step=9)]), NOW)
    told = reading.job(store, ALL, "uid-1", NOW).job
    assert (told.phase, told.step, told.replicas["ps"].ready) == ("Pending", 9, 1)


def test_goodput(store: Store) -> None:
    """The time of steps that were made twice does not count, nor that in which nothing was done."""
    #        gains  gains  lost(back to 100)  again 200  gains  stands still
    steps = [0, 100, 200, 100, 200, 300, 300]
    store.record(Report(facts(), [sample(NOW + 10 * i, step=step) for i, step in enumerate(steps)]), NOW)
    store.record(Report(facts("young"), [sample(NOW), sample(NOW + 10, step=5)]), NOW)
    told = {job.uid: job.goodput for job in reading.jobs(store, ALL, Page(), NOW).jobs}
    assert told["uid-1"] == pytest.approx(3 / 6)
    assert told["young"] is None


def test_lists_are_paged_and_searched(store: Store) -> None:
    """The newest first; a pattern's characters are only characters."""
    for number in range(7):
        store.record(Report(facts(f"uid-{number}", name=f"job-{number}")), NOW + number)
    first = reading.jobs(store, ALL, Page(3, 0), NOW)
    assert (first.total, [job.name for job in first.jobs]) == (7, ["job-6", "job-5", "job-4"])
    assert [job.name for job in reading.jobs(store, ALL, Page(3, 6), NOW).jobs] == ["job-0"]
    assert [job.name for job in reading.jobs(store, ALL, Page(), NOW, search="b-3").jobs] == ["job-3"]
    assert reading.jobs(store, ALL, Page(), NOW, search="%").total == 0
    assert reading.jobs(store, ALL, Page(), NOW, phase="Failed").total == 0
    assert reading.jobs(store, {"team"}, Page(), NOW).total == 7
    assert reading.jobs(store, {"other"}, Page(), NOW).total == 0
    assert reading.jobs(store, set(), Page(), NOW).total == 0


def test_curves_have_few_points(store: Store) -> None:
    """However long the past is, with its newest point, evenly chosen."""
    times = [NOW + i for i in range(1_203)]
    for start in range(0, len(times), 500):
        some = [sample(time, step=int(time - NOW), workers=1) for time in times[start : start + 500]]
        store.record(Report(facts(), some), NOW)
    for time in times:
        if time % 3 == 0:
            store.record_cluster(ClusterSample(time, nodes=2))
    points = reading.job(store, ALL, "uid-1", NOW).points
    assert len(points) == 401
    assert points[-1].time == times[-1]
    assert {b.time - a.time for a, b in itertools.pairwise(points)} == {3.0}
    assert points[0].nodes == {"ps": 1, "worker": 1}
    cluster = reading.cluster(store, NOW, NOW, monitored=True)
    assert len(cluster.points) <= views.MAX_POINTS
    assert cluster.points[-1].nodes == 2


def test_an_answer_goes_into_its_scale_plan(store: Store) -> None:
    """What Brain answered is listed until a ScalePlan of the job follows; that one is listed with its fate."""
    store.record_answer(Answer("a", "team", "mnist", NOW, ("worker: 3 nodes",), "room"))
    store.record_answer(Answer("b", "team", "other", NOW, ("worker: 3 nodes",), "room"))
    assert reading.plans(store, ALL, Page(), NOW).total == 2
    plan = PlanSeen(
        "p", "team", "mnist-autoscale-1", "mnist", ("worker: 3",), "room", "Succeeded", created=NOW + 5
    )
    store.record_plans([plan], [], NOW + 6)
    told = reading.plans(store, ALL, Page(), NOW)
    assert [(one.name, one.job, one.phase) for one in told.plans] == [
        ("mnist-autoscale-1", "mnist", "Succeeded"),
        ("", "other", ""),
    ]
    assert [one.id for one in reading.plans(store, ALL, Page(), NOW, job="other").plans] == ["b"]
    assert reading.plans(store, {"else"}, Page(), NOW).total == 0
    store.record_answer(Answer("c", "team", "mnist", NOW + 9, ("worker: 4 nodes",), "more room"))
    assert reading.plans(store, ALL, Page(), NOW).total == 3


def test_no_such_job(store: Store) -> None:
    """Or not in these namespaces."""
    store.record(Report(facts()), NOW)
    for namespaces, uid in ((ALL, "gone"), ({"other"}, "uid-1")):
        with pytest.raises(NotFoundError):
            reading.job(store, namespaces, uid, NOW)
