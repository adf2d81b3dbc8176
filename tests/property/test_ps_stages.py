"""Laws of advice for jobs with parameter servers, for any job and any measurements."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from edl_workflows.core.scaling.dlrover.bounds import bound_advice, count_range, job_problems, size_range
from edl_workflows.core.scaling.dlrover.local_optimizer import (
    advise_hot_servers,
    advise_initial_servers,
    advise_new_job,
    advise_running_job,
    advise_workers,
)
from edl_workflows.core.scaling.dlrover.ps_stages import (
    OptimizerStage,
    StageProgress,
    advance_stage,
    optimize_locally,
)
from edl_workflows.core.scaling.dlrover.recovery import advise_oom_recovery, advise_pending_cut
from edl_workflows.core.scaling.dlrover.resources import (
    AMOUNTS,
    PS,
    WORKER,
    Advice,
    NodeGroupResource,
    NodeSize,
    OptimizerJob,
    OptimizerNode,
    OptimizerRole,
    Range,
    ResourceLimits,
    UserBounds,
    follow_advice,
    total_amount,
)
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample
from tests.unit.core.scaling.training import GIB, Training

NOW = 10_000.0
Rule = Callable[[OptimizerJob], Advice]
RULES: dict[str, Rule] = {
    "create": advise_new_job,
    "worker": advise_workers,
    "ps_initial": advise_initial_servers,
    "hot_ps": advise_hot_servers,
    "running": advise_running_job,
    "oom": advise_oom_recovery,
    "pending": lambda job: advise_pending_cut(job, NOW),
}

cores = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0, 4.0, 8.0, 31.9, 64.0]))
memories = st.one_of(st.none(), st.sampled_from([0.0, 100.0, 2 * GIB, 30 * GIB, 64 * GIB]))
sizes = st.builds(NodeSize, cores, memories, st.sampled_from([None, None, 1.0]))
limits = st.builds(
    ResourceLimits,
    st.sampled_from([0.3, 15.0, 100.0, 1e6]),
    st.sampled_from([50.0, 30 * GIB, 100 * GIB, 1e9]),
    st.sampled_from([0.0, 4.0]),
)


def ranges(*ends: float) -> st.SearchStrategy[Range | None]:
    pair = st.tuples(st.sampled_from(ends), st.sampled_from(ends))
    return st.one_of(st.none(), pair.map(lambda two: Range(min(two), max(two))))


bounds = st.builds(
    UserBounds, ranges(0, 1, 2, 7, 50), ranges(0, 0.5, 3, 40), ranges(0, 50, 3 * GIB, 99 * GIB)
)
plausible = st.sampled_from([0.0, 0.3, 1.0, 3.9, 7.7, 30.0])
usages = st.sampled_from([0.0, 1.0, 7.7, -1.0, 1e30, float("nan"), float("inf"), float("-inf")])


@st.composite
def roles(draw: st.DrawFn) -> dict[str, OptimizerRole]:
    found = {
        name: OptimizerRole(
            draw(st.integers(0, 3)), draw(sizes), draw(st.sampled_from([True, True, False])), draw(bounds)
        )
        for name in draw(st.sampled_from([(PS, WORKER), (PS, WORKER), (PS, WORKER, "evaluator"), (WORKER,)]))
    }
    return found | ({"chief": OptimizerRole(1, draw(sizes))} if draw(st.booleans()) else {})


@st.composite
def jobs(draw: st.DrawFn, numbers: st.SearchStrategy[float] = plausible) -> OptimizerJob:
    """A job with healthy and unhealthy nodes, and samples with its present and another number of workers."""
    job = follow_advice(OptimizerJob("job", draw(roles()), draw(limits)), Advice())
    ill = st.sampled_from([(None, False)] * 8 + [(None, True), (0.0, False), (NOW, False)])
    nodes = []
    for node in job.nodes:
        since, oom = draw(ill)
        nodes.append(replace(node, pending_since=since, oom=oom))
    present = draw(st.sampled_from([0, 3, 4]))
    samples = [sample(job.nodes[:3], 0, draw(numbers))]
    samples += [sample(job.nodes, time, draw(numbers)) for time in range(1, present + 1)]
    return replace(job, nodes=tuple(nodes), samples=tuple(samples))


def sample(nodes: tuple[OptimizerNode, ...], time: int, used: float) -> JobSample:
    """A sample in which every node of a role has the same usage."""
    return JobSample(float(time), time, used, tuple(NodeSample(n.name, n.role, used, used) for n in nodes))


def check_bounds(job: OptimizerJob, advice: Advice) -> None:
    """No value exceeds its bounds, and nothing changes that may not change."""
    after = follow_advice(job, advice)
    for amount in AMOUNTS:
        before = total_amount(follow_advice(job, Advice()), amount)
        assert total_amount(after, amount) <= max(job.limits.of(amount), before) + 1e-3
    for role, wanted in advice.node_group_resources.items():
        has = job.roles[role]
        assert has.auto_scale
        allowed = count_range(job, role).including(has.count)
        assert wanted.count is None or allowed.low <= wanted.count <= allowed.high
        check_size(job, role, has.resource, wanted.node_resource)
    by_name = {node.name: node for node in job.nodes}
    for name, size in advice.node_resources.items():
        assert job.roles[by_name[name].role].auto_scale
        check_size(job, by_name[name].role, by_name[name].resource, size)


def check_size(job: OptimizerJob, role: str, has: NodeSize, wanted: NodeSize) -> None:
    for amount in ("cpu", "memory"):
        value, present = wanted.amount(amount), has.amount(amount)
        if value is not None:
            allowed = size_range(job, role, amount, present).including(present or 0)
            assert allowed.low <= value <= allowed.high
    assert wanted.gpu is None


@given(jobs(), st.sampled_from(sorted(RULES)))
@settings(max_examples=100)
def test_bounds_are_never_broken(job: OptimizerJob, rule: str) -> None:
    """Every rule keeps the user's bounds, the job's limits and ``autoScale: false``."""
    check_bounds(job, RULES[rule](job))


@given(jobs(usages), st.sampled_from(sorted(RULES)))
@settings(max_examples=100)
def test_nothing_measured_is_too_wrong(job: OptimizerJob, rule: str) -> None:
    """Whatever is reported, no rule fails or exceeds bounds, and each gives its reasons."""
    advice = RULES[rule](job)
    assert advice.reasons or advice.notes or rule in ("create", "oom", "pending")
    check_bounds(job, advice)
    assert set(advice.reasons) == {*advice.node_group_resources, *advice.node_resources}
    assert all(advice.reasons.values())


@given(jobs(), st.sampled_from(sorted(RULES)))
@settings(max_examples=100)
def test_a_plan_that_was_carried_out_is_not_made_again(job: OptimizerJob, rule: str) -> None:
    """For the job as it is after advice, the same rule changes nothing."""
    after = follow_advice(job, RULES[rule](job))
    assert RULES[rule](after).empty, RULES[rule](after)


@given(jobs(), st.sampled_from(sorted(RULES)), st.randoms(use_true_random=False))
def test_order_does_not_matter(job: OptimizerJob, rule: str, random: Random) -> None:
    """The advice does not depend on the order of nodes, samples, entries of samples, or roles."""

    def shuffled(values: tuple[object, ...]) -> tuple:  # type: ignore[type-arg]
        return tuple(random.sample(values, len(values)))

    other = OptimizerJob(
        job.name,
        dict(shuffled(tuple(job.roles.items()))),
        job.limits,
        shuffled(job.nodes),
        shuffled(tuple(replace(sample, nodes=shuffled(sample.nodes)) for sample in job.samples)),
    )
    assert RULES[rule](other) == RULES[rule](job)


proposals = st.builds(
    Advice,
    st.dictionaries(
        st.sampled_from([PS, WORKER, "chief", "nobody"]),
        st.builds(
            NodeGroupResource,
            st.one_of(st.none(), st.integers(-5, 10**9)),
            st.builds(NodeSize, st.one_of(st.none(), usages), st.one_of(st.none(), usages)),
        ),
    ),
    st.dictionaries(
        st.sampled_from([f"job-edljob-{role}-{i}" for role in (PS, WORKER) for i in range(4)]),
        st.builds(NodeSize, st.one_of(st.none(), usages), st.one_of(st.none(), usages)),
    ),
)


@given(jobs(), proposals, st.sampled_from([0.0, 0.1]))
@settings(max_examples=100)
def test_whatever_is_proposed_is_bounded(job: OptimizerJob, proposal: Advice, tolerance: float) -> None:
    """For any numbers, unknown roles and unknown nodes, the bounded advice keeps every bound and has
    reasons."""
    advice = bound_advice(job, proposal, tolerance)
    check_bounds(job, advice)
    assert set(advice.reasons) == {*advice.node_group_resources, *advice.node_resources}
    after = follow_advice(job, advice)
    assert job_problems(job) or bound_advice(after, Advice()).empty


@given(jobs(), st.floats(1, 8))
@settings(max_examples=100)
def test_more_limits_are_never_fewer_workers(job: OptimizerJob, factor: float) -> None:
    """A job with higher limits gets at least as many workers."""
    more = replace(
        job,
        limits=ResourceLimits(job.limits.cpu * factor, job.limits.memory * factor, job.limits.gpu * factor),
    )

    def workers(of: OptimizerJob) -> int:
        return follow_advice(of, advise_workers(of)).roles[WORKER].count

    assert workers(more) >= workers(job)


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    return Training(
        worker_cpu=draw(st.floats(0.1, 20)),
        ps_cpu=draw(st.floats(0.01, 10)),
        skew=draw(st.sampled_from([0.0, 0.0, 1.0, 9.0])),
        model=draw(st.floats(10, 200 * GIB)),
        worker_memory=draw(st.floats(10, 40 * GIB)),
    )


@given(trainings(), limits, st.sampled_from([NodeSize(), NodeSize(1, 500), NodeSize(8, 16 * GIB)]))
@settings(max_examples=100)
def test_every_job_comes_to_rest(training: Training, most: ResourceLimits, size: NodeSize) -> None:
    """A job whose load follows its sizes and counts grows for a while and then stays, in all stages.

    The number of workers never decreases, and at the end the job is as fast as it ever was.
    """
    job, progress, now = (
        OptimizerJob("job", {PS: OptimizerRole(0, size), WORKER: OptimizerRole(0, size)}, most),
        StageProgress(),
        0.0,
    )
    speeds, quiet = [], 0
    for _ in range(60):
        advice, progress = advance_stage(progress, job, now, optimize_locally)
        check_bounds(job, advice)
        after = follow_advice(job, advice)
        assert after.roles[WORKER].count >= job.roles[WORKER].count
        if not after.of(PS) or not after.of(WORKER):
            return
        job, now = training.measured(after), now + 3600.0
        speeds.append(job.samples[-1].speed)
        quiet = quiet + 1 if advice.empty else 0
        if quiet == 3:
            break
    assert quiet == 3
    assert progress.stage in (OptimizerStage.RUNNING, OptimizerStage.WORKER_INITIAL)
    assert speeds[-1] >= 0.999 * max(speeds)
