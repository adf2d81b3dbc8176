"""The ends of epochs of a collective job: the loop, validation, early stop, the best checkpoint."""

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.exceptions import CheckpointError, InvalidError, UnavailableError
from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.tensors import State
from edl_workflows.training.collective.epochs import EpochEnds, of_numbers, to_numbers
from edl_workflows.training.collective.framework import Reduced, Saving, Wishes
from edl_workflows.training.collective.regrouping import NOTHING_YET, Place, Progress
from edl_workflows.training.collective.world import World, training
from edl_workflows.training.data.sampler import Dataset, ElasticSampler
from edl_workflows.training.frameworks.saved_model import open_model
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import FakeMaster, eventually, world

DATASET = Dataset(size=60, batch_size=10, num_epochs=4)
STEPS = 2
"""Of an epoch, with a global batch of 40."""


class OneNumber:
    """An adapter for a member that is alone: its model is the number of its steps."""

    def __init__(self) -> None:
        self.model = 0.0

    def join(self, place: Place) -> None:
        """Nobody else is there."""

    def state(self, step: int, metadata: Mapping[str, str]) -> State:
        import numpy as np

        return State.of(step, {"model": np.array([self.model])}, metadata)

    def load(self, tensors: Mapping[str, Any]) -> None:
        self.model = float(tensors["model"][0])

    def broadcast(self, numbers: Sequence[int]) -> list[int]:
        return [int(float(number)) for number in numbers]  # as an adapter that sends 64-bit floats

    def step(self, mini_batches: Sequence[Any], wishes: Wishes) -> Reduced:
        self.model += 1
        return Reduced(0.5, wishes)

    def meet(self) -> None:
        """Nobody else is there."""


@pytest.fixture
def start(master: FakeMaster, connected: Callable[[int], Job], tmp_path: Path) -> Any:
    """Starts a process of the job in a version of its own."""
    versions = iter(range(1, 10))

    def start(dataset: Dataset = DATASET, framework: OneNumber | None = None) -> Any:
        version = next(versions)
        master.say(active=world(version, (0,)), next=None, drain=False, save="")
        saving = Saving(CheckpointStore(tmp_path), every_seconds=None)
        return training(connected(version), framework or OneNumber(), dataset, saving)

    return start


class Interrupted(Exception):  # noqa: N818 - no error: what the test wants
    """The end of a process in the middle of its training."""


def save_and_die(run: World) -> None:
    """The end of a process after a checkpoint."""
    run.job.checkpoint(stored=True)
    raise Interrupted


def train_epoch(run: World) -> int:
    """Train what is left of an epoch; the number of steps."""
    return len([run.step(mini_batches) for mini_batches in run])


def test_an_epoch_is_a_turn_of_the_loop(start: Any, master: FakeMaster) -> None:
    """Epochs are counted from 1, and the iteration over the run ends with each. Metrics are reported."""
    with start() as run:
        turns = [(epoch, train_epoch(run), run.validate(lambda: {"val_loss": 0.5})) for epoch in run.epochs()]
    assert turns == [(epoch, STEPS, {"val_loss": 0.5}) for epoch in (1, 2, 3, 4)]
    assert eventually(lambda: master.got(StepReport, step=STEPS * 4))[-1].metrics["val_loss"] == 0.5


def test_without_validation(start: Any) -> None:
    """A loop over epochs needs no validation."""
    with start() as run:
        assert [train_epoch(run) for _ in run.epochs()] == [STEPS] * 4


