"""Results of simulations in a file: a line of JSON for each, written when the run has ended, so that a later call goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edl_workflows.exceptions import InvalidError
from edl_workflows.simulator.study import StudyResult


class ResultFile:
    """The results in a file.

    Args:
        path: the file; it is made with the first result, and its folder, too.

    Raises:
        InvalidError: the file can't be read, or a line is no result.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        data = _read(path)
        self._whole = data.rfind(b"\n") + 1
        """Bytes of whole lines. The rest is what a call that was killed has left; that run is made again."""
        self._known = {_text(result.key): result for result in _parsed(path, data[: self._whole])}

    def find(self, key: Mapping[str, Any]) -> StudyResult | None:
        """The result with this key, if there is one."""
        return self._known.get(_text(key))

    def add(self, result: StudyResult) -> None:
        """Write one down.

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
        self._known[_text(result.key)] = result


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InvalidError(f"{path}: can't be read: {error.strerror}; give another file") from error


def _parsed(path: Path, data: bytes) -> list[StudyResult]:
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            found.append(StudyResult.parse(json.loads(line)))
        except (ValueError, RecursionError, InvalidError) as error:
            raise InvalidError(f"{path}:{number}: {error}") from error
    return found


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
