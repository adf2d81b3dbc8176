"""Members that hold the model together: two replica groups of two processes each, with ``fully_shard``."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed
from torch.multiprocessing import spawn

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE
from edl_workflows.training.checkpoints.checkpoint_parts import Part
from edl_workflows.training.checkpoints.tensor_parts import assemble
from edl_workflows.training.checkpoints.tensors import load
from edl_workflows.training.collective.framework import ReplicaFramework, Wishes
from edl_workflows.training.collective.gloo_group import serve_store
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.frameworks.torch_collective import TorchTraining
from edl_workflows.training.frameworks.torch_replica import ReplicaGroup, join_replica_group
from tests.torch.members import SECONDS, network, places, records
from tests.torch.replica_ranks import (
    RANKS,
    SIZE,
    STEPS,
    LostError,
    free_addresses,
    job_of,
    run_rank,
    whole_state,
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the ranks have written."""
    folder = tmp_path_factory.mktemp("ranks")
    spawn(run_rank, (str(folder), free_addresses(RANKS)), nprocs=RANKS)
    return folder


def read(folder: Path, name: str) -> list[Any]:
    """What each rank has written."""
    return [json.loads((folder / f"{name}-{rank}").read_text()) for rank in range(RANKS)]


def alone(steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and parameters of one member that computes all records with the whole model."""
    parts = network(0)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(parts.model.parameters(), 1.0)
        parts.optimizer.step()

    member = TorchTraining(lambda: replace(parts, update=update, more=None))
    (place,) = places(1)
    member.join(Place(1, 0, place.addresses))
    x, y = records(12)
    losses = [member.step([{"x": x, "y": y}], Wishes()).loss for _ in range(steps)]
    return losses, {f"model/{name}": one for name, one in parts.model.state_dict().items()}


def test_groups_train_as_one_member_with_the_whole_model(ranks: Path) -> None:
    """Losses and parameters equal those of a training that is not sharded, and are the same in all ranks. One
    rank has no records in a step, and one group has more than the other."""
    losses, parameters = alone(STEPS)

    for found, state in read(ranks, "trained"):
        assert found == pytest.approx(losses, abs=1e-6)
        for name, value in parameters.items():
            torch.testing.assert_close(torch.tensor(state[name]), value, atol=1e-6, rtol=1e-5)


def test_a_group_makes_a_step_as_a_whole(ranks: Path) -> None:
    """One rank did not get its sums. No rank of its group updates its parameters and averages; the ranks of
    the other group do."""
    outcomes = read(ranks, "broken")

    assert [bool(why) for why, _ in outcomes] == [False, False, True, True]
    assert [unchanged for _, unchanged in outcomes] == [False, False, True, True]
    assert outcomes[3][0] == "a neighbour was lost"


def test_a_group_that_is_behind_gets_the_shards_of_the_other(ranks: Path) -> None:
    """In the next version the groups compare their steps, the one behind gets the other's shards, and both
    end with the same state."""
    assert read(ranks, "compared") == [[STEPS + 1, STEPS]] * RANKS
    states = [state for _, state in read(ranks, "restored")]
    assert all(state == states[0] for state in states)
    assert states[0] != read(ranks, "trained")[0][1]


def test_shards_are_copied_beside_a_step(ranks: Path) -> None:
    """A device that copies by itself copies each rank's part of the shards. The update of the step beside it
    waits for the copies, so that all values are those from before the step."""
    for count, equal, begun in read(ranks, "beside"):
        assert count > 0
        assert (equal, begun) == (True, 1)


def test_each_rank_restores_its_shards(ranks: Path) -> None:
    """Each rank restores its shards from the parts of all ranks, through the device's registered memory, into
    a model and an optimizer without values."""
    assert all(equal for equal, _ in read(ranks, "restored"))


def test_one_process_restores_the_whole_model(ranks: Path) -> None:
    """A single process without groups restores the whole model from the parts that the two groups saved."""
    parts = [load(ranks / Part(rank, RANKS).file) for rank in range(RANKS)]
    member = TorchTraining(lambda: replace(network(1), more=None))
    member.prepare()
    member.load(assemble(parts, "here").tensors)

    assert whole_state(member) == read(ranks, "restored")[0][1]


@pytest.fixture
def addresses() -> list[str]:
    """Where a group of two listens."""
    return free_addresses(SIZE)


@pytest.fixture(params=["0", "1"], ids=["threads run at once", "threads run a second later"])
def start(
    request: pytest.FixtureRequest, addresses: list[str]
) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """Starts a process of a group of two whose version has not begun."""
    running: list[subprocess.Popen[str]] = []

    def begin(rank: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.torch.replica_process", request.param, str(rank)]
        command += addresses
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("killed", range(SIZE))
def test_a_group_starts_again_as_a_whole(start: Callable[[int], subprocess.Popen[str]], killed: int) -> None:
    """A process is killed before its version begins, and its agent starts it again. The other process of the
    group ends as well, without blame, instead of waiting for it. Then they form their group."""
    members = [start(rank) for rank in range(SIZE)]
    assert [joined(member) for member in members] == ["joined as 0\n", "joined as 1\n"]
    members[killed].kill()
    if killed == 1:  # index 0 has the group's store, so its end is noticed at once
        assert start(1).wait(SECONDS) == CLUSTER_LOST_EXIT_CODE
    assert members[1 - killed].wait(SECONDS) == CLUSTER_LOST_EXIT_CODE

    again = [start(rank) for rank in range(SIZE)]
    assert [joined(member) for member in again] == ["joined as 0\n", "joined as 1\n"]


def test_a_group_whose_store_is_lost_while_it_forms_starts_again(
    start: Callable[[int], subprocess.Popen[str]], addresses: list[str]
) -> None:
    """Index 0 is lost while another process is waiting for the group to form. That one ends without blame."""
    host, port = addresses[0].split(":")
    store = serve_store(host, int(port))
    member = start(1)
    distributed.PrefixStore("replica-1", store).wait(["arrived-1"], timedelta(seconds=SECONDS))
    del store
    assert member.wait(SECONDS) == CLUSTER_LOST_EXIT_CODE


def joined(member: subprocess.Popen[str]) -> str:
    """What a process says when it has joined its group."""
    assert member.stdout is not None
    return member.stdout.readline()


@pytest.mark.parametrize(
    ("size", "workers", "most", "why"),
    [
        (1, 4, 4, "set spec.rendezvous.nodeUnit"),
        (2, 3, 4, r"the present members \(3\) do not make whole replica groups of 2"),
        (2, 4, 5, r"maxNodes \(5\) do not make whole replica groups of 2"),
    ],
)
def test_what_makes_no_groups_is_refused(size: int, workers: int, most: int, why: str) -> None:
    """Workers that do not make whole groups are an error that names the fields of the job to change."""
    job = job_of(0, ["127.0.0.1:1"] * workers, max_workers=most, size=size)
    with pytest.raises(InvalidError, match=why):
        join_replica_group(job)


def test_an_error_in_a_validation_of_a_group_is_one_of_the_group() -> None:
    """Where a process of the group may be lost, an error of PyTorch outside of a step, too, is no blame."""
    mesh: Any = SimpleNamespace(size=lambda: SIZE, get_local_rank=lambda: 0)
    member = TorchTraining(lambda: network(0))
    assert isinstance(member, ReplicaFramework)
    with pytest.raises(RuntimeError, match="a bug"), member.guarding():
        raise RuntimeError("a bug")
    member._replica = ReplicaGroup(job_of(0, ["127.0.0.1:1"] * RANKS), mesh)
    with pytest.raises(LostError, match="connection closed"), member.guarding():
        raise RuntimeError("connection closed")


def test_parameters_must_be_sharded_over_the_group() -> None:
    """A parameter that is not sharded is an error, since the processes of a group would train it
    differently."""
    parts = network(0)

    replica: Any = SimpleNamespace(mesh="of two processes", size=SIZE)
    member = TorchTraining(lambda: replace(parts, replica=replica))
    with pytest.raises(InvalidError, match="4 of 4 trained parameters are not sharded"):
        member.prepare()
