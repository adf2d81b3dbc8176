"""The data loader of collective jobs: what workers read ahead is never lost and never trained twice."""

import collections
import os
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.training.collective.world import World
from edl_workflows.training.data.sampler import Dataset, ElasticSampler
from edl_workflows.training.data.torch_data import ElasticDataLoader
from tests.docs.torch_data import train

MOST = 4
Turn = tuple[int, bool]
"""Number of members in a turn, and whether its step is made."""


class Member:
    """The training of one member, whose group changes before any turn, and whose steps may fail.

    Args:
        dataset: the data.
        rank: of the member; the last one if there are fewer members.
        turns: what happens, again from the start at the end.
    """

    def __init__(self, dataset: Dataset, rank: int, turns: Sequence[Turn]) -> None:
        self.sampler = ElasticSampler(dataset, MOST)
        self._rank, self._turns, self.turn = rank, turns, 0
        self.wanted: list[list[int]] = []

    @property
    def _place(self) -> tuple[int, int]:
        members, _ = self._turns[self.turn % len(self._turns)]
        return min(self._rank, members - 1), members

    @property
    def steps_left(self) -> int:
        """As of `World`."""
        return self.sampler.count_steps_left()

    def upcoming(self) -> Iterator[tuple[Sequence[int], ...]]:
        """As of `World`."""
        return self.sampler.upcoming(*self._place)

    def step(self, mini_batches: Sequence[dict[str, torch.Tensor]]) -> None:
        """As of `World`; the records must be those of the turn."""
        assert [batch["index"].tolist() for batch in mini_batches] == self.wanted

    def __iter__(self) -> Iterator[tuple[Sequence[int], ...]]:
        """Turns until all steps are made."""
        while not self.sampler.done:
            batches = self.sampler.mini_batches(*self._place)
            self.wanted = [list(one) for one in batches if len(one)]
            yield batches
            if self._turns[self.turn % len(self._turns)][1]:
                self.sampler.advance()
            self.turn += 1


class Squares(torch.utils.data.Dataset):  # type: ignore[misc]  # no types in the environment of the checks
    """Each record says its index, its square and the process that read it."""

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"index": index, "square": index**2, "process": os.getpid()}


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 60),
    batch_size=st.integers(1, 4),
    rank=st.integers(0, MOST - 1),
    turns=st.lists(st.tuples(st.integers(1, MOST), st.booleans()), min_size=1, max_size=8).filter(
        lambda turns: any(made for _, made in turns)
    ),
)
def test_each_turn_gets_its_records(size: int, batch_size: int, rank: int, turns: list[Turn]) -> None:
    """However the members change and whichever steps are repeated, each turn gets the records of the job's
    position, and the training ends."""
    member = Member(Dataset(size, batch_size, num_epochs=2), rank, turns)
    loader, steps = ElasticDataLoader(member, Squares()), 0
    expected = len(loader)
    for loaded in loader:
        assert [batch["index"].tolist() for batch in loaded] == member.wanted
        steps += turns[member.turn % len(turns)][1]
        assert len(loader) == expected - steps + turns[member.turn % len(turns)][1]
    assert member.sampler.records_done == 2 * size
    assert (steps, len(loader)) == (expected, 0)


def test_an_endless_training_has_no_length() -> None:
    """As a loader over an iterable data set."""
    loader = ElasticDataLoader(Member(Dataset(20, 2, num_epochs=0), 0, [(1, True)]), Squares())
    with pytest.raises(TypeError, match="endless"):
        len(loader)


def test_workers_read_ahead_through_changes() -> None:
    """With worker processes, which are kept, steps are repeated and members are added and removed. Together
    the steps have each record of each epoch once."""
    dataset = Dataset(500, 5, num_epochs=2)
    turns = [(2, True)] * 5 + [(2, False), (1, True), (1, True), (1, False), (3, True)] + [(4, True)] * 4
    members = [Member(dataset, rank, turns) for rank in range(MOST)]
    seen: collections.Counter[int] = collections.Counter()
    main, processes = os.getpid(), set()
    for rank, member in enumerate(members):
        for turn, loaded in enumerate(ElasticDataLoader(member, Squares(), num_workers=2, prefetch_factor=3)):
            assert [batch["index"].tolist() for batch in loaded] == member.wanted
            assert all(torch.equal(batch["square"], batch["index"] ** 2) for batch in loaded)
            processes |= {(rank, int(one)) for batch in loaded for one in batch["process"]}
            size, made = turns[turn % len(turns)]
            if made and rank < size:
                seen.update(index for records in member.wanted for index in records)

    assert seen == dict.fromkeys(range(500), 2)
    assert main not in {process for _, process in processes}
    assert len(processes) <= 2 * MOST


def test_the_documented_loop() -> None:
    """The loop in the documentation trains to the end."""
    member = Member(Dataset(40, 2), 1, [(2, True), (3, False), (3, True)])
    train(cast("World", member), Squares())

    assert member.sampler.done


def test_the_model_s_random_numbers_stay() -> None:
    """When a loader starts again, it does not use the random numbers of dropout."""
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    for _ in ElasticDataLoader(Member(Dataset(20, 2), 0, [(1, True), (2, False)]), Squares()):
        pass

    assert torch.equal(torch.rand(4), expected)


def test_options_about_records_are_refused() -> None:
    """The error for options about records names them and where to set them instead."""
    member = Member(Dataset(20, 2), 0, [(1, True)])
    with pytest.raises(InvalidError, match=r"batch_size, shuffle: the job decides .*Dataset"):
        ElasticDataLoader(member, Squares(), batch_size=4, shuffle=True)
