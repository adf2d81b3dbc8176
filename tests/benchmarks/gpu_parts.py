"""The parts of `tests.benchmarks.bench_gpu`. Each is a process, so that it has the GPU's memory for itself,
and prints its figures as JSON.

    python -m tests.benchmarks.gpu_parts bus|saves|dcp|steps DEVICE GIB FOLDER
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from edl_workflows.core.protocol.training import CheckpointTicket
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.copying import CopyGuard
from edl_workflows.training.checkpoints.manifest import verify_checkpoint
from edl_workflows.training.checkpoints.snapshots import ModelSnapshot, SnapshotFolder
from edl_workflows.training.checkpoints.tensors import load
from edl_workflows.training.checkpoints.two_stages import FirstStage, TwoStages
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining

SAVES, STEPS, ROUNDS = 3, 8, 20
STEP_SECONDS = 0.15
"""Of computation in a step, on a GPU."""
LAYERS = 120
Figures = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What is measured: the device, the size of the state, and a folder on the disk."""

    device: torch.device
    gib: float
    folder: Path

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU; the CPU is for tests of this program."""
        return bool(self.device.type == "cuda")

    def finish(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """How long some work takes, also on the device."""
        self.finish()
        began = time.perf_counter()
        work()
        self.finish()
        return time.perf_counter() - began


class Layers(torch.nn.Module):  # type: ignore[misc]  # no types in the environment of the checks
    """Parameters of a third of the state's size, each of which has a gradient, and products of matrices as
    further computation."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        values = int(setting.gib * 2**30) // 4 // 3 // LAYERS
        self.layers = torch.nn.ParameterList(torch.rand(values, device=setting.device) for _ in range(LAYERS))
        self._matrix = torch.rand(8192 if setting.on_gpu else 64, device=setting.device).diag().bfloat16()
        self._products = 1
        if setting.on_gpu:
            self._multiply()
            self._products = max(1, round(STEP_SECONDS / setting.seconds(self._multiply)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        self._multiply()
        return torch.stack([layer.square().mean() for layer in self.layers]).sum() + x.sum(1)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _multiply(self) -> None:
        for _ in range(self._products):
            self._matrix @ self._matrix


class TimedGuard(CopyGuard):
    """Notes how long the copies of the newest save took."""

    def __init__(self) -> None:
        super().__init__()
        self._began = self.seconds = 0.0

    def begin(self) -> None:
        """Note the time."""
        self._began, self.seconds = time.perf_counter(), 0.0
        super().begin()

    def end(self) -> None:
        """Note the time."""
        super().end()
        self.seconds = time.perf_counter() - self._began


def free_address() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def measure_bus(setting: Setting) -> Figures:
    """Bytes a second between host and device, with registered and with pageable memory."""
    size = min(2**30, int(setting.gib * 2**30))
    on_device = torch.empty(size, dtype=torch.uint8, device=setting.device)
    figures: Figures = {"card": torch.cuda.get_device_name(setting.device) if setting.on_gpu else "no GPU"}
    for kind in ("pinned", "pageable"):
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=kind == "pinned" and setting.on_gpu)
        for name, into, source in (("to host", host, on_device), ("to device", on_device, host)):
            times = [setting.seconds(lambda: into.copy_(source, non_blocking=True)) for _ in range(4)]  # noqa: B023
            figures[f"{kind} {name}"] = size / min(times)
    return figures


def join_alone(build: Callable[[], TorchModel]) -> TorchTraining:
    """The only member of a group."""
    member = TorchTraining(build)
    member.join(Place(1, 0, (free_address(),)))
    return member


def measure_saves(setting: Setting) -> Figures:
    """How long saves delay a step, and a restore, both with the storage of this machine."""

    def build() -> TorchModel:
        model = Layers(setting)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        return TorchModel(model, optimizer, model, {"x": torch.zeros(1, 1)})

    member = join_alone(build)
    guard = member.copying = TimedGuard()
    slots = SnapshotFolder(Path(f"/dev/shm/edl-bench-gpu-{os.getpid()}"))
    slots.folder.mkdir(mode=0o700)
    store = CheckpointStore(setting.folder / "ours", keep=1)
    first = FirstStage(TwoStages(lambda: member.state(0, {}), store), slots, 1)

    calls: list[float] = []

    def work() -> None:
        member.step([{"x": torch.zeros(1, 1)}], Wishes())

    def step() -> float:
        return setting.seconds(work)

    def save_and_step() -> None:
        began = time.perf_counter()
        first.save(CheckpointTicket(id=""), persist=False, wait=False)
        calls.append(time.perf_counter() - began)
        work()

    try:
        step()
        began = time.perf_counter()
        first.reserve(chief=True)
        beside = [step()]
        while first.reserving:
            beside.append(step())
        figures: Figures = {
            "prepare": time.perf_counter() - began,
            "beside_prepare": max(beside),
            "saves": [],
        }
        figures["step"] = base = statistics.median(step() for _ in range(STEPS))
        for number in range(1, SAVES + 1):
            # Save and step in one window: waiting for the device in between would hide a copy that delays
            # the update.
            stall = setting.seconds(save_and_step) - base
            later = max(step() for _ in range(STEPS - 1)) - base
            newest = wait_for_copy(slots, number)
            figures["saves"].append(
                {"call": calls[-1], "stall": stall, "later": later, "copy": guard.seconds}
            )
        return {**figures, "size": newest.size, **measure_restore(setting, member, slots, newest, step)}
    finally:
        first.close(5.0)
        shutil.rmtree(slots.folder)
        member.close()


def wait_for_copy(slots: SnapshotFolder, number: int) -> ModelSnapshot:
    """A copy, when it is complete."""
    while (copy := slots.find(number)) is None:
        time.sleep(0.01)
    return copy


def measure_restore(
    setting: Setting,
    member: TorchTraining,
    slots: SnapshotFolder,
    newest: ModelSnapshot,
    step: Callable[[], float],
) -> Figures:
    """Store the newest copy in another process, as the agent does, beside training; then restore it."""
    place = setting.folder / "ours"
    headers = [file for file in slots.folder.glob("slot-?.json") if _number_in(file) == newest.number]
    slot = headers[0].with_suffix("")
    program = [sys.executable, "-m", "tests.benchmarks.gpu_parts", "store"]
    began = time.perf_counter()
    with subprocess.Popen([*program, str(slot), str(newest.size), str(place)]) as storing:
        beside = [step()]
        while storing.poll() is None:
            beside.append(step())
    stored = time.perf_counter() - began
    checkpoint = CheckpointStore(place).newest()
    assert checkpoint is not None
    folder = Path(checkpoint.uri)
    restored = setting.seconds(lambda: member.load(load(folder / STATE_FILE).tensors))
    checked = setting.seconds(lambda: verify_checkpoint(folder))
    return {
        "store": stored,
        "beside_store": statistics.median(beside),
        "restore": restored,
        "check": checked,
        "disk": read_cold(folder / STATE_FILE),
    }


def _number_in(header: Path) -> int:
    return ModelSnapshot.model_validate_json(header.read_text()).number


def store_slot(slot: Path, size: int, place: Path) -> None:
    """Store a copy in memory as a checkpoint."""

    def write(folder: Path) -> None:
        with slot.open("rb") as source, (folder / STATE_FILE).open("wb") as file:
            left = size
            while left:
                left -= file.write(source.read(min(left, 2**24)))

    CheckpointStore(place, keep=1).publish(1, write)


def read_cold(file: Path) -> float:
    """Bytes a second from the disk, without the page cache."""
    with file.open("rb", buffering=0) as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began, size = time.perf_counter(), 0
        while piece := opened.read(2**24):
            size += len(piece)
        return size / (time.perf_counter() - began)


def measure_dcp(setting: Setting) -> Figures:
    """How long ``torch.distributed.checkpoint.async_save`` delays a step, with pinned, shared memory and
    asynchronous staging."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    start_process_group(setting)
    model = Layers(setting)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    stager = DefaultStager(StagingOptions(*[setting.on_gpu] * 4))
    staged: list[Any] = []
    calls: list[float] = []

    def work() -> None:
        optimizer.zero_grad()
        model(torch.zeros(1, 1, device=setting.device)).sum().backward()
        while staged:
            staged.pop().result()
        optimizer.step()

    def step() -> float:
        return setting.seconds(work)

    step()
    figures: Figures = {"step": statistics.median(step() for _ in range(STEPS)), "saves": []}
    for index in range(SAVES):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        folder, futures = setting.folder / f"dcp-{index}", []

        def save_and_step() -> None:
            began = time.perf_counter()
            response = checkpoint.async_save(state, checkpoint_id=str(folder), async_stager=stager)  # noqa: B023
            futures.append(getattr(response, "upload_completion", response))  # noqa: B023
            if setting.on_gpu:  # without asynchronous staging, the call has staged
                staged.append(getattr(response, "staging_completion", None) or futures[0])  # noqa: B023
            calls.append(time.perf_counter() - began)
            work()

        stall = setting.seconds(save_and_step) - figures["step"]
        later = max(step() for _ in range(STEPS - 1)) - figures["step"]
        figures["saves"].append({"call": calls[-1], "stall": stall, "later": later})
        futures[0].result()
        shutil.rmtree(folder)
    distributed.destroy_process_group()
    return figures


def start_process_group(setting: Setting) -> None:
    """PyTorch's default process group, of one process."""
    backend = "cpu:gloo,cuda:nccl" if setting.on_gpu else "gloo"
    store = f"file://{setting.folder}/store-{os.getpid()}"
    distributed.init_process_group(backend, init_method=store, rank=0, world_size=1)


def measure_steps(setting: Setting) -> Figures:
    """A step of the adapter and one of ``DistributedDataParallel``, in turn: seconds of each round."""
    width, batch = (4096, 1024) if setting.on_gpu else (64, 16)
    x = torch.randn(batch, width, device=setting.device)

    def network() -> torch.nn.Sequential:
        torch.manual_seed(0)
        layers = [(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(8)]
        return torch.nn.Sequential(*(layer for pair in layers for layer in pair)).to(setting.device)

    def build() -> TorchModel:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        return TorchModel(model, optimizer, lambda x: model(x).square().mean(1), {"x": x[:2]})

    start_process_group(setting)
    member = join_alone(build)
    parallel = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-4)

    def ours() -> None:
        member.step([{"x": x}], Wishes())

    def theirs() -> None:
        optimizer.zero_grad()
        loss = parallel(x).square().mean()
        loss.backward()
        optimizer.step()
        float(loss.detach())  # ours reports its loss, too

    rounds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for index in range(ROUNDS + 1):
        for name, work in (("ours", ours), ("theirs", theirs)):
            seconds = setting.seconds(lambda: [work() for _ in range(STEPS)]) / STEPS  # noqa: B023
            rounds[name] += [seconds] if index else []
    member.close()
    distributed.destroy_process_group()
    return dict(rounds)


PARTS: dict[str, Callable[[Setting], Figures]] = {
    "bus": measure_bus,
    "saves": measure_saves,
    "dcp": measure_dcp,
    "steps": measure_steps,
}

if __name__ == "__main__":
    if sys.argv[1] == "store":
        store_slot(Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        chosen = Setting(torch.device(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
        if chosen.on_gpu:
            torch.cuda.set_device(chosen.device)
        print(json.dumps(PARTS[sys.argv[1]](chosen)), flush=True)
