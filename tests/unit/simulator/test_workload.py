"""Jobs of a workload, and traces of clusters as workloads."""

import math

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator.cluster import SimulationSettings, simulate
from edl_workflows.simulator.workload import ClusterJob, WorkloadJob, linear_application, workload_of
from tests.unit.simulator.builders import always

N0 = "node-000"


@pytest.mark.parametrize(
    ("gpus", "held", "seconds"),
    [
        pytest.param(4, 4, 600.0, id="as many as in the trace"),
        pytest.param(4, 1, 2400.0, id="a quarter"),
        pytest.param(7, 3, 1400.0, id="a part that does not divide"),
        pytest.param(2, 4, 600.0, id="more than in the trace"),
    ],
)
def test_speed_is_in_proportion(gpus: int, held: int, seconds: float) -> None:
    """With fewer GPUs a job takes proportionally longer, and with more it is not faster."""
    workload, applications = workload_of([ClusterJob("a", 0.0, gpus, 600.0)])

    [found] = simulate(
        workload,
        applications,
        always(a=[N0] * held),
        SimulationSettings(nodes=1, node_gpus=8, restart_penalty=0),
    ).jobs

    assert found.finished == pytest.approx(60 + seconds, rel=1e-9)


def test_jobs_that_are_alike_train_the_same() -> None:
    """There is one application for each number of GPUs and duration; names and times stay."""
    jobs = [ClusterJob("a", 0.0, 2, 60.0), ClusterJob("b", 5.0, 2, 60.0), ClusterJob("c", 5.0, 2, 61.0)]
    workload, applications = workload_of(jobs)

    assert [(job.name, job.submitted, job.replicas) for job in workload] == [
        ("a", 0.0, 2),
        ("b", 5.0, 2),
        ("c", 5.0, 2),
    ]
    assert len(applications) == 2
    assert linear_application("x", 3, 60.0).epochs == 10


@pytest.mark.parametrize(("gpus", "duration", "submitted"), [(0, 1.0, 0.0), (1, 0.0, 0.0), (1, 1.0, -1.0)])
def test_impossible_trace_jobs_are_refused(gpus: int, duration: float, submitted: float) -> None:
    """A trace with invalid numbers is rejected."""
    with pytest.raises(InvalidError, match="job a:"):
        ClusterJob("a", submitted, gpus, duration)


@pytest.mark.parametrize(
    ("submitted", "replicas", "batch_size"), [(math.nan, 1, 1), (-1, 1, 1), (0, 0, 1), (0, 1, 0)]
)
def test_bad_jobs(submitted: float, replicas: int, batch_size: int) -> None:
    """A job without a time, replicas or a batch is rejected."""
    with pytest.raises(InvalidError, match="job a"):
        WorkloadJob("a", submitted, "digits", replicas, batch_size)
