"""What a running job costs the API server: its master's writes over minutes of simulated time, against a
cluster that sends each write back to the master's own watch.
"""

import copy
import itertools
import random
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.awaited_steps import MAX_WAITERS, annotation_of
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.services.master import kubernetes
from edl_workflows.services.master.shards.snapshot import JobPosition
from edl_workflows.services.master.state import settings
from edl_workflows.services.master.state.checkpoints import Checkpoints, SavedCheckpoint
from edl_workflows.services.master.state.job_result import TrainingResult
from edl_workflows.services.master.status_pace import REPORT_SECONDS, YOUNG_SECONDS
from tests.unit.services.master.steady_job import (
    STEPS_PER_SECOND,
    FakeCluster,
    SteadyJob,
    Write,
    job_manifest,
    running_job,
)
from tests.unit.services.master.virtual_time import Clock, run_in_virtual_time

SERVERS = job_manifest("ParameterServerStrategy", ps=1, worker=1)
COLLECTIVE = job_manifest("AllreduceStrategy", worker=1)
MINUTES = 10


def _most_a_minute(writes: list[Write]) -> int:
    return max((sum(first.at <= write.at < first.at + 60 for write in writes) for first in writes), default=0)


async def _begun(job: SteadyJob) -> None:
    """Train until the job is no longer young."""
    await job.start()
    await job.train(YOUNG_SECONDS + 20)


