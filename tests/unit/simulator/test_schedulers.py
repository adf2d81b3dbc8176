"""The policies by example. None of them allocates GPUs that do not exist."""

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
from tests.cases.policies import NODES, POLICY_CASES, Decision, make_active
from tests.unit.simulator.builders import application, job

DIGITS = application()
DECISIONS = [
    pytest.param(policy, decision, id=f"{policy}: {decision.promise}")
    for policy, cases in POLICY_CASES.items()
    for decision in cases.decisions
]


def shares(scheduler: JobScheduler, *jobs: ActiveJob) -> dict[str, list[str]]:
    """The decision, without jobs that get nothing."""
    found = scheduler.schedule(jobs, NODES)
    return {name: list(places) for name, places in found.items() if places}


@pytest.mark.parametrize(("policy", "decision"), DECISIONS)
def test_a_policy_prefers_the_jobs_that_its_cases_say(policy: str, decision: Decision) -> None:
    """Each policy gives each job the nodes that its cases say."""
    assert decision.ask(policy) == decision.gives


def test_tiresias_second_queue_is_in_order() -> None:
    """Jobs of the second queue are served in the order in which they came to it, not in that of the
    workload."""
    scheduler = TiresiasScheduler()
    late = make_active("a", 4, held=("n0",) * 4)
    soon = make_active("b", 4, held=("n1",) * 4, service=QUEUE_THRESHOLD)
    scheduler.schedule([late, soon], NODES)
    late = replace(late, spec=replace(late.spec, replicas=8), attained_service=QUEUE_THRESHOLD)

    assert set(shares(scheduler, late, soon)) == {"b"}


def test_optimus_respects_the_most() -> None:
    """With Optimus, an application that can't be distributed gets one GPU."""
    assert shares(OptimusScheduler(SchedulerInputs({"digits": 1})), make_active("a")) == {"a": ["n0"]}


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
