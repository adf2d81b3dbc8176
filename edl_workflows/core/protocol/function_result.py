"""The result of a training function: a JSON value, which is passed as text to the job's status and to
pipelines.

Its size is limited, because it is stored in an object of the API server and copied by pipelines. Larger
results belong in files whose location the function returns.

No key of a map begins with two underscores: Airflow deserializes a map in an XCom with the key
``__classname__`` or ``__type`` into an object. A training program must not choose classes for the tasks that
read its result. Integers have 64 bits: Airflow's tasks send their results in a format that carries no others.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.reported_text import inert_value

MAX_RESULT = 8192
"""Bytes of a result as JSON."""
MAX_DEPTH = 32
"""How deeply lists and maps may be nested."""
_INTEGERS = range(-(2**63), 2**63)
_TOO_LONG = "an integer has more than 64 bits, which pipelines can't carry; return it as a text or a float"
_RESERVED = "__"
_TO_PLAIN = ("tolist", "numpy")
"""Methods that convert scalars and arrays of NumPy, PyTorch and TensorFlow: ``tolist`` to Python values,
``numpy`` to an array that has ``tolist``."""


def render_result(value: object) -> str:
    """The text of a result. Numbers that are not finite become null; scalars and arrays become numbers and
    lists.

    Args:
        value: what the function returned.

    Raises:
        InvalidError: it is not a JSON value, or too large.
    """
    return _dump(inert_value(_plain(value, 0)))


def read_result(text: str) -> Any:
    """The value in the text of a result.

    Raises:
        InvalidError: it is not the text of a result.
    """
    if len(text) > MAX_RESULT:
        _refuse(f"it has {len(text)} characters")
    try:
        return _plain(json.loads(text), 0)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"the function's result is not JSON: {error}") from error


def _checked(text: str) -> str:
    """The text of a result that a pod reported, without control characters.

    Raises:
        ValueError: it is not the text of a result.
    """
    try:
        return render_result(read_result(text))
    except InvalidError as error:
        raise ValueError(str(error)) from error


ResultText = Annotated[str, Field(max_length=MAX_RESULT), AfterValidator(_checked)]
"""The text of a result, in messages of pods."""


def _dump(value: Any) -> str:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_RESULT:
        _refuse(f"it has {size} bytes, and may have {MAX_RESULT}; write it to a file, and return the place")
    return text


def _plain(value: Any, depth: int) -> Any:
    """The value, converted to JSON's types."""
    if depth > MAX_DEPTH:
        _refuse(f"more than {MAX_DEPTH} lists and maps are within each other")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if int(value) in _INTEGERS else _refuse(_TOO_LONG)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): _plain(below, depth + 1) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(below, depth + 1) for below in value]
    for name in _TO_PLAIN:
        if callable(convert := getattr(value, name, None)):
            return _plain(convert(), depth + 1)
    return _refuse(f"a {type(value).__name__} is not a JSON value; return numbers, texts, lists and maps")


def _key(key: object) -> str:
    if isinstance(key, str):
        return key if not key.startswith(_RESERVED) else str(_refuse(f"the key {key[:80]!r} is reserved"))
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    return str(_refuse(f"a {type(key).__name__} can't be a key; use texts"))


def _refuse(reason: str) -> Any:
    raise InvalidError(f"the function's result can't be reported: {reason}")