@pytest.mark.parametrize("manifest", [SERVERS, COLLECTIVE], ids=["parameter servers", "all-reduce"])
def test_a_steady_job_writes_three_times_a_minute(
    manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """State and status together are written at most three times in any minute, each is small however long the
    job has run, and the step shown is never older than 75 s."""

    async def main(clock: Clock) -> None:
        async with running_job(manifest, clock, monkeypatch) as job:
            await _begun(job)
            since = clock.now
            await job.train(60 * MINUTES)
            writes = [write for write in job.cluster.writes if write.at >= since]
            shown = job.cluster.shown_steps
        assert _most_a_minute(writes) <= 3
        assert len(writes) <= 2 * MINUTES
        assert max(write.size for write in writes) <= 4_000
        assert len(str(job.cluster.job["status"])) <= 5_000
        assert all(later - at <= 75 for (at, _), (later, _) in itertools.pairwise(shown))
        assert shown[-1][1] >= job.step - 75 * STEPS_PER_SECOND

    run_in_virtual_time(main, monkeypatch)


def test_a_young_job_looks_alive_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first two minutes of training the step is written more often, less and less so, and not more
    than 35 times."""

    async def main(clock: Clock) -> None:
        async with running_job(COLLECTIVE, clock, monkeypatch) as job:
            await job.start()
            begun = clock.now
            await job.train(YOUNG_SECONDS)
            shown = [(at - begun, step) for at, step in job.cluster.shown_steps if at > begun]
        assert 20 <= len(shown) <= 35
        assert len([at for at, _ in shown if at <= 20]) >= 5
        gaps = [(at, later - at) for (at, _), (later, _) in itertools.pairwise(shown)]
        assert all(gap <= max(2 * REPORT_SECONDS, at / 5) for at, gap in gaps)

    run_in_virtual_time(main, monkeypatch)


def test_data_is_stored_twice_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that consumes data stores its state at most twice in a minute, at the latest a minute after a
    lease or an acknowledgement, and its status costs no more."""

    async def main(clock: Clock) -> None:
        async with running_job(SERVERS, clock, monkeypatch) as job:
            await job.start()
            await job.register_data()
            await job.train(YOUNG_SECONDS + 20, data=True)
            since = clock.now
            await job.train(60 * MINUTES, data=True)
            stored = job.cluster.written("state", since)
            assert _most_a_minute(stored) <= 2
            assert len(stored) <= 2 * MINUTES
            assert all(after.at - before.at <= 60 + 2 for before, after in itertools.pairwise(stored))
            assert max(write.size for write in stored) <= 4_000
            assert _most_a_minute(job.cluster.written("status", since)) <= 2

    run_in_virtual_time(main, monkeypatch)


def test_acknowledgements_that_no_worker_keeps_are_stored_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of an earlier version does not keep its acknowledgements: the state is stored for each of
    them, and the status costs no more."""

    async def main(clock: Clock) -> None:
        async with running_job(SERVERS, clock, monkeypatch) as job:
            await job.start()
            await job.register_data()
            await job.train(YOUNG_SECONDS + 20, data=True, keeps=False)
            since = clock.now
            await job.train(120, data=True, keeps=False)
            assert len(job.cluster.written("state", since)) >= 60
            assert len(job.cluster.written("state", since)) <= 120 + 2
            assert _most_a_minute(job.cluster.written("status", since)) <= 2

    run_in_virtual_time(main, monkeypatch)


def test_an_echo_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the job's status, by whomever, is not looked at: the master does not read it. A change of
    spec or annotations is."""
    looks: list[ElasticJob] = []

    def count(job: ElasticJob, *arguments: Any) -> Any:
        looks.append(job)
        return settings.settings_of(job, *arguments)

    async def main(clock: Clock) -> None:
        async with running_job(COLLECTIVE, clock, monkeypatch) as job:
            await _begun(job)
            monkeypatch.setattr(kubernetes, "settings_of", count)
            for number in range(50):
                job.cluster.job["status"]["message"] = f"message {number}"
                job.cluster.deliver_job()
                await job.train(2)
            assert looks == []
            job.cluster.annotate(note="read me")
            await job.train(2)
            assert len(looks) == 1
            job.cluster.job["spec"]["suspend"] = True
            job.cluster.job["metadata"]["generation"] += 1
            job.cluster.deliver_job()
            await job.train(2)
            assert [seen.spec.suspend for seen in looks] == [False, True]

    run_in_virtual_time(main, monkeypatch)


def test_progress_is_written_once_in_the_published_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job follows the period that the controller publishes in its status, from the start and when it
    changes: status and state are each written at most once in that time. The master keeps the field, and
    what happens is still written at once."""
    manifest = copy.deepcopy(COLLECTIVE) | {"status": {"progressPeriodSeconds": 240}}

    async def main(clock: Clock) -> None:
        async with running_job(manifest, clock, monkeypatch) as job:
            await _begun(job)
            since = clock.now
            await job.train(240 * 5)
            for kind in ("status", "state"):
                times = [write.at for write in job.cluster.written(kind, since)]
                assert 3 <= len(times) <= 5
                assert all(240 <= later - at <= 240 * 1.2 + 5 for at, later in itertools.pairwise(times))
            since = clock.now
            job.master.state.volatile.refused["make a plan"] = "exceeded quota"
            await job.train(4)
            assert len(job.cluster.written("status", since)) == 1
            job.cluster.job["status"]["progressPeriodSeconds"] = 60
            job.cluster.deliver_job()
            await job.train(240)
            since = clock.now
            await job.train(60 * MINUTES)
            assert 8 <= len(job.cluster.written("status", since)) <= MINUTES
            assert job.cluster.job["status"]["progressPeriodSeconds"] == 60

    run_in_virtual_time(main, monkeypatch)


def test_a_young_job_looks_alive_whatever_the_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long period does not concern the first two minutes of training."""
    manifest = copy.deepcopy(COLLECTIVE) | {"status": {"progressPeriodSeconds": 960}}

    async def main(clock: Clock) -> None:
        async with running_job(manifest, clock, monkeypatch) as job:
            await job.start()
            await job.train(YOUNG_SECONDS)
            assert 20 <= len(job.cluster.shown_steps) <= 35

    run_in_virtual_time(main, monkeypatch)


def test_events_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is in the status within two seconds. The end is there at once, with the whole history; the
    newest progress goes with each."""

    async def main(clock: Clock) -> None:
        async with running_job(COLLECTIVE, clock, monkeypatch) as job:
            await _begun(job)
            saved = SavedCheckpoint("checkpoint-1", "", "/c/1", 7, 1.0, JobPosition())
            job.master.state.checkpoints = Checkpoints(saved=(saved,))
            since = clock.now
            job.master.changed()
            await job.train(6)
            (written,) = job.cluster.written("status", since)
            assert written.at - since <= REPORT_SECONDS
            assert written.content["checkpoint"]["step"] == 7
            assert len(written.content.get("history", ())) <= 20
            await job.train(300)
            since = clock.now
            job.master.state.outcome = TrainingResult(True, "Completed")
            job.master.changed()
            await job.train(4)
            (written,) = job.cluster.written("status", since)
            assert written.at - since <= 1.0
            assert written.content["progress"]["step"] == job.step - 4 * STEPS_PER_SECOND
            assert len(written.content["history"]) > 60

    run_in_virtual_time(main, monkeypatch)


def test_a_refused_status_is_followed_by_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the API server is away, few writes are tried. When it is back, one write has the newest values,
    and none of those in between is written."""

    async def main(clock: Clock) -> None:
        async with running_job(COLLECTIVE, clock, monkeypatch) as job:
            await _begun(job)
            job.cluster.away = True
            await job.train(300)
            refused = job.cluster.written("refused")
            assert 3 <= len(refused) <= 300 / 15 + 5
            job.cluster.away = False
            since = clock.now
            await job.train(20)
            (written,) = job.cluster.written("status", since)
            assert written.content["progress"]["step"] > refused[-1].content["progress"]["step"]
            assert written.content["progress"]["step"] >= job.step - 20 * STEPS_PER_SECOND

    run_in_virtual_time(main, monkeypatch)


def test_a_write_without_an_answer_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server may have applied a write that it did not answer. What is no longer so is then not left
    in the status: the next write has the newest values of all fields that may have been changed."""

    async def main(clock: Clock) -> None:
        async with running_job(COLLECTIVE, clock, monkeypatch) as job:
            await _begun(job)
            job.cluster.loses_answers = True
            job.master.state.volatile.refused["make a plan"] = "exceeded quota"
            await job.train(4)
            assert "exceeded quota" in str(job.cluster.job["status"]["warnings"])
            job.master.state.volatile.refused.clear()
            job.cluster.loses_answers = False
            await job.train(20)
            assert job.cluster.job["status"]["warnings"] == []

    run_in_virtual_time(main, monkeypatch)


def _delay(cluster: FakeCluster, step: int, reported: dict[int, float]) -> float:
    """Seconds between the report of a step and the status that shows it."""
    made = next(at for number, at in reported.items() if number >= step)
    return next(at for at, shown in cluster.shown_steps if shown >= step) - made


async def _train_and_note(job: SteadyJob, clock: Clock, seconds: float) -> dict[int, float]:
    """Train; return when each step was reported."""
    reported, until = {}, clock.now + seconds
    while clock.now < until:
        await job.train(2)
        reported[job.step] = clock.now
    return reported


def test_waiters_learn_of_their_step_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two waiters, each finds its step in the status within half a second, and costs one write. A waiter
    that has died costs no more, and neither does one that waits for a step of the past."""
    # Otherwise the minutely write of the state may fall into the 20 s.
    monkeypatch.setattr(random, "uniform", lambda low, _high: low)

    async def main(clock: Clock) -> None:
        async with running_job(COLLECTIVE, clock, monkeypatch) as job:
            await _begun(job)
            steps = [job.step + round(STEPS_PER_SECOND * 10), job.step + round(STEPS_PER_SECOND * 15)]
            job.cluster.annotate(**{annotation_of(str(step)): str(step) for step in [*steps, job.step - 50]})
            since = clock.now
            reported = await _train_and_note(job, clock, 20)
            assert all(_delay(job.cluster, step, reported) <= 0.5 for step in steps)
            assert len(job.cluster.written("status", since)) <= len(steps) + 1
            assert job.cluster.written("state", since) == []
            since = clock.now
            await job.train(60 * 5)
            assert _most_a_minute(job.cluster.written("status", since)) <= 2

    run_in_virtual_time(main, monkeypatch)


def test_the_next_master_tells_the_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter that registered with the master before is told by the next one, also of a step that was made
    while no master ran."""

    async def main(clock: Clock) -> None:
        async with running_job(COLLECTIVE, clock, monkeypatch) as job:
            await _begun(job)
            missed, next_step = job.step + 20, job.step + 400
            job.cluster.annotate(**{annotation_of(str(step)): str(step) for step in (missed, next_step)})
            cluster, step = job.cluster, job.step
        async with running_job(cluster, clock, monkeypatch) as job:
            job.step = step + 100
            reported = await _train_and_note(job, clock, 60)
            assert all(_delay(cluster, step, reported) <= 0.5 for step in (missed, next_step))

    run_in_virtual_time(main, monkeypatch)


def test_many_waiters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may annotate a job can't make its master write at each step."""

    async def main(clock: Clock) -> None:
        async with running_job(COLLECTIVE, clock, monkeypatch) as job:
            await _begun(job)
            job.cluster.annotate(**{annotation_of(str(n)): str(job.step + n) for n in range(1, 1000)})
            since = clock.now
            await job.train(120)
            assert len(job.cluster.written("status", since)) <= MAX_WAITERS + 3
            assert len(job.master.state.settings.awaited_steps) == MAX_WAITERS

    run_in_virtual_time(main, monkeypatch)
