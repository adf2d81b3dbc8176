"""Collective jobs in memory, and what the tests ask of them."""

from typing import Any

from edl_workflows.core.jobs.scale_plan.model import (
    NodeResource,
    PodMeta,
    ReplicaResourceSpec,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, RoleSettings, Timeouts
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob


def collective_job(
    workers: int = 2,
    steps: int = 10_000,
    rounds: int = 6,
    roles: dict[str, RoleSettings] | None = None,
    *,
    in_place: bool = False,
    **allowed: Any,
) -> SimulatedCollectiveJob:
    """A job after so many rounds in which nothing happens to it.

    Args:
        workers: number of workers.
        steps: number of steps after which the program ends.
        rounds: how many rounds have passed.
        roles: the job's roles, instead of `workers`.
        in_place: whether a running process can join another group.
        allowed: fields of `RendezvousLimits`.
    """
    limits = RendezvousLimits(**{"max_nodes": 4, "waiting_timeout": 5.0, **allowed})
    settings = JobSettings(
        "job",
        "default",
        roles or parse_nodes(f"worker={workers}"),
        timeouts=Timeouts(verdict=0.0),
        collective=True,
        rendezvous=limits,
    )
    replica_size = limits.node_unit if in_place else 1
    job = SimulatedCollectiveJob(settings, steps, in_place=in_place, replica_size=replica_size)
    job.calm(rounds)
    return job


def world_of(job: SimulatedCollectiveJob) -> tuple[int, ...]:
    """The members that train now, rank 0 first."""
    assert job.state.versions.active is not None
    return job.state.versions.active.members


def version_of(job: SimulatedCollectiveJob) -> int:
    """The number of the version that trains now."""
    assert job.state.versions.active is not None
    return job.state.versions.active.number


def plan_of(workers: int | None = None, migrate: tuple[int, ...] = (), **more: Any) -> ScalePlanSpec:
    """A plan for so many workers, and for these to be replaced."""
    counts: dict[Any, ReplicaResourceSpec] = (
        {} if workers is None else {"worker": ReplicaResourceSpec(replicas=workers)}
    )
    pods = [PodMeta(name=f"job-edljob-worker-{node}", resource=NodeResource(cpu="2")) for node in migrate]
    return ScalePlanSpec(replica_resource_specs=counts, migrate_pods=pods, **more)


def carried_out(job: SimulatedCollectiveJob, spec: ScalePlanSpec, rounds: int = 15) -> ScalePlanPhase | None:
    """What becomes of a plan within so many rounds."""
    job.submit("plan", spec)
    job.calm(rounds)
    return job.plans["plan"].phase


def message_of(job: SimulatedCollectiveJob) -> str:
    """What the plan that is carried out says."""
    run = job.state.plan
    return run.message if run is not None else ""


def worker(node_id: int) -> NodeRef:
    """The worker of this id."""
    return NodeRef(type="worker", id=node_id)
