"""How a model's variables are cut into the parts that parameter servers hold.

A lookup may depend on it: TensorFlow's ``embedding_lookup`` in its default ``mod`` strategy takes row *id // n* of part
*id % n*. So the cut belongs to the model like its values do. It is recorded with each checkpoint, and who goes on from there
cuts the same way, on however many servers.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field


class VariableLayout(BaseModel):
    """A variable, as a checkpoint's manifest tells it.

    Attributes:
        shape: of the whole; None if it is not known ahead, or what is saved is no variable.
        parts: into how many parts it is cut along each axis.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    shape: list[int] | None = Field(default=None, max_length=64)
    parts: list[int] = Field(default_factory=list, max_length=64)


Layout = Mapping[str, VariableLayout]
"""The variables of a model by name."""


def difference(saved: Layout, model: Layout) -> str:
    """What a checkpoint has otherwise than a model has it, of the first variable that differs; "" if nothing."""
    for name in sorted(saved.keys() | model.keys()):
        if (said := _difference(saved.get(name), model.get(name))) != "":
            return f"variable {name}: {said}"
    return ""


def _difference(saved: VariableLayout | None, model: VariableLayout | None) -> str:
    if model is None:
        return "the checkpoint has it, the model does not"
    if saved is None:
        return "the model has it, the checkpoint does not"
    if saved.shape is None or model.shape is None:
        return ""
    if saved.shape != model.shape:
        return f"its shape is {tuple(saved.shape)} in the checkpoint and {tuple(model.shape)} in the model"
    if saved.parts != model.parts:
        return f"it is cut into {_count(saved)} parts in the checkpoint and {_count(model)} in the model"
    return ""


def _count(variable: VariableLayout) -> str:
    return " x ".join(map(str, variable.parts))
