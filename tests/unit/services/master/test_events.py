"""What is told as an Event: once, from the stored state only, and again after a failure."""

import asyncio
from dataclasses import replace
from pathlib import Path

from edl_workflows.core.exceptions import ForbiddenError, UnavailableError
from edl_workflows.core.jobs.elastic_job.separate_copies import NO_GROUP
from edl_workflows.core.protocol.cluster import OWN_CHECKPOINT, CheckpointRef
from edl_workflows.services.master.effects import Effects
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.checkpoints import Checkpoints, FailedSaves
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.hang import Hangs
from edl_workflows.services.master.state.nodes.hang_report import HangReport, NodeStacks
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.versions.cluster_versions import ClusterVersion, report_trained
from edl_workflows.services.master.stores.file import FileStore
from tests.unit.services.master.fake_backend import Clock, FakeBackend, make_decided_master


def test_a_member_that_was_taken_out_is_an_event(tmp_path: Path) -> None:
    """Each removed member gives one Event with the reason. A new master does not repeat it, and nodes that
    ended otherwise give none."""

    async def main() -> None:
        master, outside = make_decided_master(tmp_path), FakeBackend()
        effects = Effects(master, outside)
        for number, cause in enumerate(("Killed", "AbsentFromStep", "AbsentFromStep")):
            master.state.restarted(f"worker-{number}", cause, "silent for 10 s", 5.0)
        master.stored = master.state.copy_record()
        await effects.once()
        await effects.once()
        await Effects(master, outside).once()
        expected = [f"worker-{number} was taken out: silent for 10 s" for number in (1, 2)]
        assert outside.warned == [("MemberTakenOut", message) for message in expected]

    asyncio.run(main())


def test_a_hang_is_an_event_with_the_stacks(tmp_path: Path) -> None:
    """The Event is written once, when the stacks have arrived."""

    async def main() -> None:
        master, outside = make_decided_master(tmp_path), FakeBackend()
        effects = Effects(master, outside)
        since = master.now()
        master.state.hangs = Hangs(number=1, since=since)
        master.stored = master.state.copy_record()
        await effects.once()
        assert outside.warned == []
        stack = 'Current thread 0x1 (most recent call first):\n  File "/app/data.py", line 12 in load\n'
        report = HangReport("hang-1", since, {"worker-0": NodeStacks(stack)})
        master.state.volatile.hang_report = report
        await effects.once()
        await effects.once()
        ((reason, message),) = outside.warned
        assert reason == "TrainingHangs"
        assert message.endswith("worker-0 in load (data.py:12)")

    asyncio.run(main())


def test_a_failed_save_is_an_event_once(tmp_path: Path) -> None:
    """The Event is created as soon as the failure is stored, and again only after a save has succeeded in
    between; a new master does not repeat it. It is given up if the account may not create Events, and
    retried if the API server is unavailable."""

    async def main() -> None:
        master, outside, clock = make_decided_master(tmp_path), FakeBackend(), Clock()
        effects = Effects(master, outside, clock)

        async def look(failing: FailedSaves) -> None:
            master.state.checkpoints = Checkpoints(failing=failing)
            master.stored = master.state.copy_record()
            clock.now += 60.0
            await effects.once()

        first = FailedSaves(total=1, row=1, since=5.0, error="No space left on device")
        outside.refusing["events"] = UnavailableError("away")
        await look(first)
        assert outside.warned == []
        del outside.refusing["events"]
        await look(first)
        await look(first.another("again", 6.0))
        ((reason, message),) = outside.warned
        assert reason == "CheckpointFailed"
        assert "No space left on device" in message
        assert master.state.volatile.refused == {}
        await look(FailedSaves(total=2))
        effects = Effects(master, outside, clock)
        await look(FailedSaves(total=3, row=1, since=9.0, error="full again"))
        effects = Effects(master, outside, clock)
        await look(FailedSaves(total=3, row=1, since=9.0, error="full again"))
        assert len(outside.warned) == 2
        outside.refusing["events"] = ForbiddenError("no right")
        await look(FailedSaves(total=4, row=1, since=12.0, error="full"))
        assert master.state.volatile.refused == {}

    asyncio.run(main())


