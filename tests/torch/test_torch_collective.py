"""The PyTorch adapter: the same training whatever the number of members, and one model in all of them."""

import contextlib
import random
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edl_workflows.core.exceptions import CheckpointError, InvalidError, UnavailableError
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.tensors import load, save
from edl_workflows.training.collective.framework import Reduced, Wishes
from edl_workflows.training.collective.gloo_group import GlooGroup
from edl_workflows.training.collective.regrouping import CannotTakePartError, Place
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining
from tests.torch.members import (
    PIXELS,
    SECONDS,
    joined,
    network,
    parameters,
    places,
    records,
    set_values,
    together,
)

MINI_BATCHES, RECORDS, STEPS = 4, 3, 12


def mini_batches(step: int, rank: int, size: int) -> list[Mapping[str, Any]]:
    """A member's part of a step's global batch of `MINI_BATCHES`."""
    x, y = records(STEPS * MINI_BATCHES * RECORDS)
    cuts = [slice(start, start + RECORDS) for start in range(0, len(x), RECORDS)]
    return [{"x": x[cut], "y": y[cut]} for cut in cuts[step * MINI_BATCHES :][rank:MINI_BATCHES:size]]


def train(members: Sequence[TorchTraining], steps: range) -> list[list[Reduced]]:
    """Each member's results of some steps."""

    def one(rank: int) -> list[Reduced]:
        return [
            members[rank].step(mini_batches(step, rank, len(members)), Wishes(float(rank), 1.0))
            for step in steps
        ]

    return together([lambda rank=rank: one(rank) for rank in range(len(members))])  # type: ignore[misc]


def broadcast(members: Sequence[TorchTraining], numbers: Sequence[int] = ()) -> list[list[int]]:
    """Rank 0's state and numbers to all."""

    def one(rank: int) -> list[int]:
        return members[rank].broadcast([0] * len(numbers) if rank else numbers)

    return together([lambda rank=rank: one(rank) for rank in range(len(members))])  # type: ignore[misc]


def equal(one: Mapping[str, Any], other: Mapping[str, Any], tolerance: float = 0.0) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[name].float(), other[name].float(), rtol=0.0, atol=tolerance) for name in one
    )


def test_the_number_of_members_does_not_change_the_training() -> None:
    """Losses and weights after each step equal those of one member, up to the order of sums. All members
    agree to the bit, also on the sums of their wishes."""
    (alone,) = joined(1)
    [expected] = train([alone], range(STEPS))
    for size in (2, 3, 5):  # five: one has no mini-batch in any step
        members = joined(size)
        broadcast(members)
        results = train(members, range(STEPS))

        for mine in results:
            assert [one.loss for one in mine] == pytest.approx([one.loss for one in expected], abs=1e-5)
            assert mine == results[0]
        assert results[0][0].wishes == Wishes(float(sum(range(size))), float(size))
        assert all(equal(parameters(one), parameters(members[0])) for one in members)
        assert equal(parameters(members[0]), parameters(alone), 1e-5)


def test_members_join_in_the_middle() -> None:
    """The members change from 1 to 3 to 2, each time with new processes that get rank 0's model, moments and
    schedule. The training equals the undisturbed one."""
    (alone,) = joined(1)
    [expected] = train([alone], range(STEPS))
    losses: list[float] = []
    members = joined(1)
    for size, steps in ((1, range(3)), (3, range(3, 8)), (2, range(8, STEPS))):
        successors = joined(size)
        state = members[0].state(0, {})
        arrays = {name: np.empty(spec.shape, spec.dtype) for name, spec in state.specs.items()}
        state.fill(arrays)
        successors[0].load(arrays)
        assert broadcast(successors, [7, 1]) == [[7, 1]] * size
        losses += [one.loss for one in train(successors, steps)[0]]
        members = successors

    assert losses == pytest.approx([one.loss for one in expected], abs=1e-5)


def test_the_warm_up_leaves_no_trace() -> None:
    """After joining, the model has its initial values, and the optimizer has no moments."""
    (member,) = joined(1)

    assert equal(parameters(member), network(0).model.state_dict())
    assert member._parts.optimizer.state_dict()["state"] == {}
    assert member._parts.more is not None
    assert member._parts.more["schedule"].last_epoch == 0


