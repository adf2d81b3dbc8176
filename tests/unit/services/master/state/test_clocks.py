"""Whole jobs in memory whose machine's clock is set: what waits for a time waits no longer for it, and no
less.
"""

import pytest

from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.protocol.nodes import ExitReport, NodeRef
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.versions import rendezvous
from tests.unit.services.master.simulated_job import SimulatedJob

pytestmark = pytest.mark.parametrize("gap", [3600.0, -3600.0])

LATER = 5.0
"""Into what is waited for."""


def _job(**said: bool) -> SimulatedJob:
    tolerance = FaultTolerance(node_check_timeout_seconds=60, **said)
    job = SimulatedJob(JobSettings("job", "default", parse_nodes("ps=1,worker=2"), fault_tolerance=tolerance))
    job.calm(5)
    return job


def _set_clock(job: SimulatedJob, gap: float) -> None:
    job.now += LATER + gap
    job.state.shift_times(gap)
    job.settle()


def test_an_agent_gets_its_verdict(gap: float) -> None:
    """After a jump of the clock, the delay before a failure is judged stays the same."""
    job = _job()
    worker = NodeRef(type="worker", id=1)
    report = ExitReport(node=worker, incarnation="worker1", version=1, code=3)
    assert messages.decide_exit(job.state, report, job.now) is None
    _set_clock(job, gap)
    assert messages.decide_exit(job.state, report, job.now) is None
    job.now += job.settings.timeouts.verdict
    assert messages.decide_exit(job.state, report, job.now) is not None


def test_a_round_of_the_node_check_ends(gap: float) -> None:
    """After a jump of the clock, nodes that do not report are found after the same time."""
    job = _job(node_check=True)
    assert job.state.node_check.number == 1
    _set_clock(job, gap)
    assert job.state.node_check.number == 1
    job.now += 60.0
    job.settle()
    assert job.state.node_check.number == 2


def test_newcomers_are_let_in(gap: float) -> None:
    """After a jump of the clock, new members are tried again after the same time."""
    job = _job()
    rendezvous.give_up_newcomers(job.state, job.now + 60.0)
    _set_clock(job, gap)
    assert job.state.volatile.newcomers_wait_until == job.now + 60.0 - LATER


def test_a_plan_fails_in_its_time(gap: float) -> None:
    """After a jump of the clock, a plan's phase times out after the same time."""
    job = _job()
    workers = {"worker": ReplicaResourceSpec(replicas=3)}
    job.submit("more", ScalePlanSpec(replica_resource_specs=workers, step_timeout_seconds=60))
    for _ in range(5):  # all but what starts pods
        job.observe()
        job.commit()
        job.control()
        job.record()
    assert _phase(job) is ScalePlanPhase.SCALING
    _set_clock(job, gap)
    assert _phase(job) is ScalePlanPhase.SCALING
    job.now += 60.0
    job.settle()
    assert _phase(job) is ScalePlanPhase.FAILED


def _phase(job: SimulatedJob) -> ScalePlanPhase:
    assert job.state.plan is not None
    return job.state.plan.phase
