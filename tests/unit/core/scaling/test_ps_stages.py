"""Stages and rules of jobs with parameter servers, by example."""

import math
from dataclasses import replace

import pytest

from edl_workflows.core.jobs.scale_plan import model
from edl_workflows.core.scaling.dlrover.bounds import bound_advice, count_range
from edl_workflows.core.scaling.dlrover.local_optimizer import (
    advise_hot_servers,
    advise_initial_servers,
    advise_new_job,
    advise_running_job,
    advise_workers,
)
from edl_workflows.core.scaling.dlrover.ps_stages import (
    PS_REST,
    OptimizerQuestion,
    OptimizerStage,
    StageProgress,
    WorkerPhase,
    advance_stage,
    optimize_locally,
)
from edl_workflows.core.scaling.dlrover.recovery import advise_oom_recovery, advise_pending_cut
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
    node_size_of,
    role_advice,
    scale_plan_spec,
    total_amount,
)
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample, valid_samples
from tests.unit.core.scaling.training import GIB, Training, fixed, job, node

TRAINING = Training()


def hot_job(cores: float = 64) -> OptimizerJob:
    """Eight workers keep the first of two parameter servers busy to 97 %."""
    small = NodeSize(2, 2 * GIB)
    limits = ResourceLimits(cores, 1000 * GIB)
    wanted = job(2, 8, limits=limits, ps_size=NodeSize(7.5, 8 * GIB), worker_size=small)
    return Training(skew=9).measured(wanted)


def count(advice: Advice, role: str) -> int | None:
    """What the advice wants of a role."""
    return advice.node_group_resources.get(role, NodeGroupResource()).count


def new_job(limits: ResourceLimits | None = None, **roles: OptimizerRole) -> OptimizerJob:
    """A job that has no nodes yet."""
    return OptimizerJob(
        "job", {PS: OptimizerRole(0), WORKER: OptimizerRole(0)} | roles, limits or ResourceLimits()
    )


def test_a_new_job_gets_one_node_of_each_role() -> None:
    """Each node gets a fifth of the limits, at most 16 cores and 8 GiB."""
    advice = advise_new_job(new_job())
    wanted = NodeGroupResource(1, NodeSize(16, 8192))
    assert advice.node_group_resources == {PS: wanted, WORKER: wanted}
    assert advice.reasons[PS].startswith(
        "0 → 1 nodes; cpu unset → 16 cores, memory unset → 8192 MiB: the manifest leaves it open"
    )


def test_what_the_user_says_of_a_new_job_stays() -> None:
    """Counts and sizes in the user's spec are kept; only missing ones are filled in."""
    said = new_job(ps=OptimizerRole(3, NodeSize(0.5)), worker=OptimizerRole(2, NodeSize(1, 512)))
    advice = advise_new_job(said)
    assert advice.node_group_resources == {PS: NodeGroupResource(None, NodeSize(memory=8192))}


@pytest.mark.parametrize("cpu", [0.5, 1, 3, 15, 100])
def test_a_new_job_fits_its_limits(cpu: float) -> None:
    """However small the limits are, each role gets a node, and together they stay within the limits."""
    small = new_job(ResourceLimits(cpu, 1000))
    after = follow_advice(small, advise_new_job(small))
    assert {name: role.count for name, role in after.roles.items()} == {PS: 1, WORKER: 1}
    assert 0 < total_amount(after, "cpu") <= cpu
    assert 0 < total_amount(after, "memory") <= 1000


def test_many_nodes_of_a_new_job_share_its_limits() -> None:
    """Twenty workers without a size get equal parts of what the parameter server leaves."""
    many = new_job(ResourceLimits(100, 102_400), worker=OptimizerRole(20))
    assert advise_new_job(many).node_group_resources[WORKER].node_resource == NodeSize(4.2, 4710)


def test_workers_grow_to_what_parameter_servers_serve() -> None:
    """If one worker uses 1/8 of a server's cores, the server can serve seven at 90 %. The size of workers
    follows from their use."""
    advice = advise_workers(TRAINING.measured(job()))
    assert advice.node_group_resources == {WORKER: NodeGroupResource(7, NodeSize(4, 6144))}
    assert "12% of its cores with 1 workers, 90% is aimed at" in advice.reasons[WORKER]


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (ResourceLimits(100, 1000 * GIB), 7),
        (ResourceLimits(28, 1000 * GIB), 4),
        (ResourceLimits(1000, 30 * GIB), 3),
        (ResourceLimits(19.9, 1000 * GIB), None),
        (ResourceLimits(2, 10), None),
    ],
    ids=["enough", "cores", "memory", "none left", "beyond"],
)
def test_workers_stay_within_the_limits(limits: ResourceLimits, wanted: int | None) -> None:
    """With one server and one worker of 8 cores and 8 GiB, the number of workers stays within the limits."""
    advice = advise_workers(TRAINING.measured(job(limits=limits)))
    assert count(advice, WORKER) == wanted


