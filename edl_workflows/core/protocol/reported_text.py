"""Cleans text that pods report before it is written to a status: no control characters, and nothing that Argo
would expand.

Training programs are not trusted, and their text is shown later in terminals and web pages and used as a
workflow's parameter.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
"""Unicode's categories of control characters, of those that change the direction of text, of line separators,
and of lone surrogates, which JSON can hold and UTF-8 cannot."""
_KEPT = "\n\t"
_JOINERS = "\u200c\u200d"
"""Characters that belong to words and emoji although Unicode counts them as format characters."""
_NOT_PLAIN = re.compile(r"[^\x20-\x7e]")
_BRACES = re.compile(r"\{(?=\{)")
_TRACEBACK = "Traceback (most recent call last):"
_ERROR_LINE = re.compile(r"^(?:\[rank\d+\]: ?)?([\w.]+(?:: .*)?)$", re.MULTILINE)
"""The end of a traceback, whose other lines are indented; PyTorch adds the rank."""
_KILLED = (137, 143)
"""Exit codes after SIGKILL and SIGTERM."""


def escape_controls(text: str, keep: str = _KEPT) -> str:
    r"""The text with control characters made visible: ``\x1b`` for Escape, ``\u202e`` for a change of
    direction.

    Args:
        text: any text.
        keep: control characters that stay.
    """
    return _NOT_PLAIN.sub(lambda match: _escaped(match[0], keep), text)


def inert_text(text: str) -> str:
    """Text that is safe in a status. ``{{`` becomes ``{ {``, since Argo expands it in parameters of
    templates."""
    return _BRACES.sub("{ ", escape_controls(text))


def inert_value(value: Any) -> Any:
    """A JSON value with `inert_text` applied to all texts, including keys of maps."""
    if isinstance(value, str):
        return inert_text(value)
    if isinstance(value, Mapping):
        return {inert_text(key): inert_value(below) for key, below in value.items()}
    return [inert_value(below) for below in value] if isinstance(value, list) else value


def _escaped(character: str, keep: str) -> str:
    if character in keep or character in _JOINERS or unicodedata.category(character) not in _UNSEEN:
        return character
    number = ord(character)
    return (
        f"\\x{number:02x}"
        if number < 0x100
        else f"\\u{number:04x}"
        if number < 0x10000
        else f"\\U{number:08x}"
    )


def find_cause(output: str, code: int | None) -> str:
    """The line of a program's output that says why it ended; "" if none does. What a program wrote before it
    was killed is not the cause.

    Args:
        output: the end of its output.
        code: its exit code, 128+n for signal n; None if it is not known.
    """
    if code in _KILLED:
        return ""
    *_, traceback = output.rpartition(_TRACEBACK)
    error = _ERROR_LINE.search(traceback) if code == 1 and _TRACEBACK in output else None
    lines = output.strip().splitlines()
    return error[1] if error else lines[-1] if lines else ""