def test_the_best_checkpoint_stays_beside_the_newest(start: Any, tmp_path: Path) -> None:
    """The model of the best epoch is the only checkpoint in the folder `best`; the newest is that of the
    end. A value that is not a number is never the best."""
    curve = iter([0.7, 0.3, math.nan, 0.4])
    with start() as run:
        seen = []
        for _ in run.epochs():
            train_epoch(run)
            run.validate(lambda: {"val_loss": next(curve), "accuracy": 1.0}, "val_loss")
            seen.append(run.epochs_since_best)
    assert seen == [0, 0, 1, 2]
    best = open_model(tmp_path / "best")
    assert (best.checkpoint.step, best.tensors["model"].tolist()) == (2 * STEPS, [4.0])
    assert [path.name for path in (tmp_path / "best").iterdir()] == [best.folder.name]
    assert open_model(tmp_path).checkpoint.step == 4 * STEPS


def saved_ends(folder: Path) -> dict[str, Any]:
    """The ends of epochs in the metadata of the only checkpoint in a folder."""
    (file,) = folder.glob("*/*.safetensors")
    header = file.read_bytes()
    size = int.from_bytes(header[:8], "little")
    return dict(json.loads(json.loads(header[8 : 8 + size])["__metadata__"]["epochs"]))


def test_the_best_checkpoint_says_what_made_it_the_best(start: Any, tmp_path: Path) -> None:
    """Its metadata is that of the end of its own epoch, also after a restart between the last step of an
    epoch and its end; a training that begins with it goes on with the next epoch."""

    def train(run: World, lost_in: int, lost: Callable[[World], object], losses: Sequence[float]) -> None:
        for epoch in run.epochs():
            train_epoch(run)
            if epoch == lost_in:
                lost(run)
            run.validate(lambda: {"val_loss": losses[epoch]})  # noqa: B023 - called at once

    def die(_run: World) -> None:
        raise Interrupted

    with pytest.raises(Interrupted), start() as run:
        train(run, 2, save_and_die, [1.0, 0.75])
    expected = {"stopped": False, "ended": 1, "value": 0.75, "best": 0.75, "best_epoch": 1}
    assert saved_ends(tmp_path / "best") == expected
    with pytest.raises(Interrupted), start() as run:
        train(run, 3, die, [1.0, 0.75, 0.5])
    expected = {"stopped": False, "ended": 2, "value": 0.5, "best": 0.5, "best_epoch": 2}
    assert saved_ends(tmp_path / "best") == expected

    for checkpoint in tmp_path.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    (best,) = (tmp_path / "best").iterdir()
    best.rename(tmp_path / best.name)
    with start() as run:
        assert [(epoch, train_epoch(run)) for epoch in run.epochs()] == [(3, STEPS), (4, STEPS)]
    assert (run.best, run.epochs_since_best) == (0.5, 2)


def test_a_metric_may_be_maximized(start: Any, tmp_path: Path) -> None:
    """`maximize` is for metrics such as accuracy."""
    curve = iter([0.7, 0.9, 0.8, 0.8])
    with start() as run:
        for _ in run.epochs():
            train_epoch(run)
            run.validate(lambda: {"accuracy": next(curve)}, maximize=True)
    assert run.epochs_since_best == 2
    assert open_model(tmp_path / "best").checkpoint.step == 2 * STEPS


def test_a_training_that_was_left_early_is_over(start: Any) -> None:
    """After an early stop, a process that starts again, such as when the last one was lost while it ended,
    trains nothing, however often: its own last checkpoint says so, too."""
    for expected in ([1, 2], [], []):
        epochs = []
        with start() as run:
            for epoch in run.epochs():
                train_epoch(run)
                run.validate(lambda: {"val_loss": 1.0})
                epochs.append(epoch)
                if run.epochs_since_best >= 1:
                    break
        assert epochs == expected


class Follower(OneNumber):
    """An adapter for a member that gets the numbers of another rank 0 in place of its own."""

    def __init__(self, of_rank_0: Mapping[float, float]) -> None:
        super().__init__()
        self.of_rank_0 = {str([*to_numbers(own)]): to_numbers(other) for own, other in of_rank_0.items()}

    def broadcast(self, numbers: Sequence[int]) -> list[int]:
        return super().broadcast(self.of_rank_0.get(str([*numbers]), numbers))


