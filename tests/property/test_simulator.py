"""Laws of the simulator for any trace and policy, with node failures and services that take GPUs."""

from collections import defaultdict
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from edl_workflows.core.scaling.pollux.goodput_fit import FitCache
from edl_workflows.simulator.capacity import FAILURE, CapacityChange, draw_failures, service_changes
from edl_workflows.simulator.cluster import SimulationRun, SimulationSettings
from edl_workflows.simulator.metrics import measure_run
from edl_workflows.simulator.schedulers.catalog import SCHEDULERS
from edl_workflows.simulator.study import Study, Workload
from edl_workflows.simulator.workload import ClusterJob, workload_of

CLUSTER = SimulationSettings(nodes=2, node_gpus=4, checkpoint_interval=300)
FITS = FitCache()
"""Shared by all examples: most jobs are seen with the same few step times."""
POLICY = st.sampled_from(sorted(entry.name for entry in SCHEDULERS))
DEMAND = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 8)), max_size=3)


@st.composite
def traces(draw: st.DrawFn) -> list[ClusterJob]:
    """Up to five jobs, each of at most the whole cluster, some submitted at the same time."""
    count = draw(st.integers(1, 5))
    return [
        ClusterJob(
            f"job-{number}",
            draw(st.sampled_from([0.0, 30.0, 60.0, 400.0, 2000.0])),
            draw(st.sampled_from([1, 2, 3, 4, 8])),
            draw(st.sampled_from([10.0, 100.0, 900.0, 2500.0])),
        )
        for number in range(count)
    ]


def run(jobs: list[ClusterJob], policy: str, changes: list[CapacityChange] | None = None) -> SimulationRun:
    """The run of a trace on two nodes of four GPUs."""
    workload, applications = workload_of(jobs)
    cluster = SimulationSettings(**{**vars(CLUSTER), "changes": changes or []})
    return Study(Workload("w", "w", workload, applications, {}), policy, 0, cluster).run(FITS)


@pytest.mark.slow
@given(traces(), POLICY)
@settings(max_examples=40, deadline=None)
def test_work_is_conserved(jobs: list[ClusterJob], policy: str) -> None:
    """A completed job has had at least the GPU time of its trace, and its attained service equals the GPUs
    held over time."""
    found = run(jobs, policy)
    held: dict[str, float] = defaultdict(float)
    for one in found.holdings:
        assert one.end >= one.start
        held[one.job] += (one.end - one.start) * one.gpus
    by_name = {job.name: job for job in jobs}
    for result in found.jobs:
        job = by_name[result.name]
        assert abs(result.attained_service - held[job.name]) < 1e-6
        assert result.attained_service >= job.gpus * job.duration * (1 - 1e-9)


@given(traces(), POLICY)
@settings(max_examples=30, deadline=None)
def test_no_job_is_faster_than_its_trace(jobs: list[ClusterJob], policy: str) -> None:
    """From its first start on, a job takes at least its duration. Without failures every job completes."""
    by_name = {job.name: job for job in jobs}
    for result in run(jobs, policy).jobs:
        assert result.started is not None
        assert result.finished is not None
        assert result.finished - result.started >= by_name[result.name].duration * (1 - 1e-9)
        assert result.pending >= result.started - result.submitted - 1e-9


FAILURE_NEAR_THE_END = [
    ClusterJob("job-0", 60.0, 8, 2500.0),
    ClusterJob("job-1", 60.0, 8, 100.0),
    ClusterJob("job-2", 60.0, 1, 10.0),
    ClusterJob("job-3", 2000.0, 8, 2500.0),
]
"""With seed 4 a node fails in the last interval, which is shorter than the others."""


@pytest.mark.slow
@given(traces(), POLICY, DEMAND, st.integers(0, 5))
@example(FAILURE_NEAR_THE_END, "fit", [], 4)
@settings(max_examples=40, deadline=None)
def test_failures_lose_no_job(
    jobs: list[ClusterJob], policy: str, demand: list[tuple[float, int]], seed: int
) -> None:
    """Whatever capacity is taken away for a while, every job completes, and jobs never hold more GPUs than
    there are."""
    nodes = CLUSTER.capacity()
    changes = draw_failures(nodes, mean_time_between=1500, repair_time=200, until=6000, seed=seed)
    changes += service_changes("web", nodes, [*sorted(demand), (6000, 0)])
    found = run(jobs, policy, changes)

    assert measure_run(found).unfinished == 0
    assert all(sample.used <= sample.gpus for sample in found.samples)
    assert measure_run(found).utilisation <= 1 + 1e-9


@pytest.mark.slow
@given(traces(), POLICY, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_rows_does_not_matter(jobs: list[ClusterJob], policy: str, random: Random) -> None:
    """The same jobs in another order, or a second call, give the same run."""
    shuffled = random.sample(jobs, len(jobs))
    changes = [CapacityChange(500, "node-001", FAILURE, 4), CapacityChange(900, "node-001", FAILURE, 0)]
    assert run(jobs, policy, changes) == run(shuffled, policy, changes) == run(jobs, policy, changes)
