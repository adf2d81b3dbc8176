"""Brain's algorithms by example, and the law of each: bounds, a reason for each change, and rest."""

import math
from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from edl_workflows.core.scaling.dlrover.brain import algorithms
from edl_workflows.core.scaling.dlrover.brain.fairness import WorkerClaim, fair_shares
from edl_workflows.core.scaling.dlrover.brain.request import BrainRequest, FormerJob, major_cluster
from edl_workflows.core.scaling.dlrover.brain.request import TrainingParameters as Said
from edl_workflows.core.scaling.dlrover.ps_stages import (
    OptimizerQuestion,
    OptimizerStage,
    StageProgress,
    WorkerPhase,
    advance_stage,
)
from edl_workflows.core.scaling.dlrover.resources import (
    PS,
    WORKER,
    Advice,
    NodeGroupResource,
    NodeSize,
    OptimizerJob,
    OptimizerRole,
    Range,
    ResourceLimits,
    UserBounds,
    follow_advice,
    total_amount,
)
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample
from tests.unit.core.scaling.training import GIB, Training, fixed, job, node

TRAINING = Training()
NEW = OptimizerJob("job", {PS: OptimizerRole(0), WORKER: OptimizerRole(0)}, ResourceLimits(1000, 1000 * GIB))
SMALL = NodeSize(2, 4 * GIB)
LONG = Said(batch_size=1, dataset_size=10**9)


def advise(name: str, of: OptimizerJob, **said: object) -> Advice:
    """The advice of the algorithm with this name."""
    return algorithms.ALGORITHMS[f"optimize_job_{name}"](replace(BrainRequest(of), **said))  # type: ignore[arg-type]


def with_oom(of: OptimizerJob, role: str, *numbers: int) -> OptimizerJob:
    """The job; these nodes of the role ran out of memory."""
    names = {node(role, number) for number in numbers}
    return replace(of, nodes=tuple(replace(n, oom=n.name in names) for n in of.nodes))


def former(ps: list[list[float]], workers: list[float], memory: float = 8 * GIB, **said: object) -> FormerJob:
    """A former job, from the cores of each parameter server and of its worker at each moment."""
    samples = tuple(
        JobSample(
            float(time),
            time,
            1.0,
            (
                *(NodeSample(node(PS, i), PS, cpu, memory) for i, cpu in enumerate(cpus)),
                NodeSample(node(WORKER), WORKER, worker, memory),
            ),
        )
        for time, (cpus, worker) in enumerate(zip(ps, workers, strict=True))
    )
    return replace(FormerJob("former", samples=samples), **said)  # type: ignore[arg-type]


def test_hot_servers_get_cores_for_32_workers() -> None:
    """At 88 % use with 14 workers, all servers get 32/14 of the cores that they use. The memory does not
    change."""
    hot = TRAINING.measured(job(2, 14, worker_size=SMALL))
    assert advise("hot_ps_resource", hot).node_resources == {node(PS, i): NodeSize(16) for i in range(2)}


def test_no_hot_server_gets_more_than_there_is() -> None:
    """If a hot server would get more than 32 cores, the new sizes of all servers are scaled down by one
    ratio. Here only the hottest needs more than it has."""
    hot = Training(skew=3, ps_cpu=3).measured(job(2, 8, ps_size=NodeSize(22, 8 * GIB), worker_size=SMALL))
    sizes = advise("hot_ps_resource", hot).node_resources
    assert sizes == {node(PS): NodeSize(32)}


def test_full_memory_grows_by_8_gib() -> None:
    """If memory use is above 90 % in the three newest samples, servers get 8 GiB more, together with cores if
    they need both."""
    full = Training(model=15 * GIB).measured(job(2, 2))
    assert advise("hot_ps_resource", full).node_resources == {
        node(PS, i): NodeSize(memory=16 * GIB) for i in range(2)
    }
    both = advise("hot_ps_resource", Training(model=15 * GIB).measured(job(2, 14, worker_size=SMALL)))
    assert both.node_resources[node(PS)] == NodeSize(16, 16 * GIB)
    assert "more than 80% of its cores" in both.reasons[node(PS)]
    assert "more than 90% of its memory" in both.reasons[node(PS)]


