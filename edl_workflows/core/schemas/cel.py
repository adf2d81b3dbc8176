"""CEL expressions over values of custom resources, evaluated by celpy in 0.1 to 0.5 ms each.

celpy has CEL's standard functions, but not the extension libraries of Kubernetes (quantity, url, ip, list
sums): an expression that calls one of these fails with an error that says so.
"""

from collections.abc import Callable, Mapping
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError, Evaluator

from edl_workflows.core.schemas.structural import Schema

EvaluationError = CELEvalError
_environment = celpy.Environment()
_ESCAPES = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))
_RESERVED = frozenset([
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if",
    "import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
])  # fmt: skip


def escape_name(name: str) -> str:
    """A field's name as expressions write it (``dlrover-master`` → ``dlrover__dash__master``)."""
    if name in _RESERVED:
        return f"__{name}__"
    for text, escaped in _ESCAPES:
        name = name.replace(text, escaped)
    return name


def escape_fields(value: Any, schema: Schema) -> Any:
    """The value with its declared fields named as in expressions; keys of maps stay as they are."""
    if isinstance(value, list):
        return [escape_fields(entry, schema.get("items") or {}) for entry in value]
    if not isinstance(value, dict):
        return value
    properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
    rest = extra if isinstance(extra, Mapping) else {}
    return {
        escape_name(name) if name in properties else name: escape_fields(child, properties.get(name) or rest)
        for name, child in value.items()
    }


def to_cel(value: Any) -> Any:
    """A JSON value as a value of CEL. An integer that 64 bits do not hold is a floating-point number, as
    Kubernetes reads it."""
    try:
        return json_to_cel(value)
    except ValueError:
        return json_to_cel(_in_64_bits(value))


def _in_64_bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in_64_bits(child) for name, child in value.items()}
    if isinstance(value, list):
        return [_in_64_bits(entry) for entry in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(str(value))  # Infinity, not an OverflowError, where a double is too small.
    return value


def compile_expression(text: str) -> Any:
    """The program of an expression.

    Raises:
        ValueError: it is not CEL, or it is nested too deeply.
    """
    try:
        return _environment.program(_environment.compile(text))
    except (CELParseError, RecursionError) as error:
        raise ValueError(str(error)) from error


class _Evaluator(Evaluator):
    """Reports each evaluation: that of the expression, and a macro's of each entry."""

    def __init__(self, ast: Any, activation: Any, on_step: Callable[[], None]) -> None:
        super().__init__(ast, activation)
        self._on_step = on_step

    def sub_evaluator(self, ast: Any) -> "_Evaluator":
        return _Evaluator(ast, self.activation, self._on_step)

    def evaluate(self, context: Any = None) -> Any:
        self._on_step()
        return super().evaluate(context)


def evaluate_program(
    program: Any, variables: Mapping[str, Any], on_step: Callable[[], None] = lambda: None
) -> Any:
    """The value of an expression.

    Args:
        program: made by `compile_expression`.
        variables: made by `to_cel`.
        on_step: called before each evaluation; ends the evaluation by raising.

    Raises:
        EvaluationError: a field is absent, or has a wrong type for its use.
    """
    return _Evaluator(program.ast, program.new_activation(), on_step).evaluate(variables)


def is_true(value: Any) -> bool:
    return bool(value == celtypes.BoolType(True))