def test_saturated_servers_get_no_more_workers() -> None:
    """Above 95 % use of the servers' cores no workers are added, since they would only wait."""
    advice = advise_workers(TRAINING.measured(job(1, 8)))
    assert advice.empty
    assert "parameter servers use 100% of their cores" in advice.notes[0]


def test_workers_that_bring_nothing_are_the_last() -> None:
    """If three more workers gained no speed, no more are added, although parameter servers are idle."""
    before = TRAINING.measured(job(1, 1))
    slow = Training(rate=2.5).measured(
        replace(follow_advice(before, role_advice(WORKER, "", 4)), samples=before.samples)
    )
    advice = advise_workers(slow)
    assert advice.empty
    assert advice.notes == (
        "the workers added last brought 0% of what each brought before; 20% is the least",
    )


def test_a_chief_of_its_own_counts_as_a_worker() -> None:
    """A chief computes like a worker: with one, one worker less is needed."""
    alone = job(1, 1)
    two = follow_advice(
        replace(alone, roles={**alone.roles, "chief": OptimizerRole(1, NodeSize(8, 8 * GIB))}), Advice()
    )
    assert count(advise_workers(TRAINING.measured(two)), WORKER) == 6


def test_parameter_servers_for_all_workers_that_have_room() -> None:
    """Of 60 cores, 20 workers use 40 themselves and 20 on parameter servers, which are three servers of 8
    cores."""
    advice = advise_initial_servers(TRAINING.measured(job(1, 4, limits=ResourceLimits(60, 1000 * GIB))))
    assert count(advice, PS) == 3


def test_fewer_parameter_servers_can_hold_the_model() -> None:
    """Two servers that replace six get 1.2 times half of the memory that the six use."""
    many = Training(model=60 * GIB).measured(job(6, 4, limits=ResourceLimits(40, 1000 * GIB)))
    wanted = advise_initial_servers(many).node_group_resources[PS]
    assert wanted == NodeGroupResource(2, NodeSize(memory=36 * GIB))


def test_workers_that_the_user_does_not_allow_need_no_servers() -> None:
    """If the user allows at most 8 workers, one server is enough, whatever the limits allow."""
    few = job(1, 4, worker_bounds=UserBounds(count=Range(1, 8)))
    assert advise_initial_servers(TRAINING.measured(few)).empty


TINY = Training(worker_cpu=0.2, ps_cpu=0.2)
TINY_LOADS = {
    "nobody said how many workers": (job(ps_size=NodeSize(1, GIB)), 4),
    "there are more than are expected": (job(10, 40, ps_size=NodeSize(1, GIB)), 8),
    "the user allows 60": (
        job(ps_size=NodeSize(1, GIB), worker_bounds=UserBounds(count=Range(1, 60))),
        12,
    ),
    "limits hold 5 workers of a core": (
        job(ps_size=NodeSize(1, GIB), limits=ResourceLimits(6, 64 * GIB)),
        None,
    ),
    "or 15 of a quarter": (
        job(
            ps_size=NodeSize(1, GIB),
            worker_size=NodeSize(0.25, GIB),
            limits=ResourceLimits(6.75, 64 * GIB),
        ),
        3,
    ),
}


@pytest.mark.parametrize(("tiny", "servers"), TINY_LOADS.values(), ids=TINY_LOADS)
def test_a_tiny_load_does_not_get_servers_for_sixty_workers(tiny: OptimizerJob, servers: int | None) -> None:
    """If each worker uses 0.2 cores itself and 0.2 of the servers, servers are advised only for workers that
    can exist."""
    assert count(advise_initial_servers(TINY.measured(tiny)), PS) == servers


def test_hot_servers_are_migrated_and_keep_their_memory() -> None:
    """All servers get the cores that 21 workers need; the idle one already has enough."""
    hot = hot_job()
    advice = advise_hot_servers(hot)
    assert advice.node_resources == {node(PS): NodeSize(cpu=19.1)}
    assert "97% of its cores on average, 90% is hot" in advice.reasons[node(PS)]


def test_a_hot_server_that_can_not_grow_does_not_stop_the_rest() -> None:
    """If a hot server can't grow within the limits, the notes say so, and the rule for workers is asked as
    well. In upstream, the empty advice blocks it."""
    hot = hot_job(24)
    advice = advise_running_job(hot)
    assert advice.empty
    assert advice.notes == (
        f"{node(PS)} is hot, but limits allow no more",
        "parameter servers use 97% of their cores: workers would wait",
    )


