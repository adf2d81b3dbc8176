"""Laws of the elastic sampler: which records the members of a collective job train on while their number
changes."""

import collections
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.training.data.sampler import Dataset, ElasticSampler

MOST = 6


def make_dataset(batch_size: int, beyond: int, **fields: Any) -> Dataset:
    """A data set whose global batch, if it has one, has mini-batches for `MOST` members."""
    global_batch = (MOST - 1) * batch_size + beyond if beyond else 0
    return Dataset(batch_size=batch_size, global_batch=global_batch, **fields)


datasets = st.builds(
    make_dataset,
    size=st.integers(1, 200),
    batch_size=st.integers(1, 9),
    beyond=st.integers(0, 20),
    num_epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
)
worlds = st.lists(st.integers(1, MOST), min_size=1, max_size=8)
"""Numbers of members, step after step, again from the start at the end."""


def step(sampler: ElasticSampler, members: int) -> list[list[int]]:
    """The mini-batches of the next step, of all members in the order of their ranks."""
    return [list(batch) for rank in range(members) for batch in sampler.mini_batches(rank, members)]


@settings(max_examples=60, deadline=None)
@given(dataset=datasets, worlds=worlds)
def test_each_record_once_in_an_epoch(dataset: Dataset, worlds: list[int]) -> None:
    """However the number of members changes between steps, each epoch has each record exactly once."""
    sampler = ElasticSampler(dataset, MOST)
    seen: collections.Counter[tuple[int, int]] = collections.Counter()
    for members in itertools.cycle(worlds):
        if sampler.done:
            break
        seen.update((sampler.epoch, record) for batch in step(sampler, members) for record in batch)
        sampler.advance()

    assert seen.keys() == {(e, r) for e in range(1, dataset.num_epochs + 1) for r in range(dataset.size)}
    assert set(seen.values()) == {1}
    assert sampler.records_done == dataset.num_epochs * dataset.size


@settings(max_examples=60, deadline=None)
@given(dataset=datasets, members=st.integers(1, MOST))
def test_batch_is_the_same_for_any_number_of_members(dataset: Dataset, members: int) -> None:
    """For any number of members, each step has the same mini-batches in the same order, and their sizes
    differ by at most one record."""
    alone, together = ElasticSampler(dataset, MOST), ElasticSampler(dataset, MOST)
    while not alone.done:
        batches = step(alone, 1)
        assert batches == step(together, members)
        sizes = [len(batch) for batch in batches]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == alone.batch_records
        alone.advance()
        together.advance()
    assert together.done


@settings(max_examples=60, deadline=None)
@given(dataset=datasets, made=st.integers(0, 30), members=st.integers(1, MOST))
def test_state_round_trip(dataset: Dataset, made: int, members: int) -> None:
    """A sampler that loads another's state, as JSON, continues with the same records."""
    one = ElasticSampler(dataset, MOST)
    for _ in range(made):
        one.advance()
    other = ElasticSampler(dataset, MOST)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))

    assert other.state_dict() == one.state_dict()
    assert other.done == one.done
    assert step(other, members) == step(one, members)


@settings(max_examples=60, deadline=None)
@given(dataset=datasets, made=st.integers(0, 30), members=st.integers(1, MOST), data=st.data())
def test_upcoming_steps_are_those_that_come(
    dataset: Dataset, made: int, members: int, data: st.DataObject
) -> None:
    """The records that a member may read ahead are those that it gets while the members stay the same, to the
    end of the last epoch. Reading ahead does not change the position."""
    sampler = ElasticSampler(dataset, MOST)
    for _ in range(made):
        sampler.advance()
    rank, before = data.draw(st.integers(0, members - 1)), sampler.state_dict()
    ahead = [[list(batch) for batch in step] for step in sampler.upcoming(rank, members)]
    left = [sampler.count_steps_left(epoch) for epoch in range(1, dataset.num_epochs + 1)]
    ends = dict.fromkeys(range(1, sampler.epoch), 0)
    assert sampler.count_steps_left() == len(ahead)
    assert sampler.state_dict() == before
    come = []
    while not sampler.done:
        come.append([list(batch) for batch in sampler.mini_batches(rank, members)])
        epoch = sampler.epoch
        sampler.advance()
        ends[epoch] = len(come)

    assert ahead == come
    assert left == list(ends.values())[: len(left)]


@given(dataset=datasets)
def test_steps_of_an_epoch(dataset: Dataset) -> None:
    """What a schedule of the learning rate takes: as many steps as the iteration gives."""
    sampler = ElasticSampler(dataset, MOST)
    assert dataset.count_steps(MOST) == sampler.count_steps_left(1)
    assert ElasticSampler(replace(dataset, num_epochs=0), MOST).count_steps_left() == -1


def test_place_survives_another_batch_size() -> None:
    """A job that continues with a larger maximum of workers, and so with larger batches, reads the rest of
    the epoch exactly once."""
    data = Dataset(size=100, batch_size=4)
    before = ElasticSampler(data, 2)
    seen = [record for batch in step(before, 2) for record in batch]
    before.advance()
    after = ElasticSampler(data, 5)
    after.load_state_dict(before.state_dict())
    while not after.done:
        seen += [record for batch in step(after, 3) for record in batch]
        after.advance()

    assert sorted(seen) == list(range(100))


def test_epochs_have_orders_of_their_own() -> None:
    """Shuffled epochs differ from each other and from those with another seed."""

    def order(seed: int, epoch: int) -> list[int]:
        sampler = ElasticSampler(Dataset(size=50, batch_size=50, num_epochs=3, seed=seed), 1)
        sampler.go_to(epoch, 0)
        return list(sampler.mini_batches(0, 1)[0])

    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (1, 2)}) == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": 99}, "use the same size, shuffle and seed"),
        ({"seed": 1}, "use the same size, shuffle and seed"),
        ({"shuffle": 0}, "use the same size, shuffle and seed"),
        ({"epoch": 0}, "position"),
        ({"epoch": "2"}, "position"),
        ({"completed": 100}, "position"),
        ({"completed": -1}, "position"),
        ({"completed": None}, "position"),
    ],
    ids=str,
)
def test_state_of_something_else_is_refused(change: dict[str, int | str], says: str) -> None:
    """A state for another order of records, or an invalid one, is rejected with a clear error, and the
    sampler does not change."""
    sampler = ElasticSampler(Dataset(size=100, batch_size=4), 2)
    sampler.advance()
    before = sampler.state_dict()
    with pytest.raises(InvalidError, match=says):
        sampler.load_state_dict({**before, **change})
    assert sampler.state_dict() == before


def test_more_members_than_mini_batches_are_refused() -> None:
    """With more members than mini-batches, some would have nothing to compute. The error says how many
    members are possible."""
    sampler = ElasticSampler(Dataset(size=100, batch_size=4), 2)
    with pytest.raises(InvalidError, match="3 workers can't share a batch of 2"):
        sampler.mini_batches(0, 3)
    with pytest.raises(InvalidError, match="rank 2 among 2"):
        sampler.mini_batches(2, 2)
    with pytest.raises(InvalidError, match="0 records"):
        Dataset(size=0, batch_size=4)
