"""Collective jobs of PyTorch whose members die: agents and master are real processes, kills are SIGKILLs."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.collective_standalone import CollectiveStandalone
from tests.e2e.turns import Turns, command, undisturbed

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

EPOCHS, WORKERS = 80, 3
SECONDS = 240.0
PHASES = ("forward", "backward", "reduction", "formation", "state")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CollectiveStandalone]:
    """A job with three members that train slowly."""
    program = command(tmp_path, EPOCHS, "--step-delay", "0.5")
    with CollectiveStandalone(tmp_path, WORKERS, program) as running:
        yield running


def finished(
    job: CollectiveStandalone, epochs: int = EPOCHS, expected: dict[int, float] | None = None
) -> None:
    """Train to the end: each record was trained exactly once an epoch, with the losses of an undisturbed
    training."""
    (job.folder / "hurry").touch()
    job.wait(lambda: job.master.poll() is not None, SECONDS, "the job ends")
    assert job.master.returncode == 0
    turns = Turns(job.folder)
    assert turns.seen()
    assert all(set(counts) == {epochs} for counts in turns.seen())
    losses, expected = turns.losses(), expected or undisturbed(job.folder, epochs)
    assert losses.keys() == expected.keys()
    assert max(abs(losses[step] - expected[step]) for step in expected) < 1e-9


def test_members_die_in_every_phase_of_a_step(job: CollectiveStandalone) -> None:
    """Members die in the forward pass, in the backward pass, during operations, while a group forms after
    another loss, and while a new member gets the state. The process that is never killed continues each
    time, and only killed processes end."""
    members_die_in_every_phase(job, EPOCHS)


def members_die_in_every_phase(job: CollectiveStandalone, epochs: int) -> None:
    """The same for a job of any epochs, and on any device."""
    turns = Turns(job.folder)
    job.wait(job.trains, SECONDS, "three members train")
    first = set(turns.processes())
    for phase in PHASES:
        before = job.version
        (job.folder / f"die-{phase}").touch()
        if phase in ("formation", "state"):  # needs a change of the members first
            (job.folder / "die-forward").touch()
        died = partial(job.folder.glob, f"died-{phase}-*")
        job.wait(lambda died=died: list(died()), SECONDS, f"a death in {phase}")  # type: ignore[misc]
        again = partial(job.trains, before)
        job.wait(again, SECONDS, f"three members train after a death in {phase}")
    killed = {int(file.name.rpartition("-")[2]) for file in job.folder.glob("died-*")}
    ended = {process for process in turns.processes() if not alive(process)}
    finished(job, epochs)

    assert len(first) == WORKERS
    assert ended == killed
    assert [turns.of(process)[0][4] for process in turns.processes()].count(1) == WORKERS, "nobody began anew"


def test_all_members_die_after_they_have_copied_their_parts(tmp_path: Path) -> None:
    """All training processes are killed at once before anything was stored. The agents persist the parts that
    the members had copied to memory as one checkpoint. Training continues from there with new processes,
    and each record is trained exactly once an epoch."""
    program = command(tmp_path, EPOCHS, "--step-delay", "0.5", "--memory-seconds", "0.2")
    with CollectiveStandalone(tmp_path, WORKERS, program) as job:
        job.wait(job.trains, SECONDS, "three members train")
        started = job.step()
        job.wait(lambda: job.step() > started + 8, SECONDS, "copies were made")
        assert not job.checkpoint()
        turns, before = Turns(tmp_path), job.version
        killed = turns.processes()
        for process in killed:
            os.kill(process, signal.SIGKILL)
        job.wait(job.checkpoint, SECONDS, "the parts are persisted")
        saved, step = Path(job.checkpoint()["uri"]), int(job.checkpoint()["step"])
        files = sorted(file.name for file in saved.glob("state*"))
        job.wait(lambda: job.goes_on(before), SECONDS, "training goes on")
        finished(job)

    assert files == [f"state-{part:05d}-of-00003.safetensors" for part in (1, 2, 3)]
    restarted = [turns.of(process)[0][4] for process in turns.processes() if process not in killed]
    assert min(restarted) == step + 1


@pytest.mark.long
def test_members_with_data_workers_die(tmp_path: Path) -> None:
    """Data workers read records ahead when members die in the backward pass and in the reduction. Each record
    is trained exactly once an epoch, also by new members."""
    program = command(tmp_path, EPOCHS, "--step-delay", "0.5", "--data-workers", "2")
    with CollectiveStandalone(tmp_path, WORKERS, program) as job:
        job.wait(job.trains, SECONDS, "three members train")
        for phase in ("backward", "reduction"):
            before = job.version
            (tmp_path / f"die-{phase}").touch()
            again = partial(job.trains, before)
            job.wait(again, SECONDS, f"three members train after a death in {phase}")
        finished(job)


def alive(process: int) -> bool:
    """Whether a process runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