def test_the_metrics_of_rank_0_count(start: Any, tmp_path: Path) -> None:
    """All members get the metrics of rank 0, and agree on the best epoch."""
    own = iter([0.5, 0.75, 0.5, 0.5])
    with start(framework=Follower({0.5: 0.25, 0.75: 0.125})) as run:
        returned = []
        for _ in run.epochs():
            train_epoch(run)
            returned.append(run.validate(lambda: {"val_loss": next(own)})["val_loss"])
    assert returned == [0.25, 0.125, 0.25, 0.25]
    assert (run.best, run.epochs_since_best) == (0.125, 2)
    assert open_model(tmp_path / "best").checkpoint.step == 2 * STEPS


@pytest.mark.parametrize("decision", [False, True])
def test_the_decision_of_rank_0_to_stop_counts(start: Any, decision: bool) -> None:
    """All members end training with the same epoch, even where one, such as by its own clock, would decide
    something else. A process that starts again trains nothing."""
    asked: list[dict[str, float]] = []

    def stop(metrics: Mapping[str, float]) -> bool:
        asked.append(dict(metrics))
        return not decision

    for turns in ([1] if decision else [1, 2, 3, 4], []):
        epochs = []
        with start(framework=Follower({0.0: decision, 1.0: decision})) as run:
            for epoch in run.epochs():
                train_epoch(run)
                run.validate(lambda: {"val_loss": 0.5}, stop=stop)
                epochs.append(epoch)
        assert epochs == turns
    assert asked == [{"val_loss": 0.5}] * (1 if decision else 4)


@pytest.mark.parametrize(("saved_after", "expected"), [("the last step", 1), ("validation", 2)])
def test_a_process_goes_on_where_the_checkpoint_is(start: Any, saved_after: str, expected: int) -> None:
    """A checkpoint after the last step of an epoch is before its end: the epoch is validated again, but not
    trained. The best value so far is known after a restart."""

    def train(run: World) -> None:
        for _ in run.epochs():
            train_epoch(run)
            if saved_after == "validation":
                run.validate(lambda: {"val_loss": 0.25})
            save_and_die(run)

    with pytest.raises(Interrupted), start() as run:
        train(run)
    with start() as run:
        turns = []
        for epoch in run.epochs():
            turns.append((epoch, train_epoch(run)))
            run.validate(lambda: {"val_loss": 0.5})
    assert turns == [(1, 0), (2, STEPS), (3, STEPS), (4, STEPS)][expected - 1 :]
    assert run.epochs_since_best == 3


def test_a_checkpoint_without_epochs(start: Any) -> None:
    """A program whose earlier version did not loop over epochs continues with the epoch of its position."""

    def train(run: World) -> None:
        for mini_batches in run:
            run.step(mini_batches)
            if run.global_step > STEPS:
                save_and_die(run)

    with pytest.raises(Interrupted), start() as run:
        train(run)
    with start() as run:
        assert [(epoch, train_epoch(run)) for epoch in run.epochs()] == [(2, 1), (3, STEPS), (4, STEPS)]


class Broken(OneNumber):
    """An adapter for a group that breaks at the end of an epoch, and can't form another one."""

    def meet(self) -> None:
        raise UnavailableError("a member was lost")


def test_a_group_that_breaks_while_it_validates(start: Any) -> None:
    """A process that can't form another group exits, as from a step."""
    validated, ended = list[int](), list[int]()

    def train() -> None:
        with start(framework=Broken()) as run:

            def evaluate() -> dict[str, float]:
                validated.append(run.global_step)
                run.job.terminate()  # the master would name another version
                return {"val_loss": 0.5}

            for epoch in run.epochs():
                train_epoch(run)
                run.validate(evaluate)
                ended.append(epoch)

    with pytest.raises(SystemExit):
        train()
    assert (validated, ended) == ([STEPS], [])


