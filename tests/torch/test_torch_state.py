"""A PyTorch program's state as named tensors: nothing is lost, and nothing is pickled."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.tensors import load, save
from edl_workflows.training.frameworks import torch_state
from edl_workflows.training.frameworks.torch_state import from_saved_state, join, split, to_saved_state

TYPES = sorted(torch_state._TYPES, key=str)


def same(one: Any, other: Any) -> bool:
    """Whether two nested states are equal, to the bit and the type."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and bytes(one.contiguous().reshape(-1).view(torch.uint8).numpy())
            == bytes(other.contiguous().reshape(-1).view(torch.uint8).numpy())
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


TENSORS = st.builds(
    lambda dtype, shape: torch.arange(64).to(dtype)[: math.prod(shape)].reshape(shape),
    st.sampled_from(TYPES),
    st.lists(st.integers(0, 3), max_size=3),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
STATES = st.recursive(
    TENSORS | PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(STATES)
def test_what_was_split_is_joined(state: Any) -> None:
    """Every nested state is restored with its types and the order of its keys."""
    skeleton, tensors = split(state)

    assert same(state, join(skeleton, tensors))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_saved_state_is_loaded(dtype: torch.dtype, tmp_path: Path) -> None:
    """Tensors of each type, numbers and texts are restored from a file, to the bit."""
    state = {
        "model": {"0.weight": torch.arange(6).reshape(2, 3).to(dtype).T, "scalar": torch.ones(()).to(dtype)},
        "optimizer": {"state": {0: {"step": 3}}, "param_groups": [{"betas": (0.9, 0.99), "lr": 1e-3}]},
        "empty": torch.zeros((0, 2)).to(dtype),
    }
    save(tmp_path, to_saved_state(state, 4, {"data": "x"}))
    loaded = load(tmp_path / STATE_FILE)

    assert same(state, from_saved_state(loaded.tensors))
    assert loaded.metadata == {"data": "x"}
    assert {"model/0.weight", "model/scalar"} <= loaded.tensors.keys()


def test_values_are_read_when_the_state_is_copied(tmp_path: Path) -> None:
    """The values are read when the state is copied to shared memory, so that the model is not copied
    before."""
    weight = torch.zeros(2)
    state = to_saved_state({"w": weight}, 1, {})
    weight += 1.0
    save(tmp_path, state)

    assert from_saved_state(load(tmp_path / STATE_FILE).tensors)["w"].tolist() == [1.0, 1.0]


def test_a_loaded_state_is_a_copy(tmp_path: Path) -> None:
    """An optimizer that changes what it loaded does not change the file, and needs no writable one."""
    save(tmp_path, to_saved_state({"w": torch.zeros(2)}, 1, {}))
    first = from_saved_state(load(tmp_path / STATE_FILE).tensors)["w"]
    first += 1.0

    assert from_saved_state(load(tmp_path / STATE_FILE).tensors)["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param({"a": [object()]}, "a/0: a object can't be saved", id="an object"),
        pytest.param({"a": {None: 1}}, "a: a key of type NoneType", id="a key"),
        pytest.param({"a": torch.eye(2).to_sparse()}, "a: a Tensor", id="sparse"),
        pytest.param({"a": torch.zeros(1, dtype=torch.complex128)}, "a: torch.complex128", id="a type"),
    ],
)
def test_what_can_not_be_saved_is_refused(value: Any, reason: str) -> None:
    """The error for a value that can't be saved has its path in the state."""
    with pytest.raises(InvalidError, match=reason):
        split(value)


@pytest.mark.parametrize("skeleton", ["", "[]", '{"tensor": "w"}', '{"x": 1}', '{"dict": 3}', "[" * 5000])
def test_another_programs_state_is_refused(skeleton: str) -> None:
    """A state without a skeleton, or with a strange one, is a CheckpointError."""
    text = torch.tensor(list(skeleton.encode()), dtype=torch.uint8).numpy()

    with pytest.raises(CheckpointError, match="PyTorch"):
        from_saved_state({torch_state.SKELETON: text})
    with pytest.raises(CheckpointError, match="PyTorch"):
        from_saved_state({"weights": text})
