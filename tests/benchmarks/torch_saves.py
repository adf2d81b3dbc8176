"""A PyTorch program that saves its state in one of several ways, and notes how long training waits for it.

    python tests/benchmarks/torch_saves.py WAY FOLDER MIB SAVES

Ways: ``ours`` (run by an agent), ``dcp`` (``torch.distributed.checkpoint.async_save``), ``dcp-kept`` (with a
stager that keeps its memory), ``dlrover`` (``DdpCheckpointer``, run by ``dlrover-run``). The state is a model
and Adam's averages, three tensors of a size each. What counts is the call that saves, and for ours the wait
before the next update, too. The next save begins when the one before is on storage.
"""

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

LAYERS = 40
STEPS = 3
"""Between two saves."""
WARM_UP = 2
STORED_SECONDS = 600.0


class Layers(torch.nn.Module):  # type: ignore[misc]  # no types in the environment of the checks
    """Parameters of so many MiB with Adam's averages."""

    def __init__(self, mib: int) -> None:
        super().__init__()
        size = mib * 2**20 // 4 // 3 // LAYERS
        source = torch.Generator().manual_seed(0)
        self.layers = torch.nn.ParameterList(torch.rand(size, generator=source) for _ in range(LAYERS))

    def forward(self) -> torch.Tensor:
        """A loss to which each parameter contributes."""
        return torch.stack([one.square().mean() for one in self.layers]).sum()


class Notes:
    """Writes what was measured, a line of JSON for each save."""

    def __init__(self, way: str, folder: Path) -> None:
        self._way = way
        self._file = folder / "measured"
        self.steps: list[float] = []
        """Seconds of the steps since the newest save."""
        self.waited = 0.0
        """Seconds for which the step after it waited, within the step."""
        self._call = self._before = self._cpu = 0.0

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Measures the call that saves."""
        self._before, self.steps, self.waited = statistics.median(self.steps), [], 0.0
        cpu, start = time.process_time(), time.perf_counter()
        yield
        self._call, self._cpu = time.perf_counter() - start, time.process_time() - cpu

    def write(self) -> None:
        """Note the save, when the steps after it are made."""
        found = {
            "way": self._way,
            "call": self._call,
            "cpu": self._cpu,
            "waited": self.waited,
            "step": self._before,
            "next_step": self.steps[0],
            "torch": torch.__version__,
        }
        with self._file.open("a") as file:
            file.write(json.dumps(found) + "\n")


def train_and_save(
    notes: Notes, saves: int, step: Callable[[], object], save: Callable[[int], Callable[[], bool]]
) -> None:
    """Make steps and save between them; `save` returns whether what it saved is on storage."""

    def make_steps(count: int) -> None:
        for _ in range(count):
            start = time.perf_counter()
            step()
            notes.steps.append(time.perf_counter() - start)

    make_steps(WARM_UP)
    for index in range(1, saves + 1):
        make_steps(STEPS)
        with notes.saving():
            stored = save(index)
        make_steps(STEPS)
        notes.write()
        deadline = time.monotonic() + STORED_SECONDS
        while not stored():
            assert time.monotonic() < deadline, "the save does not reach the storage"
            time.sleep(0.01)


def peers_step(model: Layers) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
    """An optimizer, and a step with it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    return optimizer, step


def run_ours(folder: Path, mib: int, saves: int) -> None:
    """The adapter of collective jobs, with one member."""
    from edl_workflows.training import connect
    from edl_workflows.training.checkpoints.snapshots import SnapshotStage
    from edl_workflows.training.environment import open_snapshots
    from edl_workflows.training.frameworks.torch_collective import (
        Dataset,
        TorchModel,
        TorchTraining,
        TrainingOptions,
        training,
    )

    notes = Notes("ours", folder)
    inputs = {"x": torch.zeros(1)}

    def build() -> TorchModel:
        model = Layers(mib)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        return TorchModel(model, optimizer, lambda x: model() + x, inputs)

    job = connect()
    steps = WARM_UP + 2 * STEPS * saves + 1
    dataset = Dataset(steps * job.cluster.max_workers, batch_size=1, num_epochs=1)
    memory = open_snapshots(os.environ)
    assert memory is not None
    with training(job, build, dataset, TrainingOptions(folder / "checkpoints", None, keep=1)) as run:
        assert isinstance(run.framework, TorchTraining)
        guard = run.framework.copying
        wait, turns = guard.wait, iter(run)

        def timed_wait() -> None:
            start = time.perf_counter()
            wait()
            notes.waited += time.perf_counter() - start

        guard.wait = timed_wait  # type: ignore[method-assign]

        def step() -> None:
            next(turns)
            run.step([inputs])

        def save(_index: int) -> Callable[[], bool]:
            assert job.checkpoint() is not None
            return lambda: all(copy.stage is not SnapshotStage.MEMORY for copy in memory.whole())

        train_and_save(notes, saves, step, save)
        for _ in turns:
            run.step([inputs])


def run_dcp(folder: Path, mib: int, saves: int, *, kept: bool) -> None:
    """PyTorch's own way."""
    from torch import distributed
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    model = Layers(mib)
    optimizer, step = peers_step(model)
    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    stager = DefaultStager(options) if kept else None

    def save(index: int) -> Callable[[], bool]:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        future = checkpoint.async_save(
            state, checkpoint_id=str(folder / f"checkpoint-{index}"), async_stager=stager
        )
        return lambda: future.done() and future.result() is not None

    train_and_save(Notes("dcp-kept" if kept else "dcp", folder), saves, step, save)
    distributed.destroy_process_group()


def run_dlrover(folder: Path, mib: int, saves: int) -> None:
    """DLRover's Flash Checkpoint."""
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType
    from torch import distributed

    distributed.init_process_group("gloo")
    model = Layers(mib)
    optimizer, step = peers_step(model)
    checkpointer = DdpCheckpointer(str(folder / "checkpoints"))
    newest = folder / "checkpoints" / "dlrover_latest.txt"

    def save(index: int) -> Callable[[], bool]:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        checkpointer.save_checkpoint(index, state, storage_type=StorageType.DISK)
        return lambda: newest.exists() and newest.read_text().strip() == str(index)

    train_and_save(Notes("dlrover", folder), saves, step, save)
    distributed.destroy_process_group()


WAYS: dict[str, Callable[[Path, int, int], Any]] = {
    "ours": run_ours,
    "dcp": lambda *given: run_dcp(*given, kept=False),
    "dcp-kept": lambda *given: run_dcp(*given, kept=True),
    "dlrover": run_dlrover,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
