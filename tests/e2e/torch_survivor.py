"""A member of a collective job that notes each turn, and makes trouble at a chosen moment:
``python -m tests.e2e.torch_survivor FOLDER …``, run by an agent. With ``--alone`` it trains without a job.

The model counts how often it has seen each record, in a parameter whose gradient for a record is 1: so what
is counted is what was reduced and applied, whichever processes did it. Numbers have 64 bits: groups of other
sizes add in another order, and over a thousand steps with 32 bits the rounding would hide a defect.
"""

import argparse
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from edl_workflows.training import connect
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.collective.gloo_group import GlooGroup
from edl_workflows.training.collective.nccl_group import NcclGroup
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.data.sampler import ElasticSampler
from edl_workflows.training.data.torch_data import ElasticDataLoader
from edl_workflows.training.frameworks.torch_collective import (
    Dataset,
    TorchModel,
    TorchTraining,
    TrainingOptions,
    training,
)
from edl_workflows.training.frameworks.torch_copies.transfer import Checksum
from edl_workflows.training.frameworks.torch_shards import local_part
from edl_workflows.training.job import Job
from tests.docs.sharded_model import shard
from tests.e2e.turns import BATCH_SIZE, MOST, RECORDS

INPUTS, HIDDEN, CLASSES = 64, 256, 10
SENT = 6
"""Broadcasts after which a part of the state has been sent, and a part has not."""
SLOW_SECONDS = 15.0
"""Longer than a member may be late before the job's status says so."""


class Counted(torch.nn.Module):  # type: ignore[misc]  # no types in the environment of the checks
    """A network, and how often it was trained with each record."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.nn.Parameter(torch.zeros(RECORDS))
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(INPUTS, HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """The loss of each record."""
        seen = self.seen[index]
        return torch.nn.functional.cross_entropy(self.layers(x), y, reduction="none") + seen - seen.detach()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs, and labels that depend on them."""
    source = torch.Generator().manual_seed(3)
    x = torch.randn(RECORDS, INPUTS, generator=source)
    return x, (x @ torch.randn(INPUTS, CLASSES, generator=source)).argmax(1)


def build(sharded_by: Job | None = None, device: str = "cpu") -> TorchModel:
    """The network with Adam, sharded within the replica groups of a job if one is given."""
    torch.manual_seed(0)
    model = Counted().to(device)
    replica = (
        shard(sharded_by, model, [model.layers[0], model.layers[2]], device)
        if sharded_by is not None
        else None
    )
    optimizer = torch.optim.Adam(model.layers.parameters(), 1e-4)

    def update() -> None:
        with torch.no_grad():
            assert model.seen.grad is not None
            model.seen += model.seen.grad * (BATCH_SIZE * MOST)
        optimizer.step()

    x, y = data()
    example = {"x": x[:2], "y": y[:2], "index": torch.arange(2)}
    return TorchModel(model, optimizer, model, example, update, replica=replica)


