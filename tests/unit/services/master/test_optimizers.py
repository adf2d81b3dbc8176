"""Who is asked: Brain while it answers, the local optimizer while it does not."""

import asyncio
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import EdlError, ForbiddenError, UnavailableError
from edl_workflows.core.jobs.elastic_job.model import OptimizeMode
from edl_workflows.core.jobs.scale_plan import model
from edl_workflows.core.protocol.brain import JobEnd
from edl_workflows.core.scaling.dlrover.ps_stages import OptimizerQuestion, OptimizerStage, StageProgress
from edl_workflows.core.scaling.dlrover.resources import (
    Advice,
    NodeGroupResource,
    NodeSize,
    OptimizerJob,
    OptimizerRole,
    ResourceLimits,
    empty_advice,
    follow_advice,
    role_advice,
)
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample
from edl_workflows.services.master import optimizers as module
from edl_workflows.services.master.autoscaler import JobAutoscaler
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.optimizers import Optimizers
from edl_workflows.services.master.state.autoscale.autoscale_steps import OptimizerRequest
from edl_workflows.services.master.state.job_result import TrainingResult
from edl_workflows.services.master.state.settings import AutoscalingSettings, JobSettings
from edl_workflows.services.master.state.settings import RoleSettings as MasterRole
from edl_workflows.services.master.stores.file import FileStore
from tests.unit.services.master.simulated_job import SimulatedJob

SIZE = NodeSize(4.0, 4_096.0)
ROLES = {"ps": OptimizerRole(1, SIZE), "worker": OptimizerRole(1, SIZE)}
JOB = follow_advice(OptimizerJob("job", ROLES, ResourceLimits(40.0, 65_536.0)), empty_advice())
PROGRESS = StageProgress(OptimizerStage.RUNNING)


def _asked(samples: int = 5, *, brain: bool = True) -> OptimizerRequest:
    used = tuple(NodeSample(node.name, node.role, 1.2, 1000.0) for node in JOB.nodes)
    measured = tuple(JobSample(15.0 * n, n, 2.0, used) for n in range(1, samples + 1))
    return OptimizerRequest(PROGRESS, replace(JOB, samples=measured), brain)


@dataclass
class FakeBrain:
    """Answers with `advice`, or raises `error`."""

    advice: Advice = field(default_factory=lambda: role_advice("worker", "Brain says so", 2))
    error: EdlError | None = None
    reported: list[float] = field(default_factory=list)
    ill: list[str] = field(default_factory=list)
    ends: list[JobEnd] = field(default_factory=list)
    hangs: threading.Event | None = None

    def report(self, job: OptimizerJob, samples: tuple[JobSample, ...], end: JobEnd | None = None) -> None:
        self._fail()
        self.ends += [end] if end is not None else []
        self.reported += [sample.time for sample in samples]
        self.ill += [node.name for node in job.nodes if node.oom]

    def optimize(self, question: OptimizerQuestion, job: OptimizerJob) -> Advice:
        self._fail()
        assert question.stage is OptimizerStage.RUNNING
        return self.advice

    def _fail(self) -> None:
        if self.hangs is not None:
            self.hangs.wait(20)
        if self.error is not None:
            raise self.error


def test_brain_is_asked_and_the_local_optimizer_while_it_is_away() -> None:
    """Brain advises. While it does not answer, the local optimizer advises and its notes say why; the next
    look asks Brain again."""

    async def main() -> None:
        brain = FakeBrain()
        both = Optimizers(brain)
        first = await both.ask(_asked(), 100.0)
        assert (first.optimizer, first.advice) == ("brain", brain.advice)
        brain.error = UnavailableError("connection refused")
        second = await both.ask(_asked(), 130.0)
        assert second.optimizer == "local"
        assert second.advice.node_group_resources["worker"].count == 3
        assert "Brain does not answer: connection refused" in second.advice.notes
        brain.error = None
        assert (await both.ask(_asked(), 160.0)).optimizer == "brain"

    asyncio.run(main())


@pytest.mark.parametrize("brain", [None, ForbiddenError("the token is not this tenant's")])
def test_a_job_without_a_usable_brain_is_advised_locally(brain: EdlError | None) -> None:
    """In mode cluster, the notes of the local advice say why Brain was not used. In mode single-job, Brain is
    not asked."""
    answer = asyncio.run(Optimizers(brain).ask(_asked(), 100.0))
    assert answer.optimizer == "local"
    assert str(brain or "spec.brainService names no Brain") in answer.advice.notes[0]
    alone = asyncio.run(Optimizers(FakeBrain()).ask(_asked(brain=False), 100.0))
    assert alone.optimizer == "local"


