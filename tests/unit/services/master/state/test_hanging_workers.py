"""Whole jobs in memory: workers that hang over shards for evaluation, or when everything is done, are
stopped, not waited for.
"""

from dataclasses import replace

import pytest

from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.datasets import (
    AckRequest,
    DatasetParams,
    LeaseRequest,
    LeaseState,
    ShardKey,
    TaskType,
)
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.nodes.registry import ExitReason
from edl_workflows.services.master.state.observations import PodPhase
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, Timeouts
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.simulated_job import Ref, SimulatedJob, SimulatedPod

EVALUATION = "evaluate"
TIMEOUT = 20.0
HANGING: Ref = ("worker", 1)


class EvaluatingJob(SimulatedJob):
    """Workers train, then evaluate one shard after the other; those in `hung` hold a shard and never answer,
    though their agents live.
    """

    hung: frozenset[Ref] = frozenset()
    slow: Ref | None = None
    trains_first: Ref | None = None
    busy_until = 0.0

    def __init__(self, settings: JobSettings, shards: int) -> None:
        super().__init__(settings, shards)
        self.ahead: list[ShardKey] = []

    def _train(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        if (pod.type, pod.id) == self.slow:
            self._evaluate_slowly(pod, active)
            return
        if (pod.type, pod.id) == self.trains_first:
            self._lease_ahead(pod, active)
            super()._train(pod, active)
            return
        shards, request = self.state.shards, LeaseRequest(node=pod.ref, version=active.version, max_shards=1)
        reply = shards.lease(EVALUATION, request, self.now)
        if (pod.type, pod.id) in self.hung:
            return
        if reply.state is LeaseState.OK and reply.shards:
            shards.acknowledge(EVALUATION, AckRequest(node=pod.ref, done=reply.shards), self.now)
        elif reply.state is LeaseState.END:
            super()._train(pod, active)

    def _lease_ahead(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        request = LeaseRequest(node=pod.ref, version=active.version, max_shards=1)
        if len(self.ahead) < 3:
            self.ahead += self.state.shards.lease(EVALUATION, request, self.now).shards

    def _evaluate_slowly(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        """Shards are leased one by one and long before their turn; each takes most of the time-out."""
        shards = self.state.shards
        self._lease_ahead(pod, active)
        if self.ahead and self.now >= self.busy_until:
            shards.acknowledge(EVALUATION, AckRequest(node=pod.ref, done=[self.ahead.pop(0)]), self.now)
            self.busy_until = self.now + 0.8 * TIMEOUT


def _settings(nodes: str = "ps=1,worker=2", critical: str = "") -> JobSettings:
    roles = parse_nodes(nodes)
    roles["worker"] = replace(roles["worker"], critical_nodes=critical)
    return JobSettings("job", "default", roles, timeouts=Timeouts(verdict=0.0, release=5.0))


def _job(hung: Ref, critical: str = "", size: int = 6, shards: int = 4) -> EvaluatingJob:
    job = EvaluatingJob(_settings(critical=critical), shards)
    job.hung = frozenset({hung})
    job.state.shards.register(
        DatasetParams(
            name=EVALUATION, size=size, shard_size=1, task_type=TaskType.EVALUATION, timeout_s=TIMEOUT
        )
    )
    return job


def test_who_hangs_over_an_evaluation_is_replaced() -> None:
    """The shard of a worker that hangs in an evaluation times out and goes to another worker. The hanging
    worker is stopped, and the job ends with all data done."""
    job = _job(HANGING)
    job.calm(12)
    assert HANGING in job.pods
    job.calm(30)
    assert job.state.restarts.counts == {ExitReason.EVALUATION_TIMEOUT: 1}
    assert HANGING not in job.pods or not job.pods[HANGING].runs
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.state.shards.finished


@pytest.mark.parametrize(
    ("hung", "critical"), [(("worker", 0), ""), (HANGING, "all")], ids=["the chief", "a critical worker"]
)
def test_whom_the_job_can_not_do_without_is_not_stopped(hung: Ref, critical: str) -> None:
    """A critical node that hangs is not stopped, but its shards go to others."""
    job = _job(hung, critical)
    job.calm(60)
    assert job.state.restarts.counts == {}
    assert job.pods[hung].runs
    assert job.state.shards.progress(EVALUATION).state is not LeaseState.FAILED


def test_who_leases_ahead_and_is_slow_is_not_stopped() -> None:
    """A worker that acknowledges other shards does not hang, even if a shard that it leased ahead waits for
    long."""
    job = _job(("worker", 9), size=400)
    job.slow = HANGING
    job.calm(150)
    assert job.state.shards.progress(EVALUATION).timeouts, "or this proves nothing"
    assert job.state.restarts.counts == {}


def test_who_trains_while_it_holds_shards_for_evaluation_is_not_stopped() -> None:
    """A program may lease shards for its evaluation before it trains. If these time out while it trains, the
    worker is not stopped."""
    job = _job(("worker", 9), shards=1000)
    job.trains_first = HANGING
    job.calm(40)
    assert job.state.shards.progress(EVALUATION).timeouts, "or this proves nothing"
    assert job.state.restarts.counts == {}


def test_nobody_is_stopped_for_the_time_in_which_the_master_was_away() -> None:
    """While the master is down or its machine sleeps, workers can't report, so their time starts again
    afterwards."""
    job = _job(HANGING)
    job.calm(10)
    job.now += 10 * TIMEOUT
    job.crash()
    job.calm(int(TIMEOUT) - 2)
    job.state.shift_times(10 * TIMEOUT)
    job.now += 10 * TIMEOUT
    job.calm(int(TIMEOUT) - 2)
    assert job.state.restarts.counts == {}
    job.calm(5)
    assert job.state.restarts.counts == {ExitReason.EVALUATION_TIMEOUT: 1}


class EndlessWorker(SimulatedJob):
    """A worker that hangs when all data is consumed, instead of ending."""

    def _exit(self, pod: SimulatedPod, version: int, code: int) -> None:
        if (pod.type, pod.id) != HANGING or self.state.outcome is not None:
            super()._exit(pod, version, code)


class EndlessMember(SimulatedCollectiveJob):
    """A member of a world that hangs after its last step, instead of ending."""

    def _exit(self, pod: SimulatedPod, version: int, code: int) -> None:
        if (pod.type, pod.id) != HANGING:
            super()._exit(pod, version, code)

    def act(self, ref: Ref) -> None:
        """It lives, whatever its process does."""
        super().act(ref)
        if ref == HANGING and ref in self.pods:
            self.state.volatile.last_seen["worker-1"] = self.now


@pytest.mark.parametrize("collective", [False, True], ids=["servers", "a world"])
def test_who_hangs_at_the_end_is_not_waited_for(collective: bool) -> None:
    """Once the data and all critical nodes are done, the other nodes have `Timeouts.finish` seconds. Then the
    job succeeds, and its message names the nodes it did not wait for."""
    settings = replace(_settings(), timeouts=Timeouts(verdict=0.0, finish=100.0))
    job: SimulatedJob = EndlessWorker(settings, shards=10)
    if collective:
        settings = replace(
            settings, roles=parse_nodes("worker=2"), collective=True, rendezvous=RendezvousLimits(max_nodes=2)
        )
        job = EndlessMember(settings, 10)
    job.calm(90)
    early = job.state.outcome
    job.calm(60)
    end = job.state.outcome
    assert early is None
    assert end is not None
    assert end.succeeded
    assert "worker-1" in end.message


def test_a_master_that_was_away_waits_for_them_anew() -> None:
    """Only the time in which a master listens counts towards the seconds that a worker has to end."""
    settings = replace(_settings(), timeouts=Timeouts(verdict=0.0, finish=100.0))
    job = EndlessWorker(settings, shards=10)
    job.calm(50)
    job.now += 1000.0
    job.crash()
    job.calm(90)
    assert job.state.outcome is None


def test_who_is_lost_at_the_end_is_not_waited_for_either() -> None:
    """The job ends without the replacement of a worker that was lost after all data was trained."""
    settings = replace(_settings(), timeouts=Timeouts(verdict=0.0, finish=30.0))
    job = EndlessWorker(settings, shards=10)
    job.calm(20)
    job.kill(HANGING)
    job.start_pods = lambda: None  # type: ignore[method-assign]
    job.calm(40)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded


class ShardlessJob(SimulatedJob):
    """A job whose program has data of its own; the chief has nothing to do."""

    def _train(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        if pod.id == active.chief_id:
            self._exit(pod, active.version, 0)


def test_a_job_without_data_sets_waits_for_all_its_workers() -> None:
    """If no worker leases data from the master, the job ends when all workers have ended."""
    settings = replace(_settings(), timeouts=Timeouts(verdict=0.0, finish=30.0))
    job = ShardlessJob(settings, shards=0)
    job.calm(100)
    assert job.pods["worker", 0].phase is PodPhase.SUCCEEDED
    assert job.state.outcome is None
