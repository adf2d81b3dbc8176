"""Nodes on lost machines, and pods in which another container outlives the node's own."""

import pytest

from edl_workflows.core.kubernetes.lost_pods import UNREACHABLE_SECONDS
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.job import MachineLoss
from edl_workflows.services.master.state.nodes.registry import ExitReason, NodeStatus
from edl_workflows.services.master.state.observations import PodPhase
from edl_workflows.services.master.state.settings import JobSettings, Timeouts
from tests.unit.services.master.simulated_job import SimulatedJob


def _job() -> SimulatedJob:
    settings = JobSettings("job", "default", parse_nodes("ps=2,worker=2"), timeouts=Timeouts(verdict=0.0))
    job = SimulatedJob(settings, shards=10_000)
    job.calm(5)
    assert job.state.versions.settled
    return job


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_a_pod_that_counts_as_gone_is_replaced_at_once(role: str) -> None:
    """A deleted pod whose end no kubelet confirms is replaced as soon as it counts as gone, long before the
    agent's heartbeats are missed, even if the agent still answers; no budget is used."""
    job = _job()
    job.pods[role, 0].loss = MachineLoss(gone_at=job.now + 45)
    job.observe()
    job.now += 44
    job.settle()
    node = job.state.nodes.find(role, 0)
    assert node is not None
    assert node.live
    job.now += 2
    job.settle()
    node = job.state.nodes.find(role, 0)
    assert node is not None
    assert (node.status, node.exit_reason) == (NodeStatus.FAILED, ExitReason.LOST)
    successor = job.state.nodes.find(role, 2)
    assert successor is not None
    assert (successor.rank, successor.relaunches) == (0, 0)
    job.calm(10)
    assert job.state.versions.settled


def test_an_unreachable_node_is_lost_if_its_agent_is_silent_too() -> None:
    """A machine that has lost only its kubelet trains on. If the agent is silent as well, the node is
    replaced after a minute, not after ten."""
    job = _job()
    job.pods["worker", 0].loss = MachineLoss(unreachable_since=job.now)
    job.observe()
    for _ in range(4):  # the agents report
        job.now += UNREACHABLE_SECONDS / 2
        job.calm(1)
    node = job.state.nodes.find("worker", 0)
    assert node is not None
    assert node.live
    job.state.volatile.last_seen["worker-1"] = job.now + UNREACHABLE_SECONDS
    job.now += UNREACHABLE_SECONDS + 1
    job.settle()
    node = job.state.nodes.find("worker", 0)
    assert node is not None
    assert node.exit_reason is ExitReason.LOST
    assert "neither its machine nor its agent has answered for 62 s" in node.message


@pytest.mark.parametrize(("phase", "code"), [(PodPhase.SUCCEEDED, 0), (PodPhase.FAILED, 137)])
def test_a_pod_that_another_container_outlives_is_removed(phase: PodPhase, code: int) -> None:
    """The end of its own container ends the node at once, and the master asks for the pod's removal, since
    the pod would never end by itself."""
    job = _job()
    pod = job.pods["worker", 1]
    pod.phase, pod.exit_code, pod.outlived = phase, code, True
    job.observe()
    node = job.state.nodes.find("worker", 1)
    assert node is not None
    assert node.status is (NodeStatus.FAILED if code else NodeStatus.SUCCEEDED)
    assert any(("worker", 1) in request.remove for request in job.state.pod_plans.open)
