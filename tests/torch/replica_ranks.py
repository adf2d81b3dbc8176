"""Two replica groups of two ranks without a master; each rank is a process."""

import contextlib
import json
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest import mock

import torch
from torch.distributed.fsdp import fully_shard

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.protocol.cluster import Member, TrainingCluster
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import CheckpointTicket
from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoint_parts import Part
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.snapshots import claim_folder
from edl_workflows.training.checkpoints.two_stages import FirstStage, TwoStages
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.collective.gloo_group import GlooGroup
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining
from edl_workflows.training.frameworks.torch_replica import ReplicaGroup, join_replica_group
from edl_workflows.training.frameworks.torch_shards import local_part
from edl_workflows.training.frameworks.torch_state import SKELETON, split
from edl_workflows.training.job import Job
from tests.torch.fake_device import FakeDevice
from tests.torch.members import eventually, network, records

SIZE, RANKS = 2, 4
BATCHES = ((0, 5), (5, 5), (5, 8), (8, 12))
"""The records of each rank in a step; rank 1 has none."""
STEPS = 3


class LostError(Exception):
    """In place of the end of a process."""


def job_of(
    rank: int, addresses: Sequence[str], *, max_workers: int = RANKS, size: int = SIZE, active: bool = True
) -> Job:
    """What `join_replica_group` asks of a job."""
    members = [Member(rank=at, id=at, address=address) for at, address in enumerate(addresses)]

    def cluster_lost(reason: str, _code: int = 0) -> NoReturn:
        raise LostError(reason)

    made = SimpleNamespace(
        cluster=TrainingCluster(version=1, workers=members, max_workers=max_workers, replica_size=size),
        node=NodeRef(type="worker", id=rank),
        environment=SimpleNamespace(listen_address=lambda _version: addresses[rank]),
        name="alone",
        version=1,
        process=1,
        active=active,
        terminated=False,
        replica_size=1,
        cluster_lost=cluster_lost,
    )
    return cast("Job", made)


def sharded(replica: ReplicaGroup | None, seed: int) -> TorchModel:
    """The network of `tests.torch.members`, sharded over a group if there is one."""
    parts = network(seed)
    if replica is None:
        return parts
    for layer in (parts.model[0], parts.model):
        fully_shard(layer, mesh=replica.mesh)
    x, y = records(2)
    optimizer = torch.optim.Adam(parts.model.parameters(), lr=0.05)

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(parts.model(x), y, reduction="none")

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(parts.model.parameters(), 1.0)
        optimizer.step()

    return TorchModel(parts.model, optimizer, losses, {"x": x, "y": y}, update, replica=replica)


def whole_state(member: TorchTraining) -> dict[str, list[Any]]:
    """The values of a member's model and optimizer; collective in its group."""
    found = split(member._state(), sharded=True).tensors
    return {name: getattr(one, "full_tensor", lambda one=one: one)().tolist() for name, one in found.items()}


def turn(rank: int) -> list[dict[str, torch.Tensor]]:
    """The mini-batches of a rank."""
    x, y = records(12)
    first, last = BATCHES[rank]
    return [{"x": x[first:last], "y": y[first:last]}]


@contextlib.contextmanager
def breaking(rank: int) -> Iterator[None]:
    """The last rank's sums fail, although all others get theirs."""
    inner = GlooGroup.wait

    def wait(group: GlooGroup, begun: Sequence[Any]) -> None:
        inner(group, begun)
        if rank == RANKS - 1:
            raise UnavailableError("a neighbour was lost")

    with mock.patch.object(GlooGroup, "wait", wait):
        yield


def train(rank: int, folder: Path, addresses: Sequence[str]) -> TorchTraining:
    """Three steps; then one that the last rank can't make."""
    job = job_of(rank, addresses)
    replica = join_replica_group(job)
    assert (job.replica_size, replica.index) == (SIZE, rank % SIZE)
    member = TorchTraining(lambda: sharded(replica, 0))
    member.join(Place(1, rank, tuple(addresses)))
    losses = [member.step(turn(rank), Wishes()).loss for _ in range(STEPS)]
    before = whole_state(member)
    (folder / f"trained-{rank}").write_text(json.dumps([losses, before]))
    broken = ""
    with breaking(rank):
        try:
            member.step(turn(rank), Wishes())
        except UnavailableError as error:
            broken = str(error)
    (folder / f"broken-{rank}").write_text(json.dumps([broken, whole_state(member) == before]))
    return member


def catch_up(rank: int, addresses: Sequence[str], member: TorchTraining) -> list[int]:
    """Form the next group, at the same ports, and get the state of those who are ahead."""
    member.regroup(Place(2, rank, tuple(addresses)))
    mine = STEPS + (rank < SIZE)
    steps = member.compare(mine)
    member.broadcast([mine, 1, 0], steps.index(max(steps)), load=mine < max(steps))
    return steps


def save_beside_a_step(rank: int, folder: Path, member: TorchTraining) -> None:
    """All copy their parts, with a device that begins the copies and makes them later, while they make a
    step."""
    device = FakeDevice()
    member._copy_device = device
    memory = claim_folder(folder / f"node-{rank}")
    part = partial(member.part_state, STEPS + 1, {}, Part(rank, RANKS))
    first = FirstStage(
        TwoStages(part, CheckpointStore(folder / "checkpoints"), part=part), memory, 1, f"job-{folder.name}"
    )
    before = {
        name: local_part(one).clone() for name, one in split(member._state(), sharded=True).tensors.items()
    }
    first.save_part(CheckpointTicket(id=""), persist=True)
    member.step(turn(rank), Wishes())
    device.may_copy.set()  # without the wait, the copies would only be made now
    copy = eventually(lambda: memory.newest)
    with memory.reading(copy.number) as block:
        assert block is not None
        saved = tensors.read_state(block, "here").tensors
        equal = [bool((saved[name] == before[name].numpy()).all()) for name in saved if name != SKELETON]
    (folder / f"beside-{rank}").write_text(json.dumps([len(equal), all(equal), len(device.begun)]))
    member._copy_device = FakeDevice(lazy=True)


def save_and_restore(rank: int, folder: Path, member: TorchTraining) -> None:
    """All save their parts. Each loads its shards into another model."""
    part = member.part_state(STEPS + 1, {"data": "here"}, Part(rank, RANKS))
    tensors.write_state(folder / part.part.file, part)
    saved = whole_state(member)
    member.meet()
    files = [folder / Part(at, RANKS).file for at in range(RANKS)]
    with torch.no_grad():
        for one in member._parts.model.parameters():
            local_part(one).fill_(7.0)
    member._parts.optimizer.load_state_dict({**member._parts.optimizer.state_dict(), "state": {}})
    member.load_parts([tensors.load(file) for file in files], "here")
    (folder / f"restored-{rank}").write_text(json.dumps([whole_state(member) == saved, saved]))
    member.meet()


def run_rank(rank: int, folder_name: str, addresses: Sequence[str]) -> None:
    """The life of a rank."""
    torch.set_num_threads(1)
    folder = Path(folder_name)
    member = train(rank, folder, addresses)
    steps = catch_up(rank, addresses, member)
    (folder / f"compared-{rank}").write_text(json.dumps(steps))
    save_beside_a_step(rank, folder, member)
    save_and_restore(rank, folder, member)


def free_addresses(count: int) -> list[str]:
    """Addresses on this machine on which nobody listens."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
