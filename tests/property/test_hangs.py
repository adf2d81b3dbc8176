"""Laws of hang detection under any interleaving with node deaths, checkpoints, scale plans and master
crashes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance, HangAction
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanSpec
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.nodes import Directive
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, Timeouts
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.simulated_job import SimulatedJob, SimulatedPod

SHARDS = 60
HANG_SECONDS = 15
SETTINGS = JobSettings(
    "job",
    "default",
    parse_nodes("ps=2,worker=2"),
    timeouts=Timeouts(verdict=0.0),
    fault_tolerance=FaultTolerance(
        hang_timeout_seconds=HANG_SECONDS,
        first_step_timeout_seconds=HANG_SECONDS,
        hang_action=HangAction.RESTART,
        max_restarts=100,
    ),
)
COLLECTIVE = replace(
    SETTINGS,
    roles=parse_nodes("worker=2"),
    collective=True,
    rendezvous=RendezvousLimits(max_nodes=3, waiting_timeout=5.0),
)


class _Servers(SimulatedJob):
    """A job with parameter servers. A worker in `hung` does not progress in its version."""

    def __init__(self) -> None:
        self.hung: set[tuple[int, int]] = set()
        super().__init__(SETTINGS, SHARDS)

    def _train(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        if (pod.id, active.version) not in self.hung:
            super()._train(pod, active)


class _World(SimulatedCollectiveJob):
    """A collective job, which hangs if one member does."""

    def __init__(self) -> None:
        self.hung: set[tuple[int, int]] = set()
        super().__init__(COLLECTIVE, SHARDS)

    def _between_steps(self, pod: SimulatedPod, active: TrainingCluster, directive: Directive) -> None:
        if all(version != active.version for _, version in self.hung):
            super()._between_steps(pod, active, directive)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["hang", "kill", "crash", "save", "scale", "calm"]), st.integers(0, 7)),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.booleans(), OPERATIONS)
def test_a_job_whose_processes_hang_ends_with_all_of_its_data(
    collective: bool, operations: list[tuple[str, int]]
) -> None:
    """Whatever hangs, dies, saves or changes, the job ends, and every record is trained."""
    job: Any = _World() if collective else _Servers()
    for number, (what, choice) in enumerate(operations):
        job.calm(1)
        _happen(job, what, choice, number)
    for _ in range(60):  # no process hangs any more that is started from now on
        job.calm(10)
        if job.state.outcome is not None:
            break
    assert job.state.outcome is not None, job.state.versions
    assert job.state.outcome.succeeded, job.state.outcome
    assert job.models[job.state.versions.active.number] == set(range(SHARDS))
    parts = job.state.goodput.parts(job.now)
    assert all(seconds > 0 for seconds in parts.values()), parts
    assert abs(sum(parts.values()) - job.state.goodput.elapsed(job.now)) < 1e-6


def _happen(job: Any, what: str, choice: int, number: int) -> None:
    active = job.state.versions.active
    running = [ref for ref, pod in sorted(job.pods.items()) if pod.runs]
    if what == "hang" and active is not None:
        job.hung |= {(node.id, active.number) for node in job.state.trainers}
    elif what == "kill" and running:
        job.kill(running[choice % len(running)])
    elif what == "crash":
        job.crash()
    elif what == "save":
        job.save_periodically()
    elif what == "scale":
        roles: dict[Any, ReplicaResourceSpec] = {"worker": ReplicaResourceSpec(replicas=1 + choice % 3)}
        job.submit(f"plan-{number}", ScalePlanSpec(replica_resource_specs=roles, step_timeout_seconds=30))
    else:
        job.calm(1 + 5 * choice)