class Trouble:
    """Makes trouble in this process, at a moment for which the folder has an order that no other process has
    taken.

    Args:
        folder: with the orders: files ``die-<phase>``, ``slow-forward`` and ``damage-state``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent = 0

    def at(self, phase: str) -> None:
        """Die if this is the moment."""
        if self._take(f"die-{phase}", f"died-{phase}"):
            os.kill(os.getpid(), signal.SIGKILL)

    def _take(self, order: str, taken: str) -> bool:
        try:
            (self._folder / order).rename(self._folder / f"{taken}-{os.getpid()}")
        except FileNotFoundError:
            return False
        return True

    def _forward(self) -> None:
        self.at("forward")
        if self._take("slow-forward", "slow"):
            time.sleep(SLOW_SECONDS)

    def install(self, parts: TorchModel) -> None:
        """Look for orders in each phase."""
        parts.model.layers[0].register_forward_hook(lambda *_: self._forward())
        parts.model.layers[2].register_full_backward_hook(lambda *_: self.at("backward"))
        for group in (GlooGroup, NcclGroup):
            self._before(group, "wait", lambda _: self.at("reduction"))
            # One that dies when the others have its address, and one that dies with a part of the state sent.
            self._before(group, "_build", self._forming)
        self._before(GlooGroup, "broadcast", self._sending)
        self._damage()

    def _forming(self, group: GlooGroup) -> None:
        """A member that forms the group after a change."""
        if group.version > 1:
            self.at("formation")

    def _sending(self, group: GlooGroup) -> None:
        """A member that sends a newcomer its state has sent a part of it when it comes here often."""
        if group.version > 1 and group.rank == 0:
            self._sent += 1
            if self._sent > SENT:
                self.at("state")

    def _damage(self) -> None:
        """Send one broadcast of a state with all its bits turned, and keep it as it is."""
        inner = GlooGroup.broadcast

        def broadcast(group: GlooGroup, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
            sends = group.version > 1 and group.rank == root and tensor.is_floating_point()
            if not sends or not self._take("damage-state", "damaged"):
                return inner(group, tensor, root)
            inner(group, -1.0 - tensor, root)
            return tensor

        self._replace(GlooGroup, "broadcast", broadcast)

    def _before(self, owner: type, name: str, look: Callable[[Any], None]) -> None:
        inner = getattr(owner, name)

        def outer(this: Any, *args: Any, **more: Any) -> Any:
            look(this)
            return inner(this, *args, **more)

        self._replace(owner, name, outer)

    @staticmethod
    def _replace(owner: type, name: str, method: Callable[..., Any]) -> None:
        setattr(owner, name, method)


def inputs(of: tuple[torch.Tensor, torch.Tensor], records: Sequence[int]) -> dict[str, torch.Tensor]:
    """What the losses take."""
    index = torch.tensor(list(records), dtype=torch.int64)
    return {"x": of[0][index], "y": of[1][index], "index": index}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--step-delay", type=float, default=0.0)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--save-seconds", type=float, help="interval of checkpoints (default: at the end)")
    parser.add_argument("--data-workers", type=int, default=0, help="processes that read ahead")
    parser.add_argument("--memory-seconds", type=float, help="between copies in memory")
    parser.add_argument("--replicas", action="store_true", help="shard the model within replica groups")
    parser.add_argument("--device", default="cpu", help="device of the model")
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    # NCCL refuses two members on one GPU of a host. With a host name of its own, each may be there.
    os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.getpid()}"
    if options.alone:
        (options.folder / "alone").write_text(json.dumps(train_alone(options.epochs)))
    else:
        train(options)


def train_alone(epochs: int) -> dict[int, float]:
    """The loss of each step of a training with one member, which nobody disturbs."""
    torch.set_num_threads(1)
    member, of = TorchTraining(build), data()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    member.join(Place(1, 0, (address,)))
    sampler = ElasticSampler(Dataset(RECORDS, BATCH_SIZE, epochs), MOST)
    losses: dict[int, float] = {}
    while not sampler.done:
        batches = [inputs(of, records) for records in sampler.mini_batches(0, 1)]
        losses[len(losses) + 1] = member.step(batches, Wishes()).loss
        sampler.advance()
    return losses


def train(options: argparse.Namespace) -> None:
    """Train as a member of a job; each turn is a line of JSON in a file named after node and process.

    If the folder has a file ``last``, training ends with the step in it. Whoever writes it names a step that
    no member has begun.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    job = connect()
    of, parts = data(), build(job if options.replicas else None, options.device)
    hurry, last = options.folder / "hurry", options.folder / "last"
    Trouble(options.folder).install(parts)
    settings = TrainingOptions(
        options.folder / "checkpoints",
        save_seconds=options.save_seconds,
        threads=1,
        memory_seconds=options.memory_seconds,
    )
    notes = options.folder / f"turns-{job.node}-{os.getpid()}"
    dataset = Dataset(RECORDS, BATCH_SIZE, options.epochs)
    with notes.open("w") as file, training(job, lambda: parts, dataset, settings) as run:
        records = torch.utils.data.StackDataset(**inputs(of, range(RECORDS)))
        for mini_batches in ElasticDataLoader(run, records, num_workers=options.data_workers):
            version, size = job.version, run.size
            step, loss = run.step(mini_batches)
            delay = options.step_delay if run.step_made and not hurry.exists() else 0.0
            turn = [time.time(), version, size, run.step_made, step, loss, delay]
            file.write(json.dumps(turn) + "\n")
            file.flush()
            if last.exists() and step >= int(last.read_text()):
                break
            time.sleep(delay)
        state = parts.model.state_dict()
        sums = {name: checksum(local_part(one)) for name, one in state.items()}
        index = parts.replica.index if parts.replica is not None else 0
        file.write(json.dumps({"seen": seen(parts.model), "index": index, "sums": sums}) + "\n")


def checksum(tensor: torch.Tensor) -> int:
    """The checksum of a tensor's values."""
    values = Checksum(torch.device("cpu"))
    values.add(tensor.cpu())
    return values.value()


def seen(model: Counted) -> list[float]:
    """How often the model was trained with each record."""
    counts = model.seen.detach()
    return list((counts.full_tensor() if isinstance(counts, DTensor) else counts).tolist())


if __name__ == "__main__":
    main()
