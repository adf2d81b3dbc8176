"""``edl export``: writes a checkpoint in a format that other programs read."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.cli.output import print_line

if TYPE_CHECKING:
    from edl_workflows.training.frameworks.tf1.tf_graph import Model

app = typer.Typer(no_args_is_help=True)


@app.command()
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="Path or URI of a checkpoint, or of a folder of checkpoints, whose newest one is exported."
        ),
    ],
    output: Annotated[
        Path, typer.Argument(help="File to write, in safetensors format; with --model a folder to make.")
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="PROGRAM:FUNCTION",
            help="Write a SavedModel of TensorFlow: the training program, and its function that builds the "
            "model for parameter servers, such as train.py:build.",
        ),
    ] = "",
    predict: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TENSOR",
            help="Output of the SavedModel: its name, and the tensor's name in the graph, such as "
            "score=model/predictions:0. May be repeated.",
        ),
    ] = None,
) -> None:
    """Write the model of a checkpoint: all its tensors to a file in safetensors format, or a SavedModel of
    TensorFlow. Checksums are verified first."""
    from edl_workflows.training import export_safetensors, open_model

    outputs = dict(_read_output(text) for text in predict or ())
    if bool(model) != bool(outputs):
        raise InvalidError("--model and --predict: a SavedModel needs both")
    if not output.parent.is_dir():
        raise InvalidError(f"{output.parent}: no such folder")
    if model:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        with open_model(checkpoint, _load_function(model)) as opened:
            opened.export_saved_model(output, outputs)
    else:
        export_safetensors(checkpoint, output)
    print_line(f"wrote {output}")


def _read_output(text: str) -> tuple[str, str]:
    name, _, tensor = text.partition("=")
    if not name or not tensor:
        raise InvalidError(f"--predict: {text!r} is not NAME=TENSOR, such as score=model/predictions:0")
    return name, tensor


def _load_function(named: str) -> "Callable[[], Model]":
    """A function of a program, which is imported, with the modules beside it."""
    path, _, name = named.rpartition(":")
    program = Path(path)
    if not program.is_file():
        raise InvalidError(
            f"--model: {named!r} is not PROGRAM:FUNCTION of a Python file, such as train.py:build"
        )
    spec = importlib.util.spec_from_file_location(program.stem, program)
    if spec is None or spec.loader is None:
        raise InvalidError(f"--model: {program} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(program.parent.resolve()))
    sys.modules[program.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    function: Callable[[], Model] | None = getattr(module, name, None)
    if not callable(function):
        raise InvalidError(f"--model: {program} has no function {name!r}")
    return function
