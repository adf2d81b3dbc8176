"""Whole jobs in memory: training that stands still, nodes that find no place, nodes that are checked; and
what is told of it.
"""

from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance, HangAction, PendingFailStrategy
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.datasets import AckRequest, LeaseRequest
from edl_workflows.core.protocol.nodes import CheckReport, Directive, ExitReport, NodeRef
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, views
from edl_workflows.services.master.state.nodes.hang import DUMP_SECONDS
from edl_workflows.services.master.state.nodes.registry import ExitReason, NodeStatus
from edl_workflows.services.master.state.observations import PodPhase
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, Timeouts
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.simulated_job import DATA, Ref, SimulatedJob, SimulatedPod

HANG_SECONDS = 30


class HangingJob(SimulatedJob):
    """A job whose training processes of some versions hang: their agents live, but no step is made."""

    hung: frozenset[int] = frozenset()

    def _train(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        if active.version not in self.hung:
            super()._train(pod, active)


class HangingWorld(SimulatedCollectiveJob):
    """A collective job whose processes of some versions hang: they neither step nor stop for a drain."""

    hung: frozenset[int] = frozenset()

    def _between_steps(self, pod: SimulatedPod, active: TrainingCluster, directive: Directive) -> None:
        if active.version not in self.hung:
            super()._between_steps(pod, active, directive)


def _settings(nodes: str = "ps=2,worker=2", **said: Any) -> JobSettings:
    timeouts = Timeouts(verdict=0.0, pending=60.0)
    both = {"hang_timeout_seconds": HANG_SECONDS, "first_step_timeout_seconds": HANG_SECONDS}
    tolerance = FaultTolerance(**both | said)
    return JobSettings("job", "default", parse_nodes(nodes), timeouts=timeouts, fault_tolerance=tolerance)


def _job(shards: int = 10_000, **said: Any) -> HangingJob:
    job = HangingJob(_settings(**said), shards)
    job.calm(5)
    assert job.state.versions.settled
    return job


def _status(job: SimulatedJob) -> dict[str, Any]:
    return views.job_status(job.state, job.now)


def test_a_hang_is_told_to_agents_first() -> None:
    """Stacks are requested when nothing has moved for the time-out. If training moves again, the request is
    withdrawn."""
    job = _job()
    job.hung = frozenset({1})
    job.calm(HANG_SECONDS - 2)
    assert job.published.directive.dump == ""
    job.calm(4)
    assert job.published.directive.dump == "hang-1"
    assert "stands still" in " ".join(_status(job)["warnings"])
    job.calm(2 * HANG_SECONDS)  # action log: nothing else happens
    assert job.state.versions.last_number == 1
    job.hung = frozenset()
    job.calm(2)
    assert job.published.directive.dump == ""
    assert _status(job)["warnings"] == []


def test_first_step_of_a_version_has_its_own_limit() -> None:
    """A first step that compiles for longer than later steps may take is no hang; its own limit holds in each
    version, and with 0 there is none."""
    for limit, found in ((4 * HANG_SECONDS, ""), (0, ""), (HANG_SECONDS, "hang-1")):
        job = HangingJob(_settings(first_step_timeout_seconds=limit), 10_000)
        job.hung = frozenset({1})
        job.calm(5 + 2 * HANG_SECONDS)
        assert job.published.directive.dump == found
        job.hung = frozenset()
        job.calm(3)
        job.hung = frozenset({1})
        job.calm(HANG_SECONDS + 3)
        assert job.published.directive.dump, "later steps have the shorter limit"


def test_first_step_has_at_least_the_time_of_later_steps() -> None:
    """Who allows each step more than the first step has by default allows the first step that, too."""
    job = HangingJob(_settings(hang_timeout_seconds=4 * HANG_SECONDS), 10_000)
    job.hung = frozenset({1})
    job.calm(5 + 2 * HANG_SECONDS)
    assert job.published.directive.dump == ""
    job.calm(2 * HANG_SECONDS)
    assert job.published.directive.dump == "hang-1"


def test_hung_processes_are_restarted_together_and_lose_nothing() -> None:
    """The processes restart as a new version on the same pods and servers, from the newest checkpoint and its
    data position, and the job trains to its end."""
    job = _job(shards=60, hang_action=HangAction.RESTART)
    job.save_periodically()
    pods = set(job.pods)
    job.hung = frozenset({1})
    job.calm(HANG_SECONDS + int(DUMP_SECONDS) + 10)
    assert job.state.versions.trained == 2
    assert set(job.pods) == pods
    assert _status(job)["restarts"]["counts"] == {"Hang": 1}
    job.calm(60)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[2] == set(range(60))


@pytest.mark.parametrize(
    ("said", "versions"),
    [({"hang_action": HangAction.FAIL}, 1), ({"hang_action": HangAction.RESTART, "max_restarts": 2}, 3)],
    ids=["at once", "when the restarts are used up"],
)
def test_a_hang_that_does_not_end_fails_the_job(said: dict[str, Any], versions: int) -> None:
    """The job fails with the reason Hang and says how long nothing moved."""
    job = _job(**said)
    job.hung = frozenset(range(1, 10))
    job.calm(5 * (HANG_SECONDS + int(DUMP_SECONDS) + 5))
    assert job.state.outcome is not None
    assert job.state.outcome.reason == "Hang"
    assert "stood still for" in job.state.outcome.message
    assert job.state.versions.last_number == versions


@pytest.mark.parametrize(
    "joins", [False, True], ids=["while it trains", "while it is drained for a newcomer"]
)
def test_a_hung_world_is_restarted(joins: bool) -> None:
    """The same members in the same pods form the next group, with a new member if there is one. No step of
    the model is lost."""
    settings = replace(
        _settings("worker=2", hang_action=HangAction.RESTART),
        collective=True,
        rendezvous=RendezvousLimits(max_nodes=3, waiting_timeout=5.0),
    )
    job = HangingWorld(settings, 200)
    job.calm(6)
    assert job.state.versions.settled
    job.save_periodically()
    pods = set(job.pods)
    job.hung = frozenset({1})
    if joins:
        job.state.counts["worker"] = 3
    job.calm(2 * HANG_SECONDS + int(DUMP_SECONDS) + 10)
    assert job.state.restarts.counts == {"Hang": 1}
    assert job.state.versions.active is not None
    assert job.state.versions.trained == job.state.versions.active.number > 1
    assert len(job.state.versions.active.members) == 2 + joins
    assert pods <= set(job.pods)
    job.calm(250)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[job.state.versions.trained] == set(range(200))


def test_stragglers_are_told() -> None:
    """The status names a worker that acknowledges shards at a third of the others' pace, and how much slower
    it is."""
    job = _job(nodes="ps=1,worker=4", straggler_ratio=2.0)
    for second in range(30):
        for worker in range(4):
            if worker != 2 or second % 3 == 0:
                job.state.volatile.statistics.record_shards(f"worker-{worker}", 1, job.now + second)
    assert _status(job)["warnings"] == ["worker-2 is a straggler: 3.0 times slower than the median"]


def test_a_master_that_was_away_blames_nobody() -> None:
    """After an absence of the master the time of a hang starts again, but the number of restarts is kept."""
    job = _job(hang_action=HangAction.RESTART)
    job.hung = frozenset({1, 2})
    job.calm(HANG_SECONDS + int(DUMP_SECONDS) + 5)
    assert job.state.hangs.restarts == 1
    job.crash()
    job.calm(HANG_SECONDS - 5)
    assert job.state.hangs.restarts == 1
    assert job.published.directive.dump == ""


@pytest.mark.parametrize(
    ("strategy", "pending", "fails"),
    [
        (PendingFailStrategy.NECESSARY, ("worker", 1), False),
        (PendingFailStrategy.NECESSARY, ("ps", 1), True),
        (PendingFailStrategy.ALL, ("worker", 1), True),
        (PendingFailStrategy.SKIP, ("ps", 1), False),
    ],
)
def test_pending_strategies(strategy: PendingFailStrategy, pending: Ref, fails: bool) -> None:
    """``pendingFailStrategy`` decides which pending nodes fail the job: none, those without which it can't
    train, or any."""
    job = HangingJob(_settings(pending_fail_strategy=strategy), 10_000)
    for _ in range(70):
        for _ in job.everything():
            if pending in job.pods:
                job.pods[pending].phase = PodPhase.PENDING
    assert (job.state.outcome is not None and job.state.outcome.reason == "PendingTimeout") is fails
    assert (job.state.outcome is not None) is fails


@pytest.mark.parametrize(
    ("least", "reason"), [(2, None), (3, "PendingTimeout")], ids=["enough train", "too few train"]
)
def test_a_surplus_worker_may_be_pending_for_ever(least: int, reason: str | None) -> None:
    """A collective job that trains with at least `minNodes` members continues, whatever `pendingFailStrategy`
    says, also while it has too few members for a moment after a loss. A job that never has enough members
    fails."""
    settings = replace(
        _settings("worker=3", pending_fail_strategy=PendingFailStrategy.ALL),
        collective=True,
        rendezvous=RendezvousLimits(min_nodes=least, max_nodes=3, waiting_timeout=5.0),
    )
    job = HangingWorld(settings, 100_000)
    for second in range(100):
        for _ in job.everything():
            for pod in job.pods.values():
                if pod.id == 2:
                    pod.phase = PodPhase.PENDING
        if second == 80 and reason is None:
            job.kill(("worker", 1))
    assert (job.state.outcome.reason if job.state.outcome else None) == reason


def test_a_fatal_end_shows_the_failing_pods_last_lines() -> None:
    """The failure in the job's status has the chief's last lines of output and its pod."""
    job = _job()
    report = ExitReport(
        node=NodeRef(type="worker", id=0),
        incarnation="worker0",
        version=1,
        code=1,
        last_lines="Trace\nValueError: x\n",
    )
    messages.decide_exit(job.state, report, job.now)
    job.settle()
    failure = _status(job)["failure"]
    assert failure["reason"] == "CriticalNodeFailed"
    assert failure["pod"] == "job-edljob-worker-0"
    assert failure["lastLines"] == "Trace\nValueError: x\n"
    assert "ValueError: x" in failure["message"]
    (record,) = _status(job)["restarts"]["recent"]
    assert (record["subject"], record["cause"], record["replaced"]) == ("worker-0", "FatalError", False)


def test_a_lost_server_costs_goodput_and_is_counted() -> None:
    """The status counts the lost node by its exit reason, and the recovery. Lost steps count as redone, not
    as useful."""
    job = _job()
    job.calm(20)
    useful = job.state.goodput.useful
    job.kill(("ps", 1))
    job.calm(10)
    status = _status(job)
    assert status["restarts"]["counts"] == {"Killed": 1, "Recovery": 1}
    assert [record["subject"] for record in status["restarts"]["recent"]] == ["version 1", "ps-1"]
    assert all(record["replaced"] for record in status["restarts"]["recent"])
    assert status["goodput"]["redoneSeconds"] >= useful - 2  # nothing was saved
    assert 0 < status["goodput"]["ratio"] < 0.6
    assert (
        status["goodput"]["usefulSeconds"] + status["goodput"]["redoneSeconds"]
        <= status["goodput"]["elapsedSeconds"]
    )


def test_the_late_end_of_a_process_that_was_left_behind_takes_nothing_from_its_successor() -> None:
    """A worker's older process is reported as ended only after the next version trains. The shards that its
    new process holds stay with it; otherwise others would train them, too."""
    job = SimulatedJob(_settings())
    job.calm(6)
    job.kill(("ps", 0))
    job.calm(10)
    active = job.state.versions.active
    assert active is not None
    assert (active.number, job.state.versions.trained) == (2, 2)
    worker = NodeRef(type="worker", id=1)
    held = job.state.shards.lease(DATA, LeaseRequest(node=worker, version=2, max_shards=2), job.now).shards
    assert held
    report = ExitReport(node=worker, incarnation="worker1", version=1, code=1)
    verdict = messages.decide_exit(job.state, report, job.now)
    assert verdict is not None
    assert verdict.wait
    assert not any(node.waiting for node in job.state.nodes)
    ack = job.state.shards.acknowledge(DATA, AckRequest(node=worker, done=held), job.now)
    assert ack.accepted == len(held)


def test_time_and_restarts_survive_the_master() -> None:
    """After a crash of the master, neither time nor restarts are lost or counted twice."""
    job = _job()
    job.kill(("ps", 1))
    job.calm(10)
    before = _status(job)
    job.crash()
    after = _status(job)
    assert after["restarts"] == before["restarts"]
    assert after["goodput"]["usefulSeconds"] == pytest.approx(before["goodput"]["usefulSeconds"], abs=2)


def _measure(job: SimulatedJob, broken: set[str]) -> None:
    """All nodes answer the round under way, as agents do: the others of a group each go to the first."""
    check = job.published.directive.check
    for group in check.groups if check else ():
        for member in group:
            partners = {other.node for other in (group[1:] if member == group[0] else group[:1])}
            node_type, _, node_id = member.node.rpartition("-")
            error = "no way" if member.node in broken or partners <= broken else ""
            report = CheckReport(
                node=NodeRef(type=node_type, id=int(node_id)),
                round=check.number if check else 1,
                seconds=1.0,
                error=error,
            )
            messages.record_check_report(job.state, report)
    job.settle()


@pytest.mark.parametrize("nodes", ["ps=2,worker=3", "worker=5", "a world of 5"])
def test_nodes_are_checked_before_the_first_version(nodes: str) -> None:
    """No training process starts before all nodes have passed the check. A faulty node is replaced, and its
    replacement is checked, too."""
    settings = _settings("worker=5" if "world" in nodes else nodes, node_check=True)
    job: SimulatedJob = HangingJob(settings, 10_000)
    if "world" in nodes:
        job = HangingWorld(
            replace(settings, collective=True, rendezvous=RendezvousLimits(max_nodes=5)), 10_000
        )
    broken = {"worker-1"}
    for _ in range(12):
        for _ in job.everything():
            pass
        passed = job.state.node_check.passed
        assert len(passed) == 5 or not job.published.directive.clusters
        _measure(job, broken)
    assert job.state.versions.settled
    failed = next((n for n in job.state.nodes if str(n) == "worker-1"), None)
    assert failed is None or failed.status is NodeStatus.FAILED
    assert _status(job)["restarts"]["counts"] == {str(ExitReason.CHECK_FAILED): 1}
    assert len(job.state.node_check.passed) == 5
    assert "worker-1" not in job.state.node_check.passed
    assert job.published.directive.check is None
