"""Checkpoints in two stages end to end: a real agent, a small training program, and a master that speaks real
HTTP."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import ExitReport, ProcessReport, ProcessState
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd, StepReport
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import MANIFEST, Manifest
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.checkpoints.tensors import load
from tests.unit.training.fake_master import FakeMaster, cluster, eventually, world

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.Popen[str]]
AGENT = (sys.executable, "-m", "edl_workflows", "agent", "run")
PROGRAM = """
import os, pathlib, sys, time
import numpy as np
from edl_workflows.training import connect, open_store
from edl_workflows.training.checkpoints.tensors import State
from edl_workflows.training.checkpoints.two_stages import TwoStages

folder = pathlib.Path(sys.argv[1])
job = connect()
store = open_store(sys.argv[6])
model, step = np.zeros(int(sys.argv[5])), 0
job.wait_until_active()
if (checkpoint := job.start_from(store)) is not None:
    with job.state(checkpoint, store) as state:
        model, step = state.tensors["model"].copy(), checkpoint.step
    (folder / "restored").write_text(f"{step} {model[0]} {job.holds(checkpoint)}")
job.save_in_two_stages(TwoStages(
    lambda: State.of(step, {"model": model}), store,
    every_seconds=float(sys.argv[2]) or None, memory_seconds=float(sys.argv[3]) or None,
))
(folder / "pid").write_text(str(os.getpid()))
while step < int(sys.argv[4]):
    job.between_steps()
    step += 1
    model += 1
    job.report_step(step)
    time.sleep(0.002)
if job.checkpoint(patience=60, stored=True) is None:
    sys.exit("not saved")
job.close()
"""
"""Each step adds 1 to the model, so that any state shows its step. Arguments: folder, seconds between
checkpoints, seconds between copies, steps, the model's size, where checkpoints go."""


