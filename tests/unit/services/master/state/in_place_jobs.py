"""Collective jobs whose processes can change their group while they run, for tests."""

from typing import Any

from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.nodes import ExitReport
from edl_workflows.services.master.state import messages
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.state.worlds import collective_job, worker, world_of


def in_place_job(workers: int = 3, **allowed: Any) -> SimulatedCollectiveJob:
    """A job all of whose workers train; `allowed` are fields of `RendezvousLimits`."""
    job = collective_job(workers, rounds=10, in_place=True, **allowed)
    assert world_of(job) == tuple(range(workers))
    return job


def death(node: int, code: int = 137, process: int = 1) -> ExitReport:
    """The report of a worker's agent that the process has ended."""
    return ExitReport(node=worker(node), incarnation=f"worker{node}", version=process, code=code)


def die(job: SimulatedCollectiveJob, node: int, code: int = 137, process: int = 1) -> None:
    """The process of a worker ends, and its agent reports it."""
    job.memory.pop(node, None)
    messages.record_death_report(job.state, death(node, code, process))
    job.settle()
    job.commit()


def active(job: SimulatedCollectiveJob) -> TrainingCluster:
    """The version that the nodes are told to be in."""
    found = job.published.directive.active
    assert found is not None
    return found


def processes(job: SimulatedCollectiveJob) -> dict[int, int]:
    """By member of the active version, the version for which its process was started."""
    return {member.id: active(job).process_of("worker", member.id) for member in active(job).workers}
