"""The TensorFlow adapter of collective jobs without its group; that it trains with one is shown in
``tests/e2e/test_mirrored.py``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edl_workflows.core.exceptions import CheckpointError, InvalidError, UnavailableError
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.collective.regrouping import Place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(600),
]  # the import alone takes long

PLACE = Place(1, 0, ("127.0.0.1:1",))
EXAMPLE = {"x": np.zeros((2, 3), np.float32), "y": np.zeros(2, np.float32)}


@pytest.fixture(scope="module")
def adapter() -> Any:
    """The adapter's module, where TensorFlow is installed."""
    pytest.importorskip("tensorflow")
    from edl_workflows.training.frameworks import tensorflow_collective

    return tensorflow_collective


class Alone:
    """A group of one."""

    rank = 0

    def __init__(self, place: Place) -> None:
        self.place = place

    def all_reduce(self, tensors: Sequence[Any]) -> list[Any]:
        """Nothing to add."""
        return list(tensors)


@pytest.fixture
def join(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Joins a group of one with a linear model; ``more`` are its further variables."""
    monkeypatch.setattr(adapter, "AllReduceGroup", Alone)
    tf = adapter.tf

    def joined(**more: Any) -> Any:
        def build() -> Any:
            weight = tf.Variable(tf.constant([[1.0], [2.0], [3.0]]))
            unused = tf.Variable(5.0)

            def losses(x: Any, y: Any) -> Any:
                return tf.square(tf.squeeze(x @ weight, 1) - y)

            weights = {"weight": weight, "unused": unused}
            optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
            return adapter.MirroredModel(weights, losses, optimizer, EXAMPLE, more)

        member = adapter.MirroredTraining(build)
        member.join(PLACE)
        return member

    return joined


def records(count: int) -> dict[str, Any]:
    """Inputs of so many records."""
    random = np.random.default_rng(count)
    return {"x": random.random((count, 3), np.float32), "y": random.random(count, np.float32)}


def tensors(member: Any) -> dict[str, Any]:
    """Copies of all variables."""
    state = member.state(0, {})
    arrays = {name: np.zeros(spec.shape, spec.dtype) for name, spec in state.specs.items()}
    state.fill(arrays)
    return arrays


def test_rehearsal_leaves_no_trace(join: Any) -> None:
    """The step that is made for a warm-up is undone: weights have their initial values, and the optimizer has
    no state."""
    found = tensors(join())
    assert found["weight"].tolist() == [[1.0], [2.0], [3.0]]
    assert all(
        not array.any()
        for name, array in found.items()
        if name == "optimizer/0" or (array.ndim == 2 and name != "weight")
    )


def test_batch_may_be_cut_anywhere(join: Any) -> None:
    """Mini-batches of any sizes, even empty ones, give the same loss and the same update as a single batch of
    all their records."""
    batch = records(12)
    whole, parts = join(), join()
    for _ in range(3):
        expected = whole.step([batch], Wishes())
        cut = [
            {name: value[a:b] for name, value in batch.items()} for a, b in ((0, 5), (5, 5), (5, 6), (6, 12))
        ]
        assert parts.step(cut, Wishes()).loss == pytest.approx(expected.loss, rel=1e-6)
    assert tensors(parts)["weight"] == pytest.approx(tensors(whole)["weight"], rel=1e-4)
    assert tensors(parts)["unused"] == 5.0


def test_wishes_come_back(join: Any) -> None:
    """The wishes of the members are summed with the gradients, and apply to that step only."""
    member = join()
    assert member.step([records(4)], Wishes(drain=1.0, leave=0.0)).wishes == Wishes(1.0, 0.0)
    assert member.step([records(4)], Wishes(drain=0.0, leave=1.0)).wishes == Wishes(0.0, 1.0)


def test_any_type_is_broadcast(join: Any, adapter: Any) -> None:
    """Variables of types that a group can't sum keep their values when they are broadcast, and so do numbers
    beyond single precision."""
    tf = adapter.tf
    more = {
        "seed": tf.Variable([2**32 - 1], dtype=tf.uint32),
        "flag": tf.Variable([True, False]),
        "half": tf.Variable([0.5], dtype=tf.bfloat16),
        "count": tf.Variable(2**60, dtype=tf.int64),
    }
    member = join(**more)
    assert member.broadcast([2**53 + 1, 0, 7]) == [2**53 + 1, 0, 7]
    assert more["seed"].numpy().tolist() == [2**32 - 1]
    assert more["flag"].numpy().tolist() == [True, False]
    assert more["count"].numpy() == 2**60


def test_type_that_can_not_be_broadcast_is_refused(join: Any, adapter: Any) -> None:
    """A variable of a type that can't be broadcast, or with the name of another variable, raises InvalidError
    before training."""
    with pytest.raises(InvalidError, match="variable text of type string"):
        join(text=adapter.tf.Variable("text"))
    with pytest.raises(InvalidError, match="same name"):
        join(weight=adapter.tf.Variable(1.0))


def test_state_round_trip(join: Any) -> None:
    """A process that loads the state continues exactly like the one that saved it."""
    one, other = join(), join()
    one.step([records(8)], Wishes())
    other.load(tensors(one))
    assert one.step([records(4)], Wishes()) == other.step([records(4)], Wishes())
    assert tensors(one)["weight"].tolist() == tensors(other)["weight"].tolist()


@pytest.mark.parametrize(
    "change", [{"weight": np.zeros((2, 1), np.float32)}, {"weight": np.zeros((3, 1))}], ids=["shape", "type"]
)
def test_state_of_another_model_is_refused(change: dict[str, Any], join: Any) -> None:
    """The error names the variable that differs and how, and no variable was set."""
    member = join()
    before = tensors(member)
    with pytest.raises(CheckpointError, match="variable weight is float32 of shape"):
        member.load({name: array + 1 for name, array in before.items()} | change)
    with pytest.raises(CheckpointError, match=r"variable weight .* in the checkpoint none"):
        member.load({})
    assert all((tensors(member)[name] == array).all() for name, array in before.items())


def test_broken_group_is_an_error_of_ours(join: Any, adapter: Any) -> None:
    """The error that TensorFlow raises for a lost member becomes an UnavailableError."""
    member = join()

    def broken(_wishes: Any) -> None:
        raise adapter.tf.errors.UnavailableError(
            None, None, "Collective ops is aborted by: Connection reset by peer"
        )

    member._update = broken
    with pytest.raises(UnavailableError, match="aborted by: Connection reset"):
        member.step([records(4)], Wishes())