def test_migrations_share_what_the_limits_leave() -> None:
    """Two hot servers that want 8 cores more each, with room for 8 in total, get 4 more each."""
    hot = Training(worker_cpu=1.0).measured(job(2, 16, limits=ResourceLimits(152, 1000 * GIB)))
    advice = advise_hot_servers(hot)
    assert advice.node_resources == {node(PS, i): NodeSize(cpu=12.0) for i in range(2)}
    assert advice.reasons[node(PS)].endswith("(resourceLimits allow no more)")


def test_a_role_that_may_not_change_leaves_the_others_free() -> None:
    """With ``autoScale: false`` on ps, workers are advised as before; on worker, servers are migrated as
    before."""
    hot = hot_job()
    assert advise_hot_servers(fixed(hot, WORKER)) == advise_hot_servers(hot)
    kept = advise_hot_servers(fixed(hot, PS))
    assert kept.empty
    assert "ps has autoScale: false" in kept.notes[0]
    calm = TRAINING.measured(job())
    assert advise_workers(fixed(calm, PS)) == advise_workers(calm)
    assert advise_workers(fixed(calm, WORKER)).empty


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [(Range(1, 4), 4), (Range(9, 12), 9), (Range(3, 90), 7)],
    ids=["at most", "at least", "wide"],
)
def test_the_users_bounds_win(bounds: Range, wanted: int) -> None:
    """The user's bounds take precedence over statistics and over our constants."""
    advice = advise_workers(TRAINING.measured(job(1, 1, worker_bounds=UserBounds(count=bounds))))
    assert count(advice, WORKER) == wanted


def test_bounds_hold_without_a_proposal() -> None:
    """A count outside the user's bounds is corrected, even if no rule proposes a change."""
    many = job(1, 9, worker_bounds=UserBounds(count=Range(1, 4)))
    advice = bound_advice(many, Advice())
    assert advice.reasons == {WORKER: "9 → 4 nodes: the user's bounds (wanted 9; 1 to 4 are allowed)"}


def test_defaults_do_not_shrink_what_the_user_made() -> None:
    """A job that was created with more or smaller workers than the default bounds allow may keep them."""
    big = job(1, 80, worker_size=NodeSize(0.5, 100))
    assert count_range(big, WORKER) == Range(1, 80)
    assert bound_advice(big, role_advice(WORKER, "", 80, NodeSize(0.5, 100))).empty


def test_small_differences_are_left() -> None:
    """A change of less than a tenth is not made; one of a tenth is."""
    size = NodeSize(10, 10 * GIB)
    here = job(1, 4, worker_size=size)
    assert bound_advice(here, role_advice(WORKER, "", 4, NodeSize(10.9, 9.1 * GIB))).empty
    assert not bound_advice(here, role_advice(WORKER, "", 4, NodeSize(11))).empty


@pytest.mark.parametrize(("size", "memory"), [(NodeSize(memory=9000), 5000), (NodeSize(8), 1000)])
def test_replaced_nodes_stay_within_the_limits(size: NodeSize, memory: float) -> None:
    """A change of a role also replaces its nodes that ran out of memory, and counts them like new ones
    against the limits."""
    ill = job(1, 2, limits=ResourceLimits(100, 12_000), worker_size=NodeSize(4, 1000))
    small = {PS: replace(ill.roles[PS], resource=NodeSize(1, 1000))}
    nodes = [replace(n, oom=n.role == WORKER, resource=NodeSize(1, 1000)) for n in ill.nodes]
    ill = replace(ill, roles={**ill.roles, **small}, nodes=tuple(nodes))

    after = follow_advice(ill, bound_advice(ill, role_advice(WORKER, "", None, size)))

    assert total_amount(after, "memory") <= 12_000
    assert [n.resource.memory for n in after.of(WORKER)] == [pytest.approx(memory, rel=0.2)] * 2


def test_a_node_out_of_memory_gets_twice_as_much() -> None:
    """A node that ran out of memory gets twice as much, but at most 8 GiB more and 64 GiB in total. A node
    without a memory limit is not changed."""
    sizes = (1000.0, 10_000.0, 60_000.0, 65_536.0, None)
    ill = job(1, 5)
    nodes = [
        replace(n, oom=True, resource=NodeSize(8, m)) for n, m in zip(ill.of(WORKER), sizes, strict=True)
    ]
    unlimited = replace(ill.roles[WORKER], resource=NodeSize(8))
    advice = advise_oom_recovery(
        replace(ill, nodes=(*ill.of(PS), *nodes), roles={**ill.roles, WORKER: unlimited})
    )
    assert [advice.node_resources.get(n.name) for n in nodes] == [
        NodeSize(memory=2000),
        NodeSize(memory=18_192),
        NodeSize(memory=65_536),
        None,
        None,
    ]
    assert len(advice.notes) == 2


