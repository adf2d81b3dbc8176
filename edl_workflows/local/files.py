"""Replaces files atomically: a reader sees either the old or the new content."""

import json
import os
from pathlib import Path
from typing import Any


def write(path: Path, content: str, mode: int = 0o600) -> None:
    """Replace a file's content.

    Args:
        path: path of the file, in an existing folder.
        content: the new text.
        mode: permission bits. The default is private, since most of these files contain tokens or
            environments.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(content)
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    write(path, json.dumps(value, separators=(",", ":")))


def read_json(path: Path) -> Any:
    """The JSON document in a file; None if there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
