"""Whole jobs with parameter servers, in memory: what tests make them of and do to them."""

from typing import Any

from edl_workflows.core.jobs.scale_plan.model import (
    NodeResource,
    PodMeta,
    ReplicaResourceSpec,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings, Timeouts
from tests.unit.services.master.simulated_job import SimulatedJob


def make_job(nodes: str = "ps=2,worker=2", shards: int = 10_000, **timeouts: float) -> SimulatedJob:
    """A job in memory whose nodes have started: its first cluster version trains."""
    settings = JobSettings(
        "job", "default", parse_nodes(nodes), limits={"cpu": 40.0}, timeouts=Timeouts(verdict=0.0, **timeouts)
    )
    job = SimulatedJob(settings, shards)
    job.calm(5)
    assert job.state.versions.settled
    return job


def plan_spec(
    ps: int | None = None, worker: int | None = None, migrate: tuple[int, ...] = (), **more: Any
) -> ScalePlanSpec:
    """A plan for these numbers of servers and workers that also moves the servers of these ids."""
    counts: dict[Any, ReplicaResourceSpec] = {
        role: ReplicaResourceSpec(replicas=count)
        for role, count in (("ps", ps), ("worker", worker))
        if count is not None
    }
    pods = [PodMeta(name=f"job-edljob-ps-{server}", resource=NodeResource(cpu="2")) for server in migrate]
    return ScalePlanSpec(replica_resource_specs=counts, migrate_pods=pods, **more)


def run_plan(job: SimulatedJob, spec: ScalePlanSpec, rounds: int = 15) -> ScalePlanPhase | None:
    """Submit a plan and let so many quiet rounds pass; the plan's phase then."""
    job.submit("plan", spec)
    job.calm(rounds)
    return job.plans["plan"].phase


def servers_of(job: SimulatedJob) -> tuple[int, ...]:
    """Ids of the parameter servers of the active cluster version, by rank."""
    assert job.state.versions.active is not None
    return job.state.versions.active.members


def await_plan_phase(job: SimulatedJob, phase: ScalePlanPhase) -> None:
    """Let the job go on until its plan is in a phase."""
    for _ in range(20):
        if job.state.plan is not None and job.state.plan.phase is phase:
            return
        for _ in job.everything():
            if job.state.plan is not None and job.state.plan.phase is phase:
                break
    raise AssertionError(f"the plan never came to {phase}")
