"""Which programs tell the master that each worker trains a copy of the model of its own."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from edl_workflows.core.protocol.cluster import CheckpointRef, TrainingCluster
from edl_workflows.core.protocol.nodes import ProcessReport, ProcessState
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import Connect, FakeMaster, cluster, eventually, world

pytestmark = pytest.mark.slow

SAVED = CheckpointRef(uri="/ckpt/7", step=7)
GROUP_LIBRARIES = ("jax", "tensorflow", "torch.distributed", "horovod", "mpi4py", "ray")


@pytest.fixture(autouse=True)
def _numpy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program has loaded no library that forms groups, whatever other tests have loaded."""
    for name in ("torch", *GROUP_LIBRARIES):
        monkeypatch.delitem(sys.modules, name, raising=False)


def told(master: FakeMaster) -> list[bool]:
    """What the reports of the first step and those after it say."""
    return [report.own_copy for report in master.got(ProcessReport, state=ProcessState.TRAINING)]


def train(job: Job, steps: int = 2, **params: Any) -> None:
    """Take so many batches, and report each step."""
    batches = job.batches("train", size=100, shard_size=20, batch_size=5, **params)
    for step in range(1, steps + 1):
        next(batches)
        job.report_step(step)


def program(
    master: FakeMaster, connected: Connect, active: TrainingCluster, before: Callable[[Job], object] = id
) -> list[bool]:
    """What the master is told of a program that saves a model of its own."""
    master.say(active=active)
    job = connected()
    job.save_with(lambda: SAVED)
    before(job)
    train(job)
    assert eventually(lambda: told(master))
    job.close()
    return told(master)


def test_a_program_without_an_adapter(master: FakeMaster, connected: Connect) -> None:
    """A program that takes batches and saves a model of its own, without parameter servers and without an
    adapter, says so with its first step, once."""
    assert program(master, connected, cluster(1)) == [True]


def test_every_report_of_the_program_says_the_same(master: FakeMaster, connected: Connect) -> None:
    """A later report of the same state, such as that of a save, does not take it back."""
    assert program(master, connected, cluster(1), lambda job: job.report_step(0)) == [False, True]
    master.received.clear()
    job = connected()
    job.save_with(lambda: SAVED)
    train(job)
    job.checkpoint()
    job.close()
    assert told(master) == [True, True]


@pytest.mark.parametrize(
    ("active", "before"),
    [
        pytest.param(cluster(1, ps=1), id, id="parameter servers hold the model"),
        pytest.param(world(1, (0, 1)), id, id="the members of a collective job"),
        pytest.param(cluster(1), Job.declare_one_model, id="the program combines the copies itself"),
        pytest.param(cluster(1), lambda job: job.barrier("all"), id="it coordinates by a barrier"),
        pytest.param(cluster(1), lambda job: job.sync("all"), id="it coordinates by a sync"),
    ],
)
def test_a_program_whose_workers_train_one_model(
    master: FakeMaster, connected: Connect, active: TrainingCluster, before: Callable[[Job], object]
) -> None:
    """Nothing is said where parameter servers, a training group or the program itself may combine what the
    workers learn."""
    master.sync_finished = master.barrier_open = True
    assert program(master, connected, active, before) == [False]


@pytest.mark.parametrize("name", GROUP_LIBRARIES)
def test_a_program_with_a_library_that_forms_groups(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nothing is said where another library may combine what the workers learn."""
    monkeypatch.setitem(sys.modules, name, group(formed=True))
    assert program(master, connected, cluster(1)) == [False]


def group(*, formed: bool) -> SimpleNamespace:
    """Stands for ``torch.distributed``."""
    return SimpleNamespace(is_available=lambda: True, is_initialized=lambda: formed)


@pytest.mark.parametrize("workers", [(0,), (0, 1)])
def test_a_pytorch_program_that_forms_no_group(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch, workers: tuple[int, ...]
) -> None:
    """A PyTorch program that takes batches in a group of two workers and has not made PyTorch's group trains
    copies. A group of one worker needs none."""
    monkeypatch.setitem(sys.modules, "torch.distributed", group(formed=False))
    assert program(master, connected, world(1, workers)) == [len(workers) > 1]


def test_a_program_that_saves_no_model(master: FakeMaster, connected: Connect) -> None:
    """Workers that only process records, as for predictions, share them and train nothing."""
    master.say(active=cluster(1))
    job = connected()
    train(job)
    assert eventually(lambda: told(master)) == [False]


def test_an_evaluation(master: FakeMaster, connected: Connect) -> None:
    """Batches of a data set for evaluation train nothing."""
    master.say(active=cluster(1))
    job = connected()
    job.save_with(lambda: SAVED)
    train(job, task_type="evaluation")
    assert eventually(lambda: told(master)) == [False]


def test_a_program_that_says_late_that_it_trains_one_model(master: FakeMaster, connected: Connect) -> None:
    """What was said before the program declared that it combines the copies is taken back."""
    assert program(master, connected, cluster(1)) == [True]
    master.received.clear()
    job = connected()
    job.save_with(lambda: SAVED)
    train(job)
    job.declare_one_model()
    job.close()
    assert told(master) == [True, False]
