"""What is done outside for the master's own plans: from the stored state only, again after a failure, never
in a hot loop.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import structlog

from edl_workflows.core.exceptions import ForbiddenError, UnavailableError
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.services.master.effects import UNREPORTED_SECONDS, Effects
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.shards.snapshot import JobPosition
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import observations
from edl_workflows.services.master.state.autoscale import autoscale_state
from edl_workflows.services.master.state.checkpoints import Checkpoints, SavedCheckpoint
from edl_workflows.services.master.state.job import JobState, RolloutRequest
from edl_workflows.services.master.state.job_result import TrainingResult
from edl_workflows.services.master.state.nodes.hang import Hangs
from edl_workflows.services.master.state.nodes.pod_requests import PodRequest, PodRequests
from edl_workflows.services.master.state.rollouts.rollout import start_rollout
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.stored_state import StepProgress
from edl_workflows.services.master.state.transitions import settle_job
from edl_workflows.services.master.status_pace import REPORT_SECONDS
from edl_workflows.services.master.stores.file import FileStore
from tests.unit.services.master.fake_backend import SPEC, Clock, FakeBackend, make_decided_master


def _asking(folder: Path) -> Master:
    """A master in a cluster that asks twice for pods, and whose own plan is decided on."""
    master = make_decided_master(folder)
    requests = tuple(PodRequest(number, create=(), remove=()) for number in (1, 2))
    master.state.pod_plans = PodRequests(last_number=2, open=requests)
    return master


def test_a_refused_plan_for_pods_keeps_no_other_effect_waiting(tmp_path: Path) -> None:
    """If a quota rejects pods, other plans, the job's status and its end are not delayed, and the status says
    why."""

    async def main() -> None:
        master, outside = _asking(tmp_path), FakeBackend()
        outside.refusing[1] = ForbiddenError("exceeded quota: scaleplans")
        effects = Effects(master, outside)
        master.stored = master.state.copy_record()
        await effects.once()
        assert outside.asked == [1, 2]
        assert outside.made == ["job-optimize-1"]
        (warning,) = outside.reported[0]["warnings"]
        assert "job-scaleplan-1" in warning
        assert "exceeded quota: scaleplans" in warning
        master.state.outcome = TrainingResult(False, "AllWorkersFailed", "no worker is left to go on")
        master.stored = master.state.copy_record()
        await effects.once()
        assert outside.reported[-1]["failure"]["reason"] == "AllWorkersFailed"
        assert effects.reported_end

    asyncio.run(main())


def test_each_effect_is_tried_again_by_itself(tmp_path: Path) -> None:
    """Each failed effect is retried with growing delays, independently of the others. Once it succeeds, the
    status no longer warns of it."""

    async def main() -> None:
        master, outside, clock = _asking(tmp_path), FakeBackend(), Clock()
        outside.refusing[2] = ForbiddenError("exceeded quota: scaleplans")
        effects = Effects(master, outside, clock)
        master.stored = master.state.copy_record()
        tries = []
        for second in range(60):
            before = len(outside.asked)
            await effects.once()
            tries += [second for number in outside.asked[before:] if number == 2]
            clock.now += 1
        assert tries == [0, 1, 3, 7, 15, 30, 45]
        assert outside.asked.count(1) == 1
        del outside.refusing[2]
        await effects.once()
        clock.now += REPORT_SECONDS
        await effects.once()
        assert outside.reported[-1]["warnings"] == []

    asyncio.run(main())


def test_a_plan_whose_status_is_refused_does_not_hide_the_end(tmp_path: Path) -> None:
    """If the status of a plan is rejected, the job's outcome is still reported."""

    async def main() -> None:
        master, outside = make_decided_master(tmp_path), FakeBackend()
        master.state.autoscaling = autoscale_state.AutoscalingState()
        master.state.plan = start_rollout("uid", "bigger", SPEC, 1.0)
        master.state.outcome = TrainingResult(True, "Completed")
        master.stored = master.state.copy_record()
        outside.refusing["bigger"] = ForbiddenError("no right to patch scaleplans/status")
        effects = Effects(master, outside)
        await effects.once()
        assert effects.reported_end

    asyncio.run(main())