def test_memory_at_most_doubles_in_one_step() -> None:
    """In one step, memory at most doubles: a server, or a worker killed for its memory, of 512 MiB gets 1
    GiB."""
    small = NodeSize(8, 512)
    full = Training(model=480).measured(job(1, 2, ps_size=small))
    assert advise("hot_ps_resource", full).node_resources == {node(PS): NodeSize(memory=1024)}
    short = with_oom(job(1, 2, worker_size=NodeSize(2, 512)), WORKER, 1)
    grown = advise("worker_create_oom_resource", short).node_group_resources[WORKER]
    assert grown.node_resource == NodeSize(memory=1024)


def test_a_reason_names_what_limits_the_count() -> None:
    """If the fair share is lower than the user's bound, the note names the share."""
    one = job(2, 1, worker_size=SMALL)
    role = replace(one.roles[WORKER], bounds=UserBounds(count=Range(1, 2)))
    one = TRAINING.measured(replace(one, roles={**one.roles, WORKER: role}))
    question = OptimizerQuestion(OptimizerStage.RUNNING, WorkerPhase.STABLE, ps_may_change=False)
    claim = WorkerClaim(one.name, NodeSize(), least=1, most=1)
    found = algorithms.optimize_job(question, BrainRequest(one, claims=(claim,)))
    said = " ".join((*found.reasons.values(), *found.notes))
    assert "are allowed" not in said
    assert "its fair share of the cluster is 1" in said
    alone = algorithms.optimize_job(question, BrainRequest(one))
    assert "1 to 2 are allowed" in " ".join((*alone.reasons.values(), *alone.notes))


def test_cold_start() -> None:
    """If nothing is known, the advice has four parameter servers and the first worker."""
    assert advise("ps_cold_create_resource", NEW).node_group_resources == {
        PS: NodeGroupResource(4, NodeSize(12, 16 * GIB))
    }
    assert advise("worker_create_resource", NEW).node_group_resources == {
        WORKER: NodeGroupResource(1, NodeSize(12, 16 * GIB))
    }


def test_former_jobs_tell_what_servers_need() -> None:
    """Servers get 1.5 times the 30 cores that earlier jobs used together, each at least 12 cores and 4 more
    than the busiest. Outliers count for the size of a server, but not for the total."""
    usual = former([[20, 10], [20, 10], [90, 90], [20, 10]], [1] * 4, 10 * GIB)
    absurd = former([[900, 900]], [1], 1 * GIB)
    history = (usual, usual, usual, absurd)
    found = advise("ps_create_resource", NEW, history=(usual,)).node_group_resources[PS]
    assert found.node_resource.memory == 12 * GIB
    assert found.count == math.ceil(45 / (37.5 + 4))
    assert advise("ps_create_resource", NEW, history=history).node_group_resources[PS].count == 1
    assert advise("ps_create_resource", NEW, history=()).notes == (
        "no former job tells what parameter servers use",
    )


def test_major_cluster_leaves_outliers_out() -> None:
    """The major cluster is more than half of the values, those closest to the median."""
    assert major_cluster([1, 10, 11, 12, 100]) == [10, 11, 12]
    assert major_cluster([5]) == [5]
    assert major_cluster([7, 1]) == [1, 7]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (Said(recv_ops=100), NodeGroupResource(2, NodeSize(12, 6 * GIB))),
        (Said(recv_ops=400), NodeGroupResource(2, NodeSize(16, 6 * GIB))),
        (Said(), NodeGroupResource(3, NodeSize(memory=6 * GIB))),
        (Said(max_steps=100), NodeGroupResource(2, NodeSize(memory=6 * GIB))),
    ],
    ids=["operations", "many operations", "nothing said", "a short job"],
)
def test_servers_for_the_workers_to_come(said: Said, wanted: NodeGroupResource) -> None:
    """Four workers use four cores of one server. The advice has enough parameter servers for 20 workers, or
    for 10 in a short job."""
    found = advise("ps_init_adjust_resource", TRAINING.measured(job(1, 4)), training=said)
    assert found.node_group_resources == {PS: wanted}


