"""The group over NCCL, with a stand-in for NCCL. `tests/gpu` has the tests with NCCL."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.training.collective import nccl_group
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.collective.gloo_group import GlooGroup
from edl_workflows.training.collective.nccl_group import NcclGroup, choose_group
from edl_workflows.training.frameworks.torch_collective import TorchTraining
from tests.torch.fake_nccl import FakeNccl
from tests.torch.members import joined, parameters, places, together
from tests.torch.test_torch_collective import STEPS, broadcast, equal, mini_batches, train

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeNccl]]:
    """Groups of members are of NCCL."""
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", FakeNccl)
    monkeypatch.setattr("edl_workflows.training.frameworks.torch_collective.choose_group", NcclGroup)
    monkeypatch.setattr(FakeNccl, "made", [])
    monkeypatch.setattr(FakeNccl, "connects", threading.Event())
    FakeNccl.connects.set()
    yield FakeNccl
    FakeNccl.connects.set()


def alone(steps: range) -> list[float]:
    """Losses of one member."""
    return [one.loss for one in train(joined(1), steps)[0]]


def test_the_same_training() -> None:
    """Losses equal those of one member, and the members agree."""
    expected = alone(range(STEPS))
    members = joined(3)
    broadcast(members)
    results = train(members, range(STEPS))

    assert all(isinstance(one._group, NcclGroup) for one in members)
    assert [one.loss for one in results[0]] == pytest.approx(expected, abs=1e-5)
    assert all(equal(parameters(one), parameters(members[0])) for one in members)


def breaks(member: TorchTraining, step: int, rank: int, size: int) -> str:
    """Why a member's step fails."""
    with pytest.raises(UnavailableError) as broken:
        member.step(mini_batches(step, rank, size), Wishes())
    return str(broken.value)


def test_a_member_is_lost_and_the_others_go_on() -> None:
    """After a loss, the step of the others waits. The interrupt aborts the communicator, whose operations
    then complete with garbage. No member updates its model, and the next group repeats the step."""
    expected = alone(range(STEPS))
    members = joined(3)
    broadcast(members)
    made = [one.loss for one in train(members, range(4))[0]]
    before = parameters(members[0])
    survivors = members[:2]

    def interrupt() -> str:
        while not all(one.waiting() for one in survivors):
            time.sleep(0.01)
        for one in survivors:
            one.interrupt(1)
        return ""

    works = [lambda rank=rank: breaks(survivors[rank], 4, rank, 3) for rank in range(2)]
    assert together([*works, interrupt]) == ["version 1 is over", "version 1 is over", ""]
    assert all(equal(parameters(one), before) for one in survivors)
    while sum(group.aborted for group in FakeNccl.made) < 2:
        time.sleep(0.01)
    again = places(2, version=2)
    together([lambda one=one, at=at: one.regroup(at) for one, at in zip(survivors, again, strict=True)])  # type: ignore[misc]
    results = train(survivors, range(4, STEPS))

    assert [*made, *(one.loss for one in results[0])] == pytest.approx(expected, abs=1e-5)
    assert all(equal(parameters(one), parameters(survivors[0])) for one in survivors)


def test_a_group_that_is_over_while_it_forms() -> None:
    """If the group is over while it forms, the communicator under construction is aborted, and no member
    waits for it."""
    FakeNccl.connects.clear()
    group = NcclGroup(places(1)[0], CPU)

    def interrupt() -> str:
        while not FakeNccl.made:
            time.sleep(0.01)
        group.interrupt("a member was lost")
        return ""

    def form() -> str:
        with pytest.raises(UnavailableError) as over:
            group.form()
        return str(over.value)

    assert together([form, interrupt]) == ["a member was lost", ""]
    while not FakeNccl.made[0].aborted:
        time.sleep(0.01)


def test_a_process_that_ends_disconnects() -> None:
    """At the end, the present group is shut down, so that the others get what was sent to them. A group in
    which an operation still waits is aborted, and so was the one that was replaced."""
    members = joined(2)
    again = places(2, version=2)
    together([lambda one=one, at=at: one.regroup(at) for one, at in zip(members, again, strict=True)])  # type: ignore[misc]
    former, present = FakeNccl.made[:2], FakeNccl.made[2:]
    for one in members:
        one.close()

    assert [(group.aborted, group.shut) for group in former] == [(True, False)] * 2
    assert [(group.aborted, group.shut) for group in present] == [(False, True)] * 2

    group = NcclGroup(places(1)[0], CPU)
    group.form()
    FakeNccl.made[-1]._size = 2  # of another member, nothing comes
    group.all_reduce(torch.zeros(1))
    group.leave()
    assert (FakeNccl.made[-1].aborted, FakeNccl.made[-1].shut) == (True, False)


@pytest.mark.parametrize("on", [True, False])
def test_the_flight_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    """If the flight recorder is on, the last operations are written before the abort, to the file that
    PyTorch's variable names."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "200" if on else "0")
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "trace-"))
    monkeypatch.setattr(nccl_group, "_dump_trace", lambda: b"operations")
    members = joined(2)

    def interrupt() -> str:
        while not members[1].waiting():
            time.sleep(0.01)
        members[1].interrupt(1)
        return ""

    together([lambda: breaks(members[1], 0, 1, 2), interrupt])
    while not FakeNccl.made[1].aborted and not FakeNccl.made[0].aborted:
        time.sleep(0.01)
    written = [file.read_bytes() for file in tmp_path.iterdir()]

    assert written == ([b"operations"] if on else [])
    assert not on or (tmp_path / "trace-1").exists()


def test_which_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on NVIDIA's GPUs uses NCCL if PyTorch has it, otherwise Gloo."""
    (place,) = places(1)
    assert type(choose_group(place, CPU)) is GlooGroup
    for available in (True, False):
        monkeypatch.setattr(distributed, "is_nccl_available", lambda available=available: available)
        chosen = choose_group(place, torch.device("cuda", 0))
        assert type(chosen) is (NcclGroup if available else GlooGroup)
