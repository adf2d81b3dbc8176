"""Keeps results of simulations in a file, a JSON line for each, so that an interrupted study can continue."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator.study import StudyResult


class ResultFile:
    """The results in a file.

    Args:
        path: the file; it and its folder are created with the first result.

    Raises:
        InvalidError: the file can't be read, or a line is not a result.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        data = _read(path)
        self._whole = data.rfind(b"\n") + 1
        """Bytes of complete lines. A partial line was left by a killed process; its run is repeated."""
        self._results = {_text(result.key): result for result in _parsed(path, data[: self._whole])}

    def find(self, key: Mapping[str, Any]) -> StudyResult | None:
        return self._results.get(_text(key))

    def add(self, result: StudyResult) -> None:
        """Append a result.

        Raises:
            InvalidError: the file can't be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.truncate(self._whole)
                self._whole += file.write(json.dumps(result.to_json()).encode() + b"\n")
        except OSError as error:
            raise InvalidError(f"{self._path}: can't be written: {error.strerror}") from error
        self._results[_text(result.key)] = result


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InvalidError(f"{path}: can't be read: {error.strerror}; give another file") from error


def _parsed(path: Path, data: bytes) -> list[StudyResult]:
    results = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            results.append(StudyResult.parse(json.loads(line)))
        except (ValueError, RecursionError, InvalidError) as error:
            raise InvalidError(f"{path}:{number}: {error}") from error
    return results


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
