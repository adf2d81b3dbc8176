"""A job with one member and without a master."""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.protocol.cluster import CheckpointRef, Member, TrainingCluster
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.tensors import Loaded, load, save
from edl_workflows.training.checkpoints.two_stages import TwoStages
from edl_workflows.training.collective.framework import Reduced, Wishes
from edl_workflows.training.collective.world import World
from edl_workflows.training.frameworks.torch_collective import TorchTraining
from edl_workflows.training.job import Job
from tests.torch.members import places


@dataclass
class JobAlone:
    """What a `World` asks of its `Job`.

    Attributes:
        max_workers: N, the mini-batches of a step.
        steps: (step, loss, records) that were reported.
        metrics: newest value of each reported metric.
        expected: records of all epochs.
        leave_at: the step after which it is asked to exit, as by SIGTERM.
    """

    max_workers: int
    steps: list[tuple[int, float, int]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    expected: int = 0
    leave_at: int = -1
    node = NodeRef(type="worker", id=0)
    name, version, preparing, replica_size = "alone", 1, False, 1

    def __post_init__(self) -> None:
        (place,) = places(1)
        self.environment = SimpleNamespace(
            listen_address=lambda _version: place.addresses[0], token="of-the-job"
        )
        member = Member(rank=0, id=0, address=place.addresses[0])
        self.cluster = TrainingCluster(version=1, workers=[member], max_workers=self.max_workers, chief_id=0)

    @property
    def as_job(self) -> Job:
        """For signatures that want one."""
        return cast("Job", self)

    def declare_one_model(self) -> None:
        """It has no other workers whose models could differ."""

    @property
    def active(self) -> bool:
        """Whether its version trains."""
        return True

    @property
    def is_chief(self) -> bool:
        """Whether it has rank 0."""
        return True

    @property
    def drain_requested(self) -> bool:
        """Whether another member comes."""
        return False

    @property
    def successor(self) -> TrainingCluster | None:
        """The version in which it goes on."""
        return None

    @property
    def newest_group_over(self) -> int:
        """As of `Job`."""
        return 0

    @property
    def terminated(self) -> bool:
        """Whether it is asked to exit."""
        return bool(self.steps) and self.steps[-1][0] == self.leave_at

    def follow_directive(self, changed: Callable[[], None]) -> None:
        """It does not change."""
        changed()

    def report_presence(self, waiting: Callable[[], float]) -> None:
        """To nobody."""

    def call_on_close(self, disconnect: Callable[[], None]) -> None:
        """It is not closed."""

    def wait_until_active(self, *, in_place: bool) -> None:
        """It is."""
        assert in_place

    def cluster_lost(self, reason: str) -> NoReturn:
        """Nobody can be lost."""
        raise AssertionError(reason)

    def start_from(self, store: CheckpointStore) -> CheckpointRef | None:
        """The newest one."""
        return store.newest()

    @contextlib.contextmanager
    def state(self, checkpoint: CheckpointRef, store: CheckpointStore) -> Iterator[Loaded]:
        """What was saved."""
        yield load(Path(checkpoint.uri) / STATE_FILE)

    def reserve_memory(self) -> None:
        """There is none."""

    def save_in_two_stages(self, options: TwoStages) -> None:
        """In one."""
        self._saves = options

    def should_checkpoint(self) -> bool:
        """Only at the end."""
        return False

    def checkpoint(self, *, stored: bool) -> None:
        """Save."""
        made = self._saves.state()
        self._saves.store.publish(made.step, lambda folder: save(folder, made))

    def save_last(self, *, always: bool) -> None:
        """Save."""
        self.checkpoint(stored=True)

    def expect_records(self, records: int) -> None:
        """Note them."""
        self.expected = records

    def report_step(self, step: int, loss: float, records: int) -> None:
        """Note it."""
        self.steps.append((step, loss, records))

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note them."""
        self.metrics |= metrics

    def close(self) -> None:
        """Nothing to tell."""

    @property
    def losses(self) -> list[float]:
        """Of the steps."""
        return [loss for _, loss, _ in self.steps]


def break_steps(monkeypatch: pytest.MonkeyPatch, repeated: set[int], received: set[int]) -> None:
    """Have the group break in the middle of these steps, as when another member dies.

    Args:
        monkeypatch: undoes it.
        repeated: steps that no member made, so that they are made again.
        received: steps that another member made and this one did not, so that it gets the state after them.
            Here it is the state of this member, which makes the step without being told so.
    """
    inner, made = TorchTraining.step, collections.Counter[int]()

    def step(self: TorchTraining, mini_batches: Sequence[Any], wishes: Wishes) -> Reduced:
        number = made[id(self)]  # 0 is the warm-up
        if number in repeated:
            repeated.remove(number)
            raise UnavailableError("a member was lost in the reduction")
        reduced = inner(self, mini_batches, wishes)
        made[id(self)] += 1
        if number in received:
            raise UnavailableError("a member was lost, after it had made the step")
        return reduced

    def go_on(self: World, _reason: str) -> None:
        self.step_made = False
        if made[id(self.framework)] - 1 > self.global_step:
            self._sampler.advance()
            self.global_step += 1

    monkeypatch.setattr(TorchTraining, "step", step)
    monkeypatch.setattr(World, "_go_on", go_on)