def test_unbalanced_servers_get_memory_and_balanced_ones_company() -> None:
    """After a server ran out of memory, unbalanced servers get more memory, and balanced ones get more
    servers."""
    here = TRAINING.measured(job(2, 2))
    assert advise("ps_oom_resource", here).notes == ("no parameter server ran out of memory",)
    doubled = advise("ps_oom_resource", with_oom(here, PS, 0))
    assert doubled.node_group_resources == {PS: NodeGroupResource(4)}
    unknown = advise("ps_oom_resource", with_oom(job(2, 2), PS, 0))
    assert unknown.node_group_resources == {PS: NodeGroupResource(None, NodeSize(memory=16 * GIB))}
    most = job(2, 2, ps_size=NodeSize(8, 64 * GIB))
    assert advise("ps_oom_resource", with_oom(most, PS, 1)).node_group_resources == {PS: NodeGroupResource(4)}
    uneven = former([[1, 1]], [1]).samples[0]
    held = replace(uneven, nodes=tuple(replace(n, memory=(i + 1) * GIB) for i, n in enumerate(uneven.nodes)))
    lone = advise("ps_oom_resource", with_oom(replace(job(2, 1), samples=(held,)), PS, 0))
    assert lone.node_group_resources == {PS: NodeGroupResource(None, NodeSize(memory=16 * GIB))}


def test_idle_servers_give_cores_back() -> None:
    """Idle servers get fewer cores if another one is at its limit and the job has long to go, and not
    otherwise."""
    busy = Training(skew=30, ps_cpu=0.9).measured(
        job(2, 32, ps_size=NodeSize(32, 8 * GIB), worker_size=SMALL)
    )
    found = advise("ps_resource_util", busy, training=LONG)
    assert found.node_resources == {node(PS, 1): NodeSize(5, 6 * GIB)}
    assert "less than 40% of its cores while others are at their end" in found.reasons[node(PS, 1)]
    assert advise("ps_resource_util", busy).notes == ("how long the job will go on is not known",)
    assert "ends in about" in advise("ps_resource_util", busy, training=Said(max_steps=200)).notes[0]


def test_workers_after_running_out_of_memory() -> None:
    """Workers get the memory that earlier jobs' workers needed, and more if those also ran out of it. Without
    earlier jobs they get 4 GB more."""
    ill = with_oom(job(1, 2), WORKER, 1)
    step = math.ceil(8 * GIB + 4e9 / 2**20)
    assert advise("worker_create_oom_resource", ill).node_group_resources[WORKER].node_resource.memory == step
    record = former([[1]], [1], 20 * GIB)
    after = advise("worker_create_oom_resource", ill, history=(record,))
    assert after.node_group_resources[WORKER].node_resource == NodeSize(memory=20 * GIB)
    worse = advise(
        "worker_create_oom_resource", ill, history=(replace(record, oom=frozenset({node(WORKER)})),)
    )
    assert worse.node_group_resources[WORKER].node_resource == NodeSize(memory=24 * GIB)
    assert advise("worker_create_oom_resource", job()).notes == ("no worker ran out of memory",)


@pytest.mark.parametrize(
    ("workers", "phase", "said", "wanted"),
    [
        (1, WorkerPhase.STABLE, LONG, 5),
        (1, WorkerPhase.SAMPLE, LONG, 6),
        (1, WorkerPhase.SAMPLE, Said(), 5),
        (1, WorkerPhase.INITIAL, Said(max_steps=10), 6),
        (6, WorkerPhase.STABLE, LONG, None),
        (7, WorkerPhase.STABLE, LONG, None),
        (8, WorkerPhase.STABLE, LONG, 4),
    ],
    ids=["small steps", "large steps", "unknown length", "short", "80 % is left", "between", "exhausted"],
)
def test_workers_by_phase(workers: int, phase: WorkerPhase, said: Said, wanted: int | None) -> None:
    """Each worker uses one of a server's 8 cores, so that 6 workers are the most within 80 % use. The phase
    decides how many workers are added at once."""
    here = TRAINING.measured(job(1, workers))
    found = advise("worker_resource", here, phase=phase, training=said).node_group_resources[WORKER]
    assert found.count == wanted