class Guarding(OneNumber):
    """An adapter of a replica group that has lost a member: errors end the process as one of a lost group."""

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        with pytest.raises(RuntimeError):
            yield
        raise SystemExit(CLUSTER_LOST_EXIT_CODE)


def test_a_replica_group_that_breaks_while_it_validates(start: Any) -> None:
    """The processes of a replica group compute a validation together. If one is lost, the error of the others
    is treated as in a step."""

    def evaluate() -> dict[str, float]:
        raise RuntimeError("connection closed by peer")

    def train() -> None:
        with start(framework=Guarding()) as run:
            for _ in run.epochs():
                train_epoch(run)
                run.validate(evaluate)

    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == CLUSTER_LOST_EXIT_CODE


def test_what_validate_refuses(start: Any) -> None:
    """Outside of an epoch's end, twice, and without a metric that decides."""
    with start() as run:
        for loss in run.epochs():
            for metrics, monitor, error in (
                ({"val_loss": loss}, "", "at the end of each epoch"),
                ({"val_loss": loss, "accuracy": 0.5}, "", "name the metric"),
                ({"val_loss": loss}, "loss", "not loss"),
            ):
                with pytest.raises(InvalidError, match=error):
                    run.validate(partial(dict, metrics), monitor)
                if not run.global_step:
                    train_epoch(run)
            run.validate(lambda: {"val_loss": 0.5})
            with pytest.raises(InvalidError, match="once at the end"):
                run.validate(lambda: {"val_loss": 0.5})
            break


def test_an_epoch_is_trained_to_its_end(start: Any) -> None:
    """A program that leaves out records of an epoch is told so."""
    with pytest.raises(InvalidError, match="epoch 1 has more records"), start() as run:
        list(run.epochs())


@given(st.floats(width=64))
def test_numbers_are_sent_exactly(value: float) -> None:
    """Even by an adapter that sends whole numbers as 64-bit floating point."""
    received = of_numbers([int(float(number)) for number in to_numbers(value)])
    assert received == value or (math.isnan(value) and math.isnan(received))


@given(st.builds(EpochEnds, *[st.integers(0, 2**40), st.booleans(), st.floats(allow_nan=False).filter(bool)]))
def test_progress_is_sent_and_saved(ends: EpochEnds) -> None:
    """Progress and ends survive a broadcast, and a checkpoint's metadata."""
    progress = Progress(7, 2, 40, ends)
    received = Progress.of_numbers(progress.to_numbers())
    assert (received[:3], str(received.ends)) == (progress[:3], str(ends))  # as text, nan equals nan
    saved = json.loads(json.dumps(ends.__dict__))
    assert str(EpochEnds.of_saved(saved, "here")) == str(ends)
    assert (progress.events, NOTHING_YET.events) == (7 + ends.ended, -1)
    with pytest.raises(CheckpointError, match="which epochs"):
        EpochEnds.of_saved({"unknown": 1}, "here")


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 64), st.integers(1, 6), st.integers(1, 6))
def test_a_global_batch_depends_on_no_number_of_workers(
    size: int, batch_size: int, global_batch: int, most: int, members: int
) -> None:
    """With `global_batch`, a step has so many records whatever `maxNodes` and the number of members are, in
    mini-batches of at most `batch_size`, and each record is trained once an epoch."""
    dataset = Dataset(size, batch_size, global_batch=global_batch)
    if most > -(-global_batch // batch_size):
        with pytest.raises(InvalidError, match=f"maxNodes is {most}"):
            ElasticSampler(dataset, most)
        return
    sampler, trained = ElasticSampler(dataset, most), list[int]()
    members = min(members, most)
    while not sampler.done:
        batches = [batch for rank in range(members) for batch in sampler.mini_batches(rank, members)]
        records = [record for batch in batches for record in batch]
        assert len(records) == min(global_batch, size - len(trained)) == sampler.batch_records
        assert max(map(len, batches)) <= batch_size
        trained += records
        sampler.advance()
    assert sorted(trained) == list(range(size))
