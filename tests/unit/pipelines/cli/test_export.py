"""``edl export``: a checkpoint as a file in safetensors format, or as a SavedModel of TensorFlow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_workflows.pipelines.cli.root import run
from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.tensors import State

PROGRAM = """
from shapes import SHAPE  # beside this program
from edl_workflows.training.frameworks.tensorflow import Model, tf1


def build():
    users = tf1.placeholder(tf1.int64, [None], name="users")
    table = tf1.get_variable("table", SHAPE)
    rows = tf1.nn.embedding_lookup(table, users, name="rows")
    step = tf1.assign_add(tf1.train.get_global_step(), 1).op
    return Model(step, tf1.reduce_sum(rows), {"users": users})


if __name__ == "__main__":
    raise SystemExit("it trains")
"""
TABLE = np.arange(12.0, dtype=np.float32).reshape(6, 2)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A checkpoint of parameter servers, saved in two stages, whose table has two parts that are looked up
    with ``mod``."""
    made = CheckpointStore(tmp_path / "checkpoints")
    in_file = np.concatenate([TABLE[0::2], TABLE[1::2]])
    state = State.of(3, {"table": in_file, "global_step": np.array(3)})
    layout: Any = {"table": {"shape": [6, 2], "parts": [2, 1], "order": "mod"}, "global_step": {"parts": []}}
    made.publish(3, lambda folder: tensors.save(folder, state), variables=layout)
    return made


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A training program with a module beside it."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "shapes.py").write_text("SHAPE = (6, 2)\n")
    (folder / "train_exported.py").write_text(PROGRAM)
    return str(folder / "train_exported.py")


def test_safetensors_have_each_row_in_its_place(store: CheckpointStore, tmp_path: Path, capsys: Any) -> None:
    """The newest checkpoint of a folder is exported, with the rows of its tables in the order of the ids."""
    file = tmp_path / "model.safetensors"
    assert run(["export", str(store.folder), str(file)]) == 0
    assert capsys.readouterr().out == f"wrote {file}\n"
    assert tensors.load(file).tensors["table"].tolist() == TABLE.tolist()


@pytest.mark.tensorflow
@pytest.mark.timeout(600)  # the import alone takes long
def test_saved_model_predicts(store: CheckpointStore, program: str, tmp_path: Path, capsys: Any) -> None:
    """A SavedModel is exported with the function of the program, which is not run itself."""
    tf = pytest.importorskip("tensorflow")
    folder = tmp_path / "saved"
    options = ["--model", f"{program}:build", "--predict", "row=rows:0"]
    assert run(["export", str(store.folder), str(folder), *options]) == 0, capsys.readouterr().err
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    with tf.init_scope():
        assert serve(users=tf.constant([4, 1], tf.int64))["row"].numpy().tolist() == TABLE[[4, 1]].tolist()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--model", "{program}:build"], 2, "--model and --predict: a SavedModel needs both"),
        (["--predict", "row=rows:0"], 2, "--model and --predict: a SavedModel needs both"),
        (["--model", "build", "--predict", "row=rows:0"], 2, "'build' is not PROGRAM:FUNCTION"),
        (["--model", "{program}:other", "--predict", "row=rows:0"], 2, "has no function 'other'"),
        (["--model", "{program}:build", "--predict", "rows"], 2, "'rows' is not NAME=TENSOR"),
    ],
)
def test_wrong_options_are_named(
    store: CheckpointStore,
    program: str,
    tmp_path: Path,
    capsys: Any,
    options: list[str],
    code: int,
    message: str,
) -> None:
    """Each error names the option and what it expects."""
    pytest.importorskip("tensorflow")
    asked = [option.format(program=program) for option in options]
    assert run(["export", str(store.folder), str(tmp_path / "output"), *asked]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "output", "code", "message"),
    [
        (lambda store: store.folder / "none", "model.safetensors", 1, "there is no complete checkpoint"),
        (lambda store: store.folder / "checkpoint-5-a", "model.safetensors", 1, "no complete checkpoint"),
        (lambda store: store.folder, "nowhere/model.safetensors", 2, "nowhere: no such folder"),
    ],
)
def test_missing_places_are_named(
    store: CheckpointStore,
    tmp_path: Path,
    capsys: Any,
    place: Callable[[CheckpointStore], Path],
    output: str,
    code: int,
    message: str,
) -> None:
    """A checkpoint or folder that does not exist is an error, not an empty export."""
    assert run(["export", str(place(store)), str(tmp_path / output)]) == code
    assert message in capsys.readouterr().err