def test_an_end_that_nobody_takes_is_said_by_the_exit_code(tmp_path: Path) -> None:
    """If the API server forbids the job's status for a minute, the master exits and its exit code tells the
    result. If the API server is unavailable, the master waits."""

    async def main() -> None:
        for error, ends in ((ForbiddenError("no right"), True), (UnavailableError("away"), False)):
            master, outside, clock = make_decided_master(tmp_path), FakeBackend(), Clock()
            master.state.outcome = TrainingResult(True, "Completed")
            master.stored = master.state.copy_record()
            outside.refusing["the job"] = error
            effects = Effects(master, outside, clock)
            await effects.once()
            assert not effects.reported_end
            clock.now += UNREPORTED_SECONDS
            await effects.once()
            assert effects.reported_end is ends

    asyncio.run(main())


def test_a_status_does_not_warn_of_its_own_refusal(tmp_path: Path) -> None:
    """Once the status can be written again, it has no warning about its own rejection; on a finished job the
    warning would stay for ever."""

    async def main() -> None:
        master, outside, clock = make_decided_master(tmp_path), FakeBackend(), Clock()
        master.state.outcome = TrainingResult(True, "Completed")
        master.stored = master.state.copy_record()
        outside.refusing["the job"] = ForbiddenError("no right")
        effects = Effects(master, outside, clock)
        await effects.once()
        del outside.refusing["the job"]
        clock.now += 1
        await effects.once()
        assert effects.reported_end
        assert outside.reported[-1]["warnings"] == []

    asyncio.run(main())


def test_what_the_status_of_a_job_that_is_over_does_not_show_is_logged(tmp_path: Path) -> None:
    """If the final status could not be written, the master's log names the last checkpoint. If it was
    written, nothing is logged."""

    async def main() -> None:
        for refused in (True, False):
            master, outside = make_decided_master(tmp_path / str(refused)), FakeBackend()
            master.state.steps = replace(master.state.steps, step=70)
            master.state.outcome = TrainingResult(True, "Completed")
            master.stored = master.state.copy_record()
            if refused:
                outside.refusing["the job"] = ForbiddenError("no right")
            effects = Effects(master, outside)
            with structlog.testing.capture_logs() as logs:
                await effects.once()
                logs.clear()
                effects.log_unreported_end()
            said = [(line["log_level"], line["step"]) for line in logs]
            assert said == ([("warning", 70)] if refused else [])

    asyncio.run(main())


def test_a_decision_is_carried_out_once_it_is_stored(tmp_path: Path) -> None:
    """A plan is created only after the decision is stored, and only once."""

    async def main() -> None:
        master, outside = make_decided_master(tmp_path), FakeBackend()
        effects = Effects(master, outside)
        await effects.once()
        assert outside.made == []
        master.stored = master.state.copy_record()
        for _ in range(3):
            await effects.once()
        assert outside.made == ["job-optimize-1"]

    asyncio.run(main())


def test_a_plan_that_can_not_be_made_now_is_made_later(tmp_path: Path) -> None:
    """While the API server is unavailable, the plan is kept and created later."""

    async def main() -> None:
        master, outside, clock = make_decided_master(tmp_path), FakeBackend(UnavailableError("away")), Clock()
        master.stored = master.state.copy_record()
        effects = Effects(master, outside, clock)
        for made in ([], [], ["job-optimize-1"]):
            await effects.once()
            assert outside.made == made
            clock.now += 0.6

    asyncio.run(main())


def test_a_refused_plan_is_given_up_with_its_reason(tmp_path: Path) -> None:
    """The reason is kept in the job's state, and the API server is not asked again for that plan."""

    async def main() -> None:
        master, outside = (
            make_decided_master(tmp_path),
            FakeBackend(ForbiddenError("no right to create scaleplans")),
        )
        master.stored = master.state.copy_record()
        effects = Effects(master, outside)
        await effects.once()
        assert master.state.autoscaling.open is None
        assert "no right to create scaleplans" in master.state.autoscaling.problem
        master.stored = master.state.copy_record()
        await effects.once()
        assert outside.made == []

    asyncio.run(main())