def test_a_brain_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local optimizer answers after the time-out, and at once while the hanging call lasts; then Brain is
    asked again.
    """
    monkeypatch.setattr(module, "CALL_SECONDS", 0.2)

    async def main() -> None:
        brain = FakeBrain(hangs=threading.Event())
        both = Optimizers(brain)
        assert brain.hangs is not None
        for _ in range(3):
            assert (await both.ask(_asked(), 100.0)).optimizer == "local"
        brain.hangs.set()
        answers = [await both.ask(_asked(), 100.0)]
        while answers[-1].optimizer == "local" and len(answers) < 1000:
            await asyncio.to_thread(brain.hangs.wait, 0.01)
            answers.append(await both.ask(_asked(), 100.0))
        assert answers[-1].optimizer == "brain"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("wild", "count"),
    [
        (role_advice("worker", "more!", 10**9), 9),
        (role_advice("worker", "none", -5), None),
        (Advice({"ps": NodeGroupResource(0)}), None),
        (Advice(node_resources={"job-edljob-ps-0": NodeSize(float("nan"), float("inf"))}), None),
        (Advice(node_resources={"nobody": NodeSize(4.0)}), None),
    ],
)
def test_a_wild_plan_is_held_within_the_jobs_bounds(wild: Advice, count: int | None) -> None:
    """Advice of Brain's never exceeds the job's own bounds. Of advice that is impossible, nothing is left."""
    answer = asyncio.run(Optimizers(FakeBrain(wild)).ask(_asked(), 100.0))
    assert answer.optimizer == "brain"
    advice = answer.advice
    wanted = {"worker": NodeGroupResource(count)} if count else {}
    assert advice.node_group_resources == wanted
    assert not advice.node_resources
    after = follow_advice(JOB, advice)
    assert len(after.of("ps")) == 1
    assert sum(node.resource.cpu or 0.0 for node in after.nodes) <= 40.0


def test_what_was_measured_is_reported_until_brain_has_it() -> None:
    """Each sample reaches Brain once and in order, even if Brain was unavailable in between."""

    async def main() -> None:
        brain = FakeBrain()
        both = Optimizers(brain)
        await both.report(_asked(2).job)
        brain.error = UnavailableError("away")
        await both.report(_asked(3).job)
        brain.error = None
        await both.report(_asked(4).job)
        await both.report(_asked(4).job)
        assert brain.reported == [15.0, 30.0, 45.0, 60.0]

    asyncio.run(main())


def test_brain_is_told_of_nodes_that_ran_out_of_memory() -> None:
    """Each node that ran out of memory is reported once, even if it no longer exists, and again if Brain did
    not answer."""
    size = model.NodeResource(memory="1Gi")
    roles = {"ps": MasterRole(1, resource=size), "worker": MasterRole(2, resource=size)}
    optimizing = AutoscalingSettings(OptimizeMode.CLUSTER)
    job = SimulatedJob(JobSettings("job", "default", roles, optimizing=optimizing), 10_000)
    job.calm(5)
    job.kill(("worker", 1), 247)
    job.calm(5)
    brain = FakeBrain(error=UnavailableError("away"))

    async def main() -> None:
        autoscaler = JobAutoscaler(
            Master(job.state, FileStore(Path("unused")), lambda: job.now), Optimizers(brain)
        )
        for error in (brain.error, None, None):
            brain.error = error
            await autoscaler.once()

    asyncio.run(main())
    assert brain.ill == ["job-edljob-worker-1"]


ENDS = {
    "succeeded": (OptimizeMode.CLUSTER, TrainingResult(True, "JobSucceeded"), None, [(True, "JobSucceeded")]),
    "failed, in words of a program": (
        OptimizeMode.CLUSTER,
        TrainingResult(False, "exit\n" + "x" * 2_000),
        None,
        [(False, "exit " + "x" * 1_019)],
    ),
    "Brain is away": (OptimizeMode.CLUSTER, TrainingResult(True, ""), UnavailableError("away"), []),
    "not over": (OptimizeMode.CLUSTER, None, None, []),
    "not Brain's": (OptimizeMode.SINGLE_JOB, TrainingResult(True, ""), None, []),
}


@pytest.mark.parametrize(("mode", "outcome", "error", "told"), ENDS.values(), ids=ENDS)
def test_brain_is_told_how_a_job_ended(
    mode: OptimizeMode, outcome: TrainingResult | None, error: EdlError | None, told: list[tuple[bool, str]]
) -> None:
    """In mode cluster, Brain is told once whether the job has succeeded, with a reason of limited length. If
    Brain is unavailable, the master ends all the same."""
    roles = {"ps": MasterRole(1), "worker": MasterRole(2)}
    job = SimulatedJob(JobSettings("job", "default", roles, optimizing=AutoscalingSettings(mode)), 10_000)
    job.calm(5)
    job.state.outcome = outcome
    brain = FakeBrain(error=error)
    master = Master(job.state, FileStore(Path("unused")), lambda: job.now)
    asyncio.run(JobAutoscaler(master, Optimizers(brain)).end())
    assert [(end.completed, end.reason) for end in brain.ends] == told