@pytest.fixture
def start(pod_env: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts agents with the program; killed at the end."""
    agents: list[subprocess.Popen[str]] = []
    (tmp_path / "memory").mkdir()

    def run(
        *options: str,
        every: float = 0,
        copies: float = 0,
        steps: int = 10**9,
        size: int = 1000,
        scheme: str = "",
    ) -> subprocess.Popen[str]:
        numbers = map(str, (every, copies, steps, size))
        arguments = [str(tmp_path), *numbers, f"{scheme}{tmp_path / 'checkpoints'}"]
        agent = subprocess.Popen(
            [*AGENT, *options, "--", sys.executable, "-u", "-c", PROGRAM, *arguments],
            env={
                **os.environ,
                **pod_env,
                names.ENV_JOB_UID: "uid",
                names.ENV_SHARED_MEMORY: str(tmp_path / "memory"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        agents.append(agent)
        return agent

    yield run
    for agent in agents:
        agent.kill()
        agent.communicate(timeout=240)


def ends(master: FakeMaster) -> list[CheckpointEnd]:
    """Checkpoints that are complete, as the master heard."""
    found: list[CheckpointEnd] = master.got(CheckpointEnd, error="")
    return found


def steps_of(end: CheckpointEnd) -> set[float]:
    """The steps that the saved model was made of: one if it is of one moment."""
    return set(load(file_of(end, STATE_FILE)).tensors["model"].tolist())


def file_of(end: CheckpointEnd, name: str) -> Path:
    """A file of a checkpoint."""
    return Path(end.uri.removeprefix("local://")) / name


def pid(folder: Path) -> int:
    """Of the training process."""
    file = folder / "pid"
    return int(eventually(lambda: file.exists() and file.read_text(), what="the program trains"))


@pytest.mark.parametrize("scheme", ["", "local://"], ids=["a folder", "a URI"])
def test_periodic_checkpoints_are_persisted_while_training_goes_on(
    scheme: str, master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """Each checkpoint holds the model and the data position of its step. When the program ends, its last
    checkpoint is on storage."""
    master.position = {"datasets": {"train": {"epoch": 3}}}
    master.say(active=cluster(1))
    agent = start(every=0.2, steps=400, scheme=scheme)
    output, _ = agent.communicate(timeout=240)
    assert agent.returncode == 0, output

    assert len(ends(master)) >= 3
    for end in ends(master)[-3:]:
        assert steps_of(end) == {end.step}
    last = ends(master)[-1]
    assert last.step == 400
    newest = open_store(f"{scheme}{tmp_path / 'checkpoints'}").newest()
    assert newest == CheckpointRef(uri=last.uri, step=400)
    assert Manifest.model_validate_json(file_of(last, MANIFEST).read_bytes()).position == master.position
    assert not list((tmp_path / "memory").iterdir())


def test_killed_process_loses_nothing_that_it_had_copied(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """Copies stay in memory while all processes run. If the process is killed, the agent persists its newest
    copy and reports it before it reports the death."""
    master.say(active=cluster(1))
    agent = start(copies=0.05)
    eventually(lambda: len(master.got(CheckpointBegin)) >= 4, what="four copies")
    assert not ends(master)
    os.kill(pid(tmp_path), signal.SIGKILL)
    agent.communicate(timeout=240)

    (end,) = ends(master)
    assert steps_of(end) == {end.step}
    kinds = [type(message) for message in master.received if isinstance(message, CheckpointEnd | ExitReport)]
    assert kinds == [CheckpointEnd, ExitReport]


def test_killed_agent_is_followed_by_one_that_persists(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """An agent that was killed with its process and restarted in the same pod finds the copy in memory and
    persists it."""
    master.say(active=cluster(1))
    agent = start(copies=0.05)
    eventually(lambda: len(master.got(CheckpointBegin)) >= 3, what="three copies")
    agent.kill()
    agent.wait(240)
    assert not ends(master)
    start(copies=1000.0)
    (end,) = eventually(lambda: ends(master), what="the copy is persisted")
    assert steps_of(end) == {end.step}


def test_agent_killed_while_it_persists_leaves_no_half(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """If the agent is killed while it persists, each checkpoint under a valid name is complete. A restarted
    agent persists the copy, which is still in memory."""
    checkpoints = tmp_path / "checkpoints"
    master.say(active=cluster(1))
    agent = start(every=0.1, size=4 * 2**20)
    eventually(lambda: list(checkpoints.glob(".unfinished-*")), what="a checkpoint is being written")
    agent.kill()
    agent.wait(240)
    heard = len(ends(master))
    assert all(CheckpointStore(checkpoints).verify(ref(path)) for path in checkpoints.glob("checkpoint-*"))

    start(size=4 * 2**20)
    end = eventually(lambda: ends(master)[heard:], what="the copy is persisted")[-1]
    assert steps_of(end) == {end.step}


def ref(path: Path) -> CheckpointRef:
    """A checkpoint of any step."""
    return CheckpointRef(uri=str(path), step=0)


def test_sigterm_copies_and_the_agent_persists_in_its_grace(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """On SIGTERM, the process ends as soon as it has copied its state. The agent ends when the copy is on
    storage and reported."""
    master.say(active=cluster(1))
    agent = start()
    pid(tmp_path)
    eventually(lambda: master.got(StepReport))
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=240)

    assert agent.returncode == 143
    (end,) = ends(master)
    assert steps_of(end) == {end.step}


def test_broken_world_is_followed_when_its_copy_is_safe(
    master: FakeMaster, start: Start, tmp_path: Path
) -> None:
    """After the loss of a member, the agent ends its process and persists the process's copy. Only then does
    the next process report READY, so that the next group starts from this checkpoint."""
    master.say(active=world(1, (0, 1)))
    start(copies=0.05)
    eventually(lambda: len(master.got(CheckpointBegin)) >= 3, what="three copies")
    master.say(lost=True, next=world(2, (0,)))
    eventually(lambda: master.got(ProcessReport, version=2, state=ProcessState.READY))

    end = ends(master)[-1]
    assert steps_of(end) == {end.step}
    ready = master.got(ProcessReport, version=2)[0]
    assert master.received.index(end) < master.received.index(ready)


def test_switch_restores_from_memory(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """On a change of versions, the old process drains and saves at the master's request. The new process on
    that node restores this state from shared memory."""
    master.say(active=cluster(1))
    start()
    eventually(lambda: master.got(StepReport), what="version 1 trains")
    master.say(next=cluster(2), drain=True)
    eventually(lambda: master.got(ProcessReport, version=1, state=ProcessState.DRAINED))
    eventually(lambda: master.got(ProcessReport, version=2, state=ProcessState.READY))
    master.say(save="switch")
    (end,) = eventually(lambda: ends(master), what="the switch checkpoint")
    assert master.got(CheckpointBegin, request="switch")
    restore = CheckpointRef(uri=end.uri, step=end.step)
    master.say(active=cluster(2, restore=restore), next=None, drain=False, save="")

    restored = tmp_path / "restored"
    eventually(lambda: restored.exists() and restored.read_text())
    assert restored.read_text() == f"{end.step} {float(end.step)} True"
    eventually(lambda: master.got(StepReport, version=2))


def test_full_storage_is_told_and_training_goes_on(master: FakeMaster, start: Start, tmp_path: Path) -> None:
    """A full storage does not end training: the end of each checkpoint has the reason. If the final
    checkpoint can't be stored, the program fails."""
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    master.say(active=cluster(1))
    agent = start(every=0.2, steps=300)
    output, _ = agent.communicate(timeout=240)

    assert agent.returncode == 1, output
    failed: list[Any] = master.got(CheckpointEnd)
    assert len(failed) >= 2
    assert all("can't be written" in end.error for end in failed)


def test_the_last_checkpoint_is_told_before_the_end(master: FakeMaster, start: Start) -> None:
    """The agent reports the last checkpoint before the exit, however long the master is unavailable;
    otherwise a job that ended would not know what it has trained."""
    master.say(active=cluster(1))
    master.deaf_to_ends = True
    agent = start("--checkpoint-grace", "0.1", steps=5)
    eventually(lambda: master.ends_asked >= 4, what="the checkpoint is told in vain")
    assert not master.got(ExitReport)
    master.deaf_to_ends = False
    assert agent.wait(240) == 0
    kinds = [type(message) for message in master.received]
    assert kinds.index(CheckpointEnd) < kinds.index(ExitReport)