def test_what_is_shown_is_reported_when_it_changes(tmp_path: Path) -> None:
    """A value is reported once after each change."""

    async def main() -> None:
        master, outside, clock = make_decided_master(tmp_path), FakeBackend(), Clock()
        effects = Effects(master, outside, clock)
        await effects.once()
        shown = AutoscalingStatus(stage="job_stage_running", notes=["no parameter server is hot"])
        master.state.autoscaling = autoscale_state.AutoscalingState(shown=shown)
        clock.now += REPORT_SECONDS
        await effects.once()
        clock.now += REPORT_SECONDS
        await effects.once()
        told = [status["autoscaling"] for status in outside.reported if "autoscaling" in status]
        assert told[-1]["notes"] == ["no parameter server is hot"]
        assert len(outside.reported) == 2

    asyncio.run(main())


def test_the_last_status_is_written_though_one_was_a_moment_ago(tmp_path: Path) -> None:
    """A master that is told to stop writes its status once more, even shortly after the last write. If the
    API server is unavailable, it stops all the same."""

    async def main() -> None:
        master, outside = make_decided_master(tmp_path), FakeBackend()
        effects = Effects(master, outside)
        await effects.once()
        master.state.checkpoints = Checkpoints(
            saved=(SavedCheckpoint("checkpoint-1", "", "/c/1", 7, 1.0, JobPosition()),)
        )
        await effects.once()
        assert "checkpoint" not in outside.reported[-1], "it is too soon"
        await effects.last_report()
        assert outside.reported[-1]["checkpoint"]["step"] == 7
        master.state.checkpoints = Checkpoints()
        master.state.steps = StepProgress(step=9)
        outside.away = True
        await effects.last_report()

    asyncio.run(main())


def test_restarts_and_hangs_are_logged_once(tmp_path: Path) -> None:
    """Each restart and each hang is logged once, after it is stored, with its cause. A new master does not
    log it again."""

    async def main() -> None:
        master = make_decided_master(tmp_path)
        effects = Effects(master, FakeBackend())
        master.state.restarted("ps-1", "Killed", "its pod was deleted", 1.0)
        master.state.restarted("worker-1", "FatalError", "no data", 1.0, replaced=False)
        master.state.hangs = Hangs(number=1, since=1.0)
        master.stored = master.state.copy_record()
        with structlog.testing.capture_logs() as logs:
            await effects.once()
            await effects.once()
            await Effects(master, FakeBackend()).once()
        said = [(line["event"], line.get("cause", line.get("stacks"))) for line in logs]
        assert said.count(("restart", "Killed")) == 1
        assert said.count(("a node failed and is not replaced", "FatalError")) == 1
        assert said.count(("training stands still", "hang-1")) == 1

    asyncio.run(main())


def test_a_plan_behind_another_says_what_it_waits_for(tmp_path: Path) -> None:
    """Two plans wait for a job whose worker never registers. Both say what they wait for, and the status of
    the second is written once."""

    async def main() -> None:
        master = Master(
            JobState(JobSettings("job", "default", parse_nodes("worker=1"))), FileStore(tmp_path / "state")
        )
        outside = FakeBackend()
        effects = Effects(master, outside)
        observations.observe_plans(
            master.state, [RolloutRequest(f"uid-{name}", name, SPEC) for name in ("first", "second")]
        )
        settle_job(master.state, 100.0)
        master.stored = master.state.copy_record()
        for _ in range(3):
            await effects.once()
            settle_job(master.state, 101.0)
            master.stored = master.state.copy_record()
        told = {
            name: (status["phase"], status["reason"], status["message"]) for name, status in outside.plans
        }
        assert told["first"][:2] == ("Pending", "Waiting")
        assert "worker-0 did not register" in told["first"][2]
        assert told["second"] == ("Pending", "Waiting", "waits for ScalePlan first, which goes before")
        assert [name for name, _ in outside.plans].count("second") == 1

    asyncio.run(main())