def test_a_checkpoint_is_restored_by_another_number_of_members(tmp_path: Path) -> None:
    """Three members continue from a checkpoint that two saved."""
    members = joined(2)
    broadcast(members)
    train(members, range(4))
    save(tmp_path, members[0].state(4, {}))
    expected = train(members, range(4, STEPS))[0]

    later = joined(3)
    later[0].load(load(tmp_path / STATE_FILE).tensors)
    broadcast(later)

    assert [one.loss for one in train(later, range(4, STEPS))[0]] == pytest.approx(
        [one.loss for one in expected], abs=1e-5
    )


def other_network(_: int) -> TorchModel:
    """A network of another form."""
    made = network(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x), y, reduction="none")

    return TorchModel(model, optimizer, losses, made.example)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    """The error says that the checkpoint does not fit, and the model keeps its values."""
    save(tmp_path, joined(1)[0].state(1, {}))
    (other,) = joined(1, other_network)
    before = parameters(other)

    with pytest.raises(CheckpointError, match="can't be restored into this model"):
        other.load(load(tmp_path / STATE_FILE).tensors)
    assert equal(parameters(other), before)


def difficult_network(seed: int) -> TorchModel:
    """Parameters of several types, one that no loss depends on, one that is not trained, sparse gradients, a
    parameter used twice, and statistics of batches."""
    parts = torch.nn.ModuleDict(
        {
            "words": torch.nn.Embedding(8, 8, sparse=True),
            "hidden": torch.nn.Linear(8, 8).to(torch.bfloat16),
            "norm": torch.nn.BatchNorm1d(8),
            "unused": torch.nn.Linear(2, 2),
            "frozen": torch.nn.Linear(8, 8).requires_grad_(False),
            "last": torch.nn.Linear(8, 4),
        }
    )
    set_values(parts, seed)
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.01)

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = parts["words"](x.long().abs() % 8).mean(1)
        for _ in range(2):
            hidden = parts["hidden"](hidden.to(torch.bfloat16)).float()
        hidden = parts["frozen"](parts["norm"](hidden))
        return torch.nn.functional.cross_entropy(parts["last"](hidden), y, reduction="none")

    return TorchModel(parts, optimizer, losses, network(0).example)


def test_all_kinds_of_parameters() -> None:
    """With tensors of several types, sparse and missing gradients, and parameters that are not trained, all
    members have the same model."""
    members = joined(2, difficult_network)
    broadcast(members)
    results = train(members, range(4))
    trained = [
        {name: one for name, one in parameters(member).items() if not name.startswith("norm.running")}
        for member in members
    ]

    assert results[0] == results[1]
    assert equal(trained[0], trained[1])
    assert equal(
        {"frozen": trained[0]["frozen.weight"]}, {"frozen": difficult_network(0).model.frozen.weight}
    )  # fmt: skip