def test_the_step_at_which_training_continues_is_an_event_once(tmp_path: Path) -> None:
    """Each cluster version that starts from a checkpoint has an Event with the step, which a new master does
    not repeat. Without a checkpoint, or with one of the script's own, there is no step to tell. A version
    that never trains, because its checkpoint is damaged, has no Event."""

    async def main() -> None:
        state = JobState(JobSettings("job", "default", parse_nodes("worker=1")))
        master, outside, clock = Master(state, FileStore(tmp_path / "state")), FakeBackend(), Clock()
        effects = Effects(master, outside, clock)

        async def start(number: int, restore: CheckpointRef | None, *, trains: bool = True) -> list[str]:
            version = ClusterVersion(number, (0,), restore=restore)
            state.versions = replace(state.versions, active=version)
            if trains:
                state.versions = report_trained(state.versions, number)
            master.stored = state.copy_record()
            clock.now += 60.0
            await effects.once()
            return [message for _, message in outside.announced]

        first, second = (CheckpointRef(uri=f"file:///checkpoint-{step}", step=step) for step in (8, 16))
        assert await start(1, None) == []
        expected = ["training continues at step 8, in cluster version 2, from file:///checkpoint-8"]
        assert await start(2, first) == expected
        effects = Effects(master, outside, clock)
        assert await start(2, first) == expected
        assert await start(3, CheckpointRef(uri=OWN_CHECKPOINT, step=2)) == expected
        assert len(await start(4, second)) == 2
        assert len(await start(5, second, trains=False)) == 2, "it may be damaged"
        assert len(await start(6, first)) == 3
        assert {reason for reason, _ in outside.announced} == {"TrainingContinues"}

    asyncio.run(main())


def test_copies_of_the_model_are_an_event_once(tmp_path: Path) -> None:
    """The Event is created when two workers train copies, and stays when the warning goes with the second
    worker. It is retried while the API server is unavailable, and not repeated when the warning comes back,
    nor by a new master, whatever the number of workers is then."""

    async def main() -> None:
        state = JobState(JobSettings("job", "default", parse_nodes("worker=1")))
        master, outside, clock = Master(state, FileStore(tmp_path / "state")), FakeBackend(), Clock()
        effects = Effects(master, outside, clock)

        async def look(workers: int, *copies: str) -> list[str]:
            state.counts, state.own_copies = {"worker": workers}, copies
            master.stored = state.copy_record()
            clock.now += 60.0
            await effects.once()
            return [message for _, message in outside.warned]

        assert await look(2, "worker-0") == []
        outside.refusing["events"] = UnavailableError("away")
        assert await look(2, "worker-0", "worker-1") == []
        del outside.refusing["events"]
        assert await look(2, "worker-0", "worker-1") == [NO_GROUP]
        for workers in (1, 2, 1):
            await look(workers, "worker-0", "worker-1")
        effects = Effects(master, outside, clock)
        await look(3, "worker-0", "worker-1")
        assert outside.warned == [("SeparateCopies", NO_GROUP)]

    asyncio.run(main())


def test_parameter_servers_and_one_worker_give_no_event_of_copies(tmp_path: Path) -> None:
    """There is an Event only where there is a warning."""

    async def main() -> None:
        for nodes in ("ps=1,worker=2", "worker=1"):
            state = JobState(JobSettings("job", "default", parse_nodes(nodes)))
            master, outside = Master(state, FileStore(tmp_path / nodes)), FakeBackend()
            effects = Effects(master, outside)
            state.own_copies = ("worker-0", "worker-1")
            master.stored = state.copy_record()
            await effects.once()
            assert outside.warned == []

    asyncio.run(main())