def test_pending_nodes_are_cut_in_half() -> None:
    """Nodes that are pending for 900 s get half of their resources, within the bounds, unless they have
    GPUs."""
    waiting = job(1, 4)
    sizes = [
        NodeSize(16, 32 * GIB),
        NodeSize(6, 32 * GIB),
        NodeSize(4, 4 * GIB),
        NodeSize(16, gpu=1),
    ]
    nodes = [
        replace(n, pending_since=0.0, resource=s) for n, s in zip(waiting.of(WORKER), sizes, strict=True)
    ]
    here = replace(waiting, nodes=(*waiting.of(PS), *nodes))
    assert advise_pending_cut(here, 900).empty
    advice = advise_pending_cut(here, 901)
    assert advice.node_resources == {
        node(WORKER, 0): NodeSize(8, 16 * GIB),
        node(WORKER, 1): NodeSize(memory=16 * GIB),
    }
    assert advice.notes == (
        f"{node(WORKER, 2)} is not cut: half of it is less than is allowed (it has been pending for 901 s)",
        f"{node(WORKER, 3)} is not cut: it has GPUs (it has been pending for 901 s)",
    )


def with_usage(of: OptimizerJob, cpu: float, memory: float = 100.0) -> OptimizerJob:
    """Three samples in which the first parameter server reported this."""
    nodes = tuple(NodeSample(n.name, n.role, cpu if n.role == PS else 1.0, memory) for n in of.nodes)
    return replace(of, samples=tuple(JobSample(time, 1, 1.0, nodes) for time in (1.0, 2.0, 3.0)))