def test_buckets_are_reduced_while_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small buckets, the all-reduce of the last layer begins before the first layer has its gradient."""
    monkeypatch.setattr("edl_workflows.training.frameworks.gradient_buckets._BUCKET_BYTES", 1)
    monkeypatch.setattr("edl_workflows.training.frameworks.gradient_buckets._FIRST_BUCKET_BYTES", 1)
    (member,) = joined(1)
    events: list[str] = []
    assert member._group is not None
    begin = member._group.all_reduce

    def all_reduce(tensor: torch.Tensor) -> Any:
        events.append("reduce")
        return begin(tensor)

    monkeypatch.setattr(member._group, "all_reduce", all_reduce)
    first = next(iter(member._parts.model.parameters()))
    first.register_hook(lambda _: events.append("first layer"))
    member.step(mini_batches(0, 0, 1), Wishes())

    last_pass = len(events) - 1 - events[::-1].index("first layer")
    assert events[:last_pass].count("reduce") >= 2
    assert events.count("reduce") == 5  # four parameters, and the numbers


def test_a_step_reuses_the_memory_of_the_one_before() -> None:
    """Gradients are allocated in memory that the previous step has freed: a step takes fewer than 500 pages
    anew, although the gradients of 12 layers of 4 MiB have 12,000."""
    command = [sys.executable, "-m", "tests.torch.page_faults"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)

    assert int(done.stdout) < 500


def failures(members: Sequence[TorchTraining]) -> list[str]:
    """Broadcast rank 0's state; why each member can't take part, "" for one that can."""

    def one(member: TorchTraining) -> str:
        try:
            member.broadcast([5])
        except UnavailableError as error:
            return str(error)
        return ""

    return together([lambda member=member: one(member) for member in members])  # type: ignore[misc]


def test_a_state_that_arrives_damaged_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one bit of the state changes on the way, that member reports it and keeps its model, and the other
    member continues."""
    members = joined(2)
    before = parameters(members[1])
    group = members[1]._formed
    receive = group.broadcast

    def damaged(tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        received = receive(tensor, root)
        if received.dtype == torch.float32 and received.numel() == PIXELS * 16:
            received.view(torch.uint8)[0, 0] ^= 1
        return received

    monkeypatch.setattr(group, "broadcast", damaged)

    assert failures(members) == ["", "the state of rank 0 arrived damaged: its checksum differs"]
    assert equal(parameters(members[1]), before)


def test_a_peer_that_sends_rubbish_as_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a peer sends an invalid state, the members report it and keep their models."""
    for rubbish in (b"\xff\x00", b"[1, 2]", b"7"):
        members = joined(2)
        before = parameters(members[1])
        send = members[0]._formed.broadcast_bytes
        monkeypatch.setattr(
            members[0]._formed,
            "broadcast_bytes",
            lambda _, root, send=send, rubbish=rubbish: send(rubbish, root),
        )
        said = failures(members)

        assert all(one.startswith("what rank 0 says of its state can't be read") for one in said)
        assert equal(parameters(members[1]), before)


def test_strangers_that_send_rubbish_to_the_group() -> None:
    """Random bytes at each port on which members listen neither end a process nor change the training."""
    (alone,) = joined(1)
    [expected] = train([alone], range(STEPS))
    members = joined(2)
    broadcast(members)
    source = random.Random(5)
    for address, port in _listening():
        for size in (0, 1, 64, 4096):
            with contextlib.suppress(OSError), socket.create_connection((address, port), 1.0) as stranger:
                stranger.sendall(source.randbytes(size))

    results = train(members, range(STEPS))
    assert [one.loss for one in results[0]] == pytest.approx([one.loss for one in expected], abs=1e-5)


@pytest.mark.parametrize("killed", [0, 1], ids=["rank 0", "rank 1"])
def test_a_killed_member_breaks_the_group(killed: int) -> None:
    """If a member is killed, the step of the other one raises UnavailableError. It neither hangs nor trains
    alone."""
    port = places(1)[0].addresses[0].rpartition(":")[2]
    command = [sys.executable, "-m", "tests.torch.member_process"]
    members = [
        subprocess.Popen([*command, str(rank), port], stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    try:
        for member in members:
            assert member.stdout is not None
            assert member.stdout.readline() == "step\n"
        members[killed].kill()
        said, _ = members[1 - killed].communicate(timeout=SECONDS)
    finally:
        for member in members:
            member.kill()
            member.communicate()

    assert said.splitlines()[-1].startswith("broken: ")


def test_rank_0_that_can_not_listen() -> None:
    """If the port of rank 0 is in use, for example by the process of the previous version, rank 0 can't take
    part."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(CannotTakePartError, match="can't listen"):
            GlooGroup(Place(1, 0, (address,))).form()


def test_a_process_has_one_store_for_its_groups() -> None:
    """A process whose own store uses its port, as that of its replica group does, forms the group of another
    version over this store. The previous group is not affected."""
    (place,) = places(1)
    former, later = GlooGroup(place), GlooGroup(replace(place, version=3))
    former.form()
    later.form()

    assert later.broadcast_bytes(b"version 3") == b"version 3"
    assert former.broadcast_bytes(b"version 1") == b"version 1"


def test_a_model_without_anything_to_train() -> None:
    """A model without parameters to train is refused."""
    made = network(0)
    made.model.requires_grad_(False)

    with pytest.raises(InvalidError, match="no parameter"):
        TorchTraining(lambda: made).join(places(1)[0])


def test_the_group_listens_on_its_members_address_only() -> None:
    """Neither the store nor Gloo accepts connections from other networks."""
    members = joined(2)
    listening = _listening_addresses()

    assert len(members) == 2
    assert listening
    assert listening <= {"0100007F"}  # 127.0.0.1 in the kernel's notation


def _listening_addresses() -> set[str]:
    """Addresses on which this process listens."""
    return {address for address, _ in _sockets()}


def _listening() -> list[tuple[str, int]]:
    """Addresses of this machine and ports on which this process listens."""
    return [("127.0.0.1", int(port, 16)) for _, port in _sockets()]


def _sockets() -> list[tuple[str, str]]:
    """Address and port of the sockets on which this process listens, in the kernel's notation."""
    own = set()
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(str(handle.readlink()))
    lines = [line.split() for kind in ("tcp", "tcp6") for line in
             Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]]  # fmt: skip
    found = [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]
    return [(one.partition(":")[0], one.partition(":")[2]) for one in found]