def test_slower_jobs_get_no_workers() -> None:
    """No workers are added if the last ones made the job slower or, in the stable phase, not faster."""
    before = TRAINING.measured(job(1, 1))
    grown = replace(job(1, 3), samples=before.samples)
    for rate, phase, more in [
        (2.9, WorkerPhase.SAMPLE, False),
        (3.1, WorkerPhase.SAMPLE, True),
        (3.3, WorkerPhase.STABLE, False),
        (3.4, WorkerPhase.STABLE, True),
    ]:
        after = advise("worker_resource", Training(rate=rate).measured(grown), phase=phase, training=LONG)
        assert (after.node_group_resources[WORKER].count is not None) == more


def test_fair_shares_of_a_full_cluster() -> None:
    """Equal jobs get equal shares, weights count, and what one job does not want goes to the others."""
    size = NodeSize(4)
    a, b, c = WorkerClaim("a", size, 1, 60), WorkerClaim("b", size, 1, 60), WorkerClaim("c", size, 1, 2)
    assert fair_shares([a, b, c], {"cpu": 40}).workers == {"a": 4, "b": 4, "c": 2}
    assert fair_shares([a, replace(b, weight=3)], {"cpu": 64}).workers == {"a": 4, "b": 12}
    assert fair_shares([a, replace(b, fixed=NodeSize(24))], {"cpu": 40}).workers == {"a": 2, "b": 2}
    assert fair_shares([replace(a, least=9), b], {"cpu": 8}).workers == {"a": 9, "b": 1}


def test_two_jobs_share_a_full_cluster() -> None:
    """The first job gives back what exceeds its share, the other grows into it, and both stay at that
    size."""
    capacity = {"cpu": 40.0}
    claims = tuple(WorkerClaim(name, NodeSize(2), 1, 60, fixed=NodeSize(4)) for name in ("first", "second"))
    jobs = {"first": job(2, 12, worker_size=SMALL), "second": job(2, 1, worker_size=SMALL)}
    jobs = {name: TRAINING.measured(replace(one, name=name)) for name, one in jobs.items()}
    question = OptimizerQuestion(OptimizerStage.RUNNING, WorkerPhase.STABLE, ps_may_change=False)
    seen = []
    for _ in range(4):
        for name, one in jobs.items():
            found = algorithms.optimize_job(question, BrainRequest(one, claims=claims, capacity=capacity))
            jobs[name] = TRAINING.measured(replace(follow_advice(one, found), samples=one.samples))
        seen.append([one.roles[WORKER].count for one in jobs.values()])
    assert seen == [[8, 5], [8, 8], [8, 8], [8, 8]]


@pytest.mark.parametrize("capacity", [math.nan, -1.0, 0.0, math.inf])
def test_no_share_of_an_impossible_cluster(capacity: float) -> None:
    """An impossible cluster gives a reason instead of shares."""
    claim = WorkerClaim("job", SMALL)
    found = advise("fair_share", job(), claims=(claim,), capacity={"cpu": capacity})
    assert found.empty
    assert "a fair share of it can't be told" in found.notes[0]


def test_an_impossible_claim_is_left_out() -> None:
    """A claim with impossible numbers is left out, and the others share the cluster."""
    wrong = [
        WorkerClaim("nan", SMALL, weight=math.nan),
        WorkerClaim("less", SMALL, 5, 3),
        WorkerClaim("size", NodeSize(-1)),
        WorkerClaim("twice", SMALL),
        WorkerClaim("twice", SMALL),
    ]
    found = fair_shares([*wrong, WorkerClaim("right", SMALL)], {"cpu": 20})
    assert found.workers == {"right": 10}
    assert set(found.problems) == {"nan", "less", "size", "twice"}


claims = st.builds(
    WorkerClaim,
    st.sampled_from("abcdef"),
    st.builds(NodeSize, st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([None, 1.0, 2.0])),
    st.integers(0, 3),
    st.integers(3, 20),
    st.sampled_from([0.5, 1.0, 2.0]),
)


