"""The operators of stages, and the command that writes or checks their module `operators.stages`:
``python -m edl_workflows.airflow.stage_operators --write|--check``.

The operators are source text, and not classes that are made when they are imported, for three reasons.
Editors and mypy know their arguments. Airflow reads the arguments from the signature of a real ``__init__``,
for ``default_args`` and for ``partial().expand()``. And a DAG file that imports an operator must not import
the stages, because Airflow parses it again and again.

What an operator does besides its stage is written by hand: its base, in `operators.stage_bases`.
"""

import inspect
import subprocess
import sys
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any

from edl_workflows.core.schemas.definition import documented_attributes
from edl_workflows.pipelines.install.generated import write_or_check
from edl_workflows.pipelines.stages.catalog import STAGES
from edl_workflows.pipelines.stages.description import RequestField, StageRequest, StageSpec

COMMAND = "python -m edl_workflows.airflow.stage_operators --write"
MODULE = Path(str(resources.files("edl_workflows.operators"))).resolve() / "stages.py"
BASES = {
    "cancel": "CancelTask",
    "delete": "DeletionTask",
    "scale": "ScaleTask",
    **dict.fromkeys(("apply-plan", "checkpoint", "migrate-ps", "plan-scale"), "ChangeTask"),
}
"""Bases in `operators.stage_bases` by stage. The base of any other operator is `StageOperator`."""

_HEAD = f'''"""The operators of the stages that act on a job. `operators.job` submits one.

Generated from the descriptions of the stages by `{COMMAND}`;
`make lint` checks it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from edl_workflows.operators.base import StageOperator, WhenFinished
from edl_workflows.operators.cluster import CLUSTER_FIELDS
from edl_workflows.operators.stage_bases import {", ".join(sorted(set(BASES.values())))}
'''
_CLASS = '''
class {name}({base}):
    """{text}

    Args:
{meanings}
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "{stage}"
    template_fields: Sequence[str] = ({templated}*CLUSTER_FIELDS)
    {renderers}

    def __init__(self, *, {parameters}, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        {assignments}
'''
_TYPES = {"integer": "int", "list": "Sequence[str]", "map": "Mapping[str, Any]", "text": "str"}
_AS_TEXT = {
    "list": " Also as text, separated by commas.",
    "map": " Also as text: JSON, Python or YAML.",
}


def render_operators() -> str:
    """The text of the module, formatted."""
    text = _HEAD + "".join(_operator(stage) for stage in STAGES if stage.operator)
    formatter = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(MODULE), "-"]
    return subprocess.run(formatter, input=text, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout


def _operator(stage: StageSpec[Any]) -> str:
    """The text of an operator's class."""
    arguments = {field.argument.operator or field.name: field for field in stage.fields()}
    templated = {name: field for name, field in arguments.items() if field.argument.templated}
    maps = {name: "json" for name, field in templated.items() if field.shape == "map"}
    paragraphs, meanings = documentation_of(stage.request)
    return _CLASS.format(
        name=stage.operator,
        base=BASES.get(stage.name, "StageOperator"),
        text="\n\n".join(_wrap(paragraph, 4) for paragraph in [stage.summary, *paragraphs]).lstrip(),
        meanings="\n".join(
            _wrap(f"{name}: {meanings[field.name]}{_AS_TEXT.get(field.shape, '')}", 8)
            for name, field in arguments.items()
        ),
        stage=stage.name,
        templated="".join(f'"{name}", ' for name in templated),
        renderers=f"template_fields_renderers: ClassVar[dict[str, str]] = {maps}" if maps else "",
        parameters=", ".join(f"{name}: {_annotation(field)}" for name, field in arguments.items()),
        assignments="; ".join(f"self.{name} = {name}" for name in arguments),
    )


def documentation_of(request: type[StageRequest]) -> tuple[list[str], dict[str, str]]:
    """The paragraphs of a request's docstring and of its bases' after the first, and the meanings of its
    fields."""
    classes = request.__mro__[: request.__mro__.index(StageRequest)]
    texts = [inspect.cleandoc(base.__doc__ or "").partition("Attributes:")[0] for base in classes]
    paragraphs = [paragraph for text in texts for paragraph in text.strip().split("\n\n")[1:]]
    meanings: dict[str, str] = {}
    for base in reversed(classes):
        meanings |= documented_attributes(base)
    return paragraphs, meanings


def _wrap(text: str, indent: int) -> str:
    """Lines of a docstring; further lines of an argument are indented."""
    further = " " * (indent if indent == 4 else indent + 4)
    # The first line follows three quotes.
    return textwrap.fill(text, 107, initial_indent=" " * indent, subsequent_indent=further)


def _annotation(field: RequestField) -> str:
    """The type and the default of an argument. A template renders text. None stands for a default of the
    request that is a number, a list, a map or no text."""
    argument = field.argument
    kind = "bool" if field.info.annotation is bool else _TYPES[field.shape]
    kind = argument.operator_type or kind
    if argument.templated and kind != "str":
        kind += " | str"
    if field.required:
        return f'{kind} = ""' if argument.operator_optional else kind
    if field.shape != "text" or field.default == "":
        return f"{kind} | None = None"
    default = str(field.default) if isinstance(field.default, str) else field.default
    return f"{kind} = {default!r}"


if __name__ == "__main__":
    sys.exit(write_or_check({MODULE: render_operators()}, COMMAND))