@pytest.mark.parametrize(
    ("wrong", "note"),
    [
        (with_usage(job(), math.nan), "reported nan cores"),
        (with_usage(job(), -1.0), "reported -1.0 cores"),
        (with_usage(job(), math.inf), "reported inf cores"),
        (with_usage(job(), 1.0, 1e30), "reported 1e+30 MiB"),
        (job(), "0 samples tell of the job as it is now"),
        (replace(TRAINING.measured(job()), limits=ResourceLimits(math.nan)), "resourceLimits.cpu is nan"),
        (replace(TRAINING.measured(job()), limits=ResourceLimits(-4)), "resourceLimits.cpu is -4"),
        (replace(TRAINING.measured(job()), limits=ResourceLimits(4, 0)), "resourceLimits.memory is 0"),
        (
            TRAINING.measured(job(worker_bounds=UserBounds(count=Range(5, 2)))),
            "the bounds of worker are impossible",
        ),
        (
            TRAINING.measured(job(ps_bounds=UserBounds(cpu=Range(0, math.nan)))),
            "the bounds of ps are impossible",
        ),
        (replace(job(), nodes=job().nodes * 2), "two nodes have one name"),
        (replace(job(), nodes=tuple(job().of(PS))), "0 of 1 worker nodes run"),
        (
            replace(job(), roles={PS: OptimizerRole(1)}, nodes=tuple(job().of(PS))),
            "the job has no role worker",
        ),
        (replace(job(), roles={WORKER: OptimizerRole(1)}), "has the role ps, which the job has not"),
        (job(ps_size=NodeSize(math.inf)), "the cpu of ps is inf"),
        (
            TRAINING.measured(replace(job(), roles={**job().roles, WORKER: OptimizerRole(-1)})),
            "worker wants -1 nodes",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize(
    "rule",
    [advise_workers, advise_initial_servers, advise_hot_servers, advise_running_job],
    ids=lambda f: f.__name__,
)
def test_bad_input_has_no_plan_but_a_reason(rule: object, wrong: OptimizerJob, note: str) -> None:
    """A value that is not a number, negative, missing or contradictory gives a reason and no advice."""
    assert callable(rule)
    advice = rule(wrong)
    assert advice.empty
    assert any(note in one for one in advice.notes), advice.notes


def test_samples_that_contradict_each_other_are_left_out() -> None:
    """Two samples of one moment that differ are dropped. Two equal ones count once."""
    usage = (NodeSample("a", PS, 1, 1), NodeSample("b", PS, 2, 1))
    first, second = JobSample(1, 5, 1.0, usage), JobSample(2, 6, 1.0, usage)
    same = replace(first, nodes=usage[::-1])
    known = valid_samples([second, first, replace(second, step=7), same])
    assert known.samples == (first,)
    assert known.problems == ("samples of the moment 2 contradict each other",)


def test_old_samples_say_nothing_of_new_servers() -> None:
    """After a migration, the advice waits for samples of the new servers."""
    hot = hot_job()
    after = follow_advice(hot, advise_hot_servers(hot))
    assert [n.name for n in after.of(PS)] == [node(PS, 1), node(PS, 2)]
    advice = advise_running_job(after)
    assert advice.waiting
    assert advice.notes == ("0 samples tell of the job as it is now, 3 are needed",)


def test_stages_go_forward_only() -> None:
    """Each stage needs its statistics. Until they exist the stage stays; stages only go forward, and no
    advice is repeated."""
    roles = {PS: OptimizerRole(0, NodeSize(4, 8 * GIB)), WORKER: OptimizerRole(0, NodeSize(2, 2 * GIB))}
    here, progress = new_job(ResourceLimits(60, 200 * GIB), **roles), StageProgress()
    seen = []
    for _ in range(4):
        advice, progress = advance_stage(progress, here, 0.0, optimize_locally)
        here = follow_advice(here, advice)
        waiting, unchanged = advance_stage(progress, here, 0.0, optimize_locally)
        assert waiting.empty
        assert unchanged == progress
        here = TRAINING.measured(here)
        seen.append((progress.stage, here.roles[PS].count, here.roles[WORKER].count))
    assert seen == [
        (OptimizerStage.WORKER_INITIAL, 1, 1),
        (OptimizerStage.PS_INITIAL, 1, 3),
        (OptimizerStage.RUNNING, 5, 3),
        (OptimizerStage.RUNNING, 5, 18),
    ]


def test_servers_rest_between_two_changes() -> None:
    """For an hour after a change of servers, only workers are advised. Then servers may change again."""
    progress = StageProgress(OptimizerStage.RUNNING, ps_changed_at=1000.0)
    assert progress.question(1000.0 + PS_REST - 1) == OptimizerQuestion(
        OptimizerStage.RUNNING, WorkerPhase.SAMPLE, ps_may_change=False
    )
    assert progress.question(1000.0 + PS_REST).ps_may_change
    hot = hot_job()
    early, _ = advance_stage(progress, hot, 1001.0, optimize_locally)
    assert early.empty
    late, after = advance_stage(progress, hot, 9000.0, optimize_locally)
    assert late.node_resources
    assert after.ps_changed_at == 9000.0


def test_a_plan_becomes_a_scale_plan() -> None:
    """Changed counts and sizes are written in the format of the ScalePlan; unchanged ones are left out."""
    advice = Advice({WORKER: NodeGroupResource(3, NodeSize(0.5))}, {node(PS): NodeSize(9.3, 8192.7, 1)})
    spec = scale_plan_spec(advice, job())
    assert spec.to_dict()["replicaResourceSpecs"] == {"worker": {"replicas": 3, "resource": {"cpu": "500m"}}}
    assert [(pod.name, pod.type, pod.resource) for pod in spec.migrate_pods] == [
        (node(PS), PS, model.NodeResource(cpu="9300m", memory="8192Mi", gpu="1"))
    ]
    assert node_size_of(spec.migrate_pods[0].resource) == NodeSize(9.3, 8192, 1)


def test_a_plan_keeps_the_type_of_gpus() -> None:
    """New nodes have the GPU type of their role, replaced nodes their own; messages name it."""
    v100 = NodeSize(8, 8 * GIB, 1, "Tesla-V100")
    before = job(worker_size=v100, limits=ResourceLimits(1000, 1000 * GIB, 8))
    after = follow_advice(before, Advice({WORKER: NodeGroupResource(2, NodeSize(cpu=4))}))
    grown = follow_advice(after, Advice(node_resources={node(WORKER, 1): NodeSize(memory=16 * GIB)}))
    assert [str(one.resource) for one in grown.of(WORKER)] == [
        "8 cores, 8192 MiB, 1 GPUs, GPUs of type Tesla-V100",
        "4 cores, 16384 MiB, 1 GPUs, GPUs of type Tesla-V100",
    ]
    spec = scale_plan_spec(Advice({WORKER: NodeGroupResource(2, v100)}), before)
    wanted = spec.replica_resource_specs["worker"].resource
    assert wanted.to_dict() == {"cpu": "8000m", "memory": "8192Mi", "gpu": "1", "gpuType": "Tesla-V100"}
    assert node_size_of(wanted) == v100
