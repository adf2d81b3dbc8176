"""Collective jobs of PyTorch with the model on a GPU, over NCCL. Agents and master are real processes, kills
are SIGKILLs. Losses are compared with those of a training on the CPU."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.collective_standalone import CollectiveStandalone
from tests.e2e.test_torch_replicas import SIZE, equal_at_the_end, kill
from tests.e2e.test_torch_replicas import WORKERS as SHARDED_WORKERS
from tests.e2e.test_torch_survivors import SECONDS, WORKERS, finished, members_die_in_every_phase
from tests.e2e.test_torch_trouble import newest_process
from tests.e2e.turns import Turns, command

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

EPOCHS = 30


def on_gpu(folder: Path, epochs: int, *options: str) -> list[str]:
    """The training program."""
    return command(folder, epochs, "--device", "cuda", *options)


def test_members_die_in_every_phase_of_a_step(tmp_path: Path) -> None:
    """As on CPUs: the survivors continue in their processes, each record is trained exactly once an epoch,
    and each loss is within 1e-9 of an undisturbed training's."""
    with CollectiveStandalone(tmp_path, WORKERS, on_gpu(tmp_path, EPOCHS, "--step-delay", "0.3")) as job:
        members_die_in_every_phase(job, EPOCHS)


def test_a_training_ends(tmp_path: Path) -> None:
    """The processes of a training that nobody disturbs end without an error, and none is started again."""
    with CollectiveStandalone(tmp_path, WORKERS, on_gpu(tmp_path, 2)) as job:
        finished(job, 2)
    logs = "".join(file.read_text() for file in tmp_path.glob("worker-*.log"))
    assert "terminate called" not in logs
    assert len(Turns(tmp_path).processes()) == WORKERS


def test_a_stopped_member_is_taken_out(tmp_path: Path) -> None:
    """A member that is stopped (SIGSTOP) is taken out by the job's time limit, and the others, whose
    operations on the GPU wait for it, abort them and go on."""
    with CollectiveStandalone(tmp_path, WORKERS, on_gpu(tmp_path, EPOCHS, "--step-delay", "0.3")) as job:
        job.wait(job.trains, SECONDS, "three members train")
        before, victim = job.version, newest_process(job, job.members()[-1])
        os.kill(victim, signal.SIGSTOP)
        job.wait(partial(job.goes_on, before), SECONDS, "the others go on")
        job.wait(partial(job.trains, before), SECONDS, "three members train again")
        finished(job, EPOCHS)


def test_a_group_goes_on_while_the_other_is_broken(tmp_path: Path) -> None:
    """Two replica groups of two processes each hold a sharded model. One process is killed: the other group
    continues, the broken one joins again, and both end with the same model."""
    program = on_gpu(tmp_path, EPOCHS, "--step-delay", "0.3", "--replicas")
    with CollectiveStandalone(tmp_path, SHARDED_WORKERS, program, unit=SIZE) as job:
        job.wait(job.trains, SECONDS, "two groups train")
        before, _going_on = kill(job, 3)
        job.wait(partial(job.goes_on, before), SECONDS, "the other group goes on")
        job.wait(partial(job.trains, before), SECONDS, "both groups train again")
        finished(job, EPOCHS)
        equal_at_the_end(job)
