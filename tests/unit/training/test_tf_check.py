"""The loss of the same batch, asked of a real TensorFlow graph before and after."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edl_workflows.core.exceptions import InvalidError

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]  # the import alone takes long


@pytest.fixture(scope="module")
def tf() -> Any:
    """TensorFlow, where it is installed."""
    return pytest.importorskip("tensorflow")


def mean_of_words(tf: Any) -> tuple[Any, dict[str, Any]]:
    """A loss over numbers and texts."""
    tf1 = tf.compat.v1
    numbers = tf1.placeholder(tf.float32, [None, 2])
    words = tf1.placeholder(tf.string, [None])
    lengths = tf.cast(tf1.strings.length(words), tf.float32)
    return tf.reduce_mean(numbers) + tf.reduce_mean(lengths), {"numbers": numbers, "words": words}


def with_dropout(tf: Any) -> tuple[Any, dict[str, Any]]:
    """A loss that is another each time."""
    numbers = tf.compat.v1.placeholder(tf.float32, [None, 2])
    return tf.reduce_mean(tf.nn.dropout(numbers, 0.5)), {"numbers": numbers}


def without_inputs(tf: Any) -> tuple[Any, dict[str, Any]]:
    """A loss of records that the graph reads by itself."""
    return tf.random.normal([]), {}


def asked(tf: Any, build: Callable[[Any], tuple[Any, dict[str, Any]]], values: dict[str, Any] | None) -> Any:
    """The loss before, the batch that was kept, and the loss of it in another session."""
    from edl_workflows.training.frameworks.tf1.tf_check import LossCheck

    with tf.Graph().as_default():
        check = LossCheck(*build(tf))
        check.last = values
        with tf.compat.v1.Session() as session:
            before = check.before(session)
        batch = check.pop_batch()
        assert check.pop_batch() == b"", "it belongs to one checkpoint"
        with tf.compat.v1.Session() as session:
            return before, batch, check.of(session, batch)


@pytest.mark.parametrize(
    "words", [["a", "bcd"], np.array([b"a", b"bcd"], dtype=object), np.array(["a", "bcd"])],
    ids=["list", "bytes", "text"],
)  # fmt: skip
def test_loss_of_the_kept_batch_is_the_same(tf: Any, words: Any) -> None:
    """The kept batch, with numbers and texts and without pickle, gives the same loss when it is evaluated
    again."""
    before, batch, after = asked(tf, mean_of_words, {"numbers": [[1.0, 2.0], [3.0, 5.0]], "words": words})
    assert batch
    assert before == after == pytest.approx(2.75 + 2)


@pytest.mark.parametrize(
    ("build", "values", "message"),
    [
        (with_dropout, {"numbers": np.arange(2000.0).reshape(-1, 2)},
            r"it is random, as with dropout; set Model\.check"),
        (without_inputs, {}, "the model has no inputs"),
        (mean_of_words, None, "the chief has made no step yet"),
        (with_dropout, {"numbers": [[1.0, 2.0], [3.0]]}, "the inputs of a step are not arrays"),
    ],
    ids=["random", "no inputs", "no step", "no arrays"],
)  # fmt: skip
def test_nothing_is_compared_that_can_not_be(tf: Any, build: Any, values: Any, message: str) -> None:
    """A loss that can't be compared raises InvalidError, which says why."""
    with pytest.raises(InvalidError, match=message):
        asked(tf, build, values)


@pytest.mark.parametrize("name", ["file", "allow_pickle", "args", "a/b:0"])
def test_inputs_may_have_any_name(name: str) -> None:
    """The inputs of a kept batch may have any name."""
    from edl_workflows.training.frameworks.tf1 import tf_check

    kept = tf_check.decode_batch(tf_check.encode_batch({name: [1.0, 2.0], "other": b"text"}))
    assert {name: array.tolist() for name, array in kept.items()} == {name: [1.0, 2.0], "other": b"text"}


def test_large_batch_is_cut(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first records of a batch that is too large are kept. A single input that is too large is
    rejected."""
    from edl_workflows.training.frameworks.tf1 import tf_check

    monkeypatch.setattr(tf_check, "MAX_BATCH_BYTES", 100)
    batch = tf_check.encode_batch({"a": np.arange(100, dtype=np.int8), "b": np.arange(100, dtype=np.int8)})
    kept = tf_check.decode_batch(batch)
    assert {name: array.tolist() for name, array in kept.items()} == {"a": [*range(50)], "b": [*range(50)]}
    with pytest.raises(InvalidError, match="are larger than"):
        tf_check.encode_batch({"a": np.arange(200, dtype=np.int8), "b": np.int8(1)})