@given(st.lists(claims, unique_by=lambda claim: claim.job), st.sampled_from([1.0, 9.0, 30.0]))
@settings(max_examples=50)
def test_laws_of_fairness(found: list[WorkerClaim], capacity: float) -> None:
    """Shares keep bounds and capacity and do not depend on the order. A job with less than it wants could not
    have one worker more."""
    free = {"cpu": capacity, "memory": 20.0}
    workers = fair_shares(found, free).workers
    assert fair_shares(found[::-1], free).workers == workers
    assert all(claim.least <= workers[claim.job] <= claim.most for claim in found)

    def used(counts: dict[str, int], amount: str) -> float:
        return sum(counts[claim.job] * (claim.worker.amount(amount) or 0) for claim in found)

    least = {claim.job: claim.least for claim in found}
    assert all(
        used(dict(workers), name) <= max(limit, used(least, name)) + 1e-6 for name, limit in free.items()
    )
    for claim in found:
        more = dict(workers) | {claim.job: workers[claim.job] + 1}
        assert workers[claim.job] == claim.most or any(used(more, name) > free[name] for name in free)


STEADY = [name for name in algorithms.ALGORITHMS if "create_resource" not in name]
BAD: dict[str, Callable[[OptimizerJob], OptimizerJob]] = {
    "no samples": lambda of: replace(of, samples=()),
    "nan": lambda of: replace(
        of,
        samples=tuple(replace(s, nodes=tuple(replace(n, cpu=math.nan) for n in s.nodes)) for s in of.samples),
    ),
    "negative": lambda of: replace(of, samples=tuple(replace(s, speed=-1.0) for s in of.samples)),
    "endless limits": lambda of: replace(of, limits=ResourceLimits(math.inf)),
    "no parameter servers": lambda of: replace(of, roles={WORKER: OptimizerRole(1)}, nodes=()),
    "impossible bounds": lambda of: replace(
        of, roles={**of.roles, PS: replace(of.roles[PS], bounds=UserBounds(count=Range(3, 1)))}
    ),
}


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("wrong", BAD.values(), ids=BAD)
def test_bad_input_has_no_plan_but_a_reason(name: str, wrong: Callable[[OptimizerJob], OptimizerJob]) -> None:
    """Each algorithm for running jobs answers bad input with a reason instead of advice."""
    found = algorithms.ALGORITHMS[name](
        BrainRequest(wrong(TRAINING.measured(job(2, 14, worker_size=SMALL))), training=LONG)
    )
    assert found.empty
    assert found.notes


def test_corrupt_history_is_left_out() -> None:
    """Former jobs with impossible numbers are ignored; the others are used."""
    corrupt = former([[math.nan]], [math.inf], -1.0)
    good = former([[10, 10]], [20])
    for name in ("ps_create_resource", "worker_create_resource"):
        assert (
            advise(name, NEW, history=(corrupt, good)).node_group_resources
            == advise(name, NEW, history=(good,)).node_group_resources
        )
    assert advise("ps_create_resource", NEW, history=(corrupt,)).empty


def test_roles_that_may_not_change_stay() -> None:
    """No algorithm changes a role with ``autoScale: false``, in any stage."""
    here = with_oom(TRAINING.measured(job(2, 14, worker_size=SMALL)), WORKER, 1)
    kept = fixed(fixed(here, PS), WORKER)
    for stage in OptimizerStage:
        assert algorithms.optimize_job(OptimizerQuestion(stage), BrainRequest(kept)).empty


@pytest.mark.parametrize("skew", [0.0, 9.0])
@pytest.mark.parametrize("ps_cpu", [0.05, 6.0])
@pytest.mark.parametrize("limit", [15.0, 1000.0])
def test_a_job_that_brain_plans_comes_to_rest(limit: float, ps_cpu: float, skew: float) -> None:
    """From the cold start through all stages, the job stays within its limits, no advice is repeated, and the
    planning stops."""
    training = Training(ps_cpu=ps_cpu, skew=skew)
    here, progress, quiet = replace(NEW, limits=ResourceLimits(limit, 1000 * GIB)), StageProgress(), 0

    def brain(question: OptimizerQuestion, of: OptimizerJob) -> Advice:
        return algorithms.optimize_job(question, BrainRequest(of, training=LONG))

    for turn in range(20):
        question = progress.question(3600.0 * turn)
        found, progress = advance_stage(progress, here, 3600.0 * turn, brain)
        assert set(found.reasons) == {*found.node_group_resources, *found.node_resources}
        after = follow_advice(here, found)
        assert total_amount(after, "cpu") <= limit + 1e-6
        assert brain(question, after).empty
        here = training.measured(replace(after, samples=after.samples[-9:]), 3)
        quiet = quiet + 1 if found.empty else 0
    assert quiet > 5
