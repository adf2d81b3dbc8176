"""The baselines by example. None of them allocates GPUs that do not exist."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_workflows.core.scaling.first_fit import FirstFitPolicy
from edl_workflows.simulator.cluster import SimulationSettings, simulate
from edl_workflows.simulator.schedulers.optimus import OptimusScheduler
from edl_workflows.simulator.schedulers.scheduler import (
    ActiveJob,
    JobScheduler,
    PolicyScheduler,
    SchedulerInputs,
)
from edl_workflows.simulator.schedulers.tiresias import QUEUE_THRESHOLD, TiresiasScheduler
from edl_workflows.simulator.workload import WorkloadJob
from tests.unit.simulator.builders import application, job

DIGITS = application()
NODES = {"n0": 4, "n1": 4}


def active(name: str, replicas: int = 1, *, held: tuple[str, ...] = (), service: float = 0.0) -> ActiveJob:
    """A job of `DIGITS` with a batch of 40."""
    spec = WorkloadJob(name, 0.0, "digits", replicas, 40)
    return ActiveJob(spec, DIGITS, epoch=0, age=60.0, attained_service=service, restarts=0, held=held)


def shares(scheduler: JobScheduler, *jobs: ActiveJob) -> dict[str, list[str]]:
    """The decision, without jobs that get nothing."""
    found = scheduler.schedule(jobs, NODES)
    return {name: list(places) for name, places in found.items() if places}


def test_tiresias_gives_all_or_nothing() -> None:
    """Jobs at the head of the queue get all that they ask for. A job that does not fit is skipped."""
    found = shares(TiresiasScheduler(), active("a", 4), active("b", 5), active("c", 2))
    assert found == {"a": ["n0"] * 4, "c": ["n1"] * 2}


def test_tiresias_leaves_jobs_where_they_are() -> None:
    """With Tiresias, running jobs keep their nodes, and new jobs get the emptiest ones."""
    found = shares(TiresiasScheduler(), active("a", 2, held=("n0", "n0")), active("b", 5))
    assert found == {"a": ["n0", "n0"], "b": ["n1"] * 4 + ["n0"]}


def test_tiresias_prefers_jobs_that_had_little() -> None:
    """With Tiresias, a job with 16 GPU hours moves to the second queue, and is preempted if there is no
    room."""
    old = active("a", 8, held=("n0",) * 4 + ("n1",) * 4, service=QUEUE_THRESHOLD)
    assert shares(TiresiasScheduler(), old, active("b", 1)) == {"b": ["n0"]}


def test_tiresias_second_queue_is_in_order() -> None:
    """Jobs of the second queue are served in the order in which they came to it, not in that of the
    workload."""
    scheduler = TiresiasScheduler()
    late = active("a", 4, held=("n0",) * 4)
    soon = active("b", 4, held=("n1",) * 4, service=QUEUE_THRESHOLD)
    scheduler.schedule([late, soon], NODES)
    late = replace(late, spec=replace(late.spec, replicas=8), attained_service=QUEUE_THRESHOLD)

    assert set(shares(scheduler, late, soon)) == {"b"}


def test_optimus_shares_by_gain() -> None:
    """With Optimus, the remaining GPU goes to the job with more work left."""
    long = replace(active("b"), application=application("long", epochs=20))
    found = OptimusScheduler().schedule([active("a"), long], {"n0": 3})
    assert found == {"a": ["n0"], "b": ["n0", "n0"]}


def test_optimus_gives_no_more_than_helps() -> None:
    """With a batch of 40 in mini-batches of 10, three replicas are no faster than two, so the job gets
    two."""
    assert shares(OptimusScheduler(), active("a")) == {"a": ["n0", "n0"]}


def test_optimus_respects_the_most() -> None:
    """With Optimus, an application that can't be distributed gets one GPU."""
    assert shares(OptimusScheduler(SchedulerInputs({"digits": 1})), active("a")) == {"a": ["n0"]}


def test_optimus_keeps_places() -> None:
    """A job whose number of replicas does not change keeps its nodes."""
    assert shares(OptimusScheduler(), active("a", held=("n1", "n1"))) == {"a": ["n1", "n1"]}


def test_more_jobs_than_gpus() -> None:
    """The first jobs in the workload get one GPU each."""
    found = shares(OptimusScheduler(), *(active(str(number)) for number in range(10)))
    assert sorted(found) == [str(number) for number in range(8)]


def test_a_policy_of_the_allocator_schedules() -> None:
    """Policies for live jobs can be simulated."""
    found = shares(PolicyScheduler(FirstFitPolicy()), active("a", 8, held=("n0",)), active("b", 2))
    assert Counter(len(places) for places in found.values()) == {6: 1, 2: 1}


@pytest.mark.parametrize(
    "scheduler", [TiresiasScheduler, OptimusScheduler, lambda: PolicyScheduler(FirstFitPolicy())]
)
@settings(max_examples=25)
@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 600), st.integers(1, 8), st.sampled_from([10, 20, 40])), max_size=8
    ),
    nodes=st.integers(2, 3),
)
def test_runs_end_with_all_jobs_complete(
    scheduler: type[JobScheduler], jobs: list[tuple[int, int, int]], nodes: int
) -> None:
    """For any workload, no node has more replicas than GPUs, no job starves, and runs are reproducible."""
    workload = [
        job(f"job-{number}", submitted, replicas, batch_size)
        for number, (submitted, replicas, batch_size) in enumerate(jobs)
    ]
    cluster = SimulationSettings(nodes=nodes, node_gpus=4, horizon=100_000)

    run = simulate(workload, {"digits": DIGITS}, scheduler(), cluster)

    assert all(one.finished is not None for one in run.jobs)
    assert run == simulate(workload, {"digits": DIGITS}, scheduler(), cluster)
