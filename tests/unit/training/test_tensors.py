"""A model's state as bytes: nothing is lost, and nothing that is not whole is taken for a state."""

import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.tensors import Loaded, State, StateBlock, load, read_state, save

TYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
]
tensors = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.sampled_from(TYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
    ),
    max_size=5,
)


def block_of(state: State) -> bytes:
    block = StateBlock(state)
    with mmap.mmap(-1, block.size) as memory:
        with memoryview(memory) as view:
            block.write(view)
        return bytes(memory)


def same(expected: dict[str, Any], loaded: Loaded) -> bool:
    return expected.keys() == loaded.tensors.keys() and all(
        array.dtype == loaded.tensors[name].dtype and array.tobytes() == loaded.tensors[name].tobytes()
        for name, array in expected.items()
    )


@settings(max_examples=40, deadline=None)
@given(tensors, st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
def test_what_was_written_is_read(model: dict[str, Any], metadata: dict[str, str]) -> None:
    """Names, types, shapes and values of all tensors, and the metadata, are restored to the bit."""
    loaded = read_state(memoryview(block_of(State.of(7, model, metadata))), "here")

    assert same(model, loaded)
    assert metadata == loaded.metadata
    assert all(model[name].shape == tensor.shape for name, tensor in loaded.tensors.items())


@settings(max_examples=40, deadline=None)
@given(tensors)
def test_layout_is_that_of_safetensors(model: dict[str, Any]) -> None:
    """The block has the length of the header in 8 bytes, a header whose length is a multiple of 8, and the
    tensors without gaps, each at a multiple of the size of its type. Other readers of the format require
    this."""
    block = block_of(State.of(7, model))
    length = int.from_bytes(block[:8], "little")
    header = json.loads(block[8 : 8 + length])

    assert length % 8 == 0
    places = sorted((*entry["data_offsets"], model[name].itemsize) for name, entry in header.items())
    end = 0
    for start, next_end, item in places:
        assert start == end
        assert start % item == 0
        end = next_end
    assert len(block) == 8 + length + end


@settings(max_examples=40, deadline=None)
@given(tensors, st.data())
def test_half_a_block_is_refused(model: dict[str, Any], data: st.DataObject) -> None:
    """A block that is cut off anywhere raises CheckpointError."""
    whole = block_of(State.of(7, model))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(CheckpointError, match="here"):
        read_state(memoryview(cut), "here")


def header(entries: object) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


HOSTILE = {
    "no JSON": header(b"{"),
    "no object": header([1]),
    "an unknown type": header({"w": {"dtype": "F1", "shape": [1], "data_offsets": [0, 8]}}),
    "a place outside": header({"w": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}),
    "a place before": header({"w": {"dtype": "F64", "shape": [1], "data_offsets": [-8, 0]}}),
    "a shape that does not fit": header({"w": {"dtype": "F64", "shape": [3], "data_offsets": [0, 8]}}),
    "a negative shape": header({"w": {"dtype": "F64", "shape": [-1, -1], "data_offsets": [0, 8]}}),
    "a huge number": header({"w": {"dtype": "F64", "shape": [1e400], "data_offsets": [0, 8]}}),
    "deep nesting": header(b"[" * 100_000),
    "a header longer than all": (2**63).to_bytes(8, "little") + b"{}",
}


@pytest.mark.parametrize("row", HOSTILE)
def test_hostile_block_is_refused(row: str) -> None:
    """A header that describes its tensors wrongly is a CheckpointError, whatever is wrong."""
    with pytest.raises(CheckpointError, match="here"):
        read_state(memoryview(HOSTILE[row]), "here")


def test_tensor_of_text_can_not_be_saved() -> None:
    """A tensor whose type has no name in the format is rejected with its name before anything is copied."""
    with pytest.raises(InvalidError, match="tensor 'words' of type"):
        StateBlock(State.of(1, {"words": np.array(["a"])}))


def test_saved_file_is_loaded_without_being_writable(tmp_path: Path) -> None:
    """Loaded tensors are read-only views of the file."""
    save(tmp_path, State.of(3, {"w": np.arange(4)}))
    loaded = load(tmp_path / STATE_FILE)

    assert loaded.tensors["w"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        loaded.tensors["w"][0] = 1


def test_missing_or_empty_file_is_an_error(tmp_path: Path) -> None:
    """The error says whether the file is missing or empty."""
    with pytest.raises(CheckpointError, match="can't be read"):
        load(tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(CheckpointError, match="torn: 0 bytes"):
        load(tmp_path / "empty")


SHAPES = {
    "big endian": np.array([1.5, -2.0], ">f8"),
    "big endian integers": np.array([[1, 256]], ">i2"),
    "of single precision, without dimensions": np.array(3.0, ">f4"),
    "every second row of a transposed array": np.arange(12).reshape(3, 4).T[::2],
    "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "backwards": np.arange(5)[::-1],
    "the same value everywhere": np.broadcast_to(np.float32(2), (3, 4)),
    "empty, of two dimensions": np.zeros((0, 3), ">i4"),
}


@pytest.mark.parametrize("row", SHAPES)
def test_values_come_back_however_they_lie_in_memory(row: str) -> None:
    """The values of a tensor are saved correctly whatever its byte order and strides."""
    loaded = read_state(memoryview(block_of(State.of(1, {"w": SHAPES[row]}))), "here").tensors["w"]
    assert loaded.shape == SHAPES[row].shape
    assert loaded.tolist() == SHAPES[row].tolist()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_another_package(name: str, tmp_path: Path) -> None:
    """Values of bfloat16 and 8-bit floating point are restored to the bit, even in a process that has not
    imported the package of these types."""
    values = np.array([1.0, -3.5, 0.0]).astype(getattr(ml_dtypes, name))
    save(tmp_path, State.of(1, {"w": values}))
    program = (
        "import sys; from pathlib import Path; from edl_workflows.training.checkpoints.tensors import load\n"
        "assert 'ml_dtypes' not in sys.modules\n"
        "w = load(Path(sys.argv[1])).tensors['w']; print(w.dtype.name, w.tobytes().hex())"
    )
    read = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / STATE_FILE)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert read.stdout.split() == [name, values.tobytes().hex()], read.stderr


def test_a_state_whose_types_need_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a package for the types of a state is missing, the error says what to install, and the state does
    not count as damaged."""
    block = block_of(State.of(1, {"w": np.zeros(2, ml_dtypes.bfloat16)}))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)

    with pytest.raises(InvalidError, match=r"here: .*bfloat16.*pip install 'edl-workflows\[numpy\]'"):
        read_state(memoryview(block), "here")
