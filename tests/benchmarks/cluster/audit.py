"""Requests to an API server, counted from its audit log."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Call:
    """One request: who asked for what.

    Attributes:
        resource: its subresource is behind a slash.
        seconds: until the API server had answered; of a watch, until it was open.
    """

    user: str
    agent: str
    verb: str
    resource: str
    namespace: str
    name: str
    seconds: float


class AuditLog:
    """Reads what comes to an audit log from now on.

    Args:
        path: one JSON document a line; a request that stays open has a line when it starts and one when it
            ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._seen: set[str] = set()

    def news(self) -> list[Call]:
        """The requests since the last call, each once."""
        return list(self._read())

    def _read(self) -> Iterator[Call]:
        with self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                entry = json.loads(line)
                if entry["auditID"] not in self._seen:
                    self._seen.add(entry["auditID"])
                    yield _call(entry)


def _call(entry: dict[str, Any]) -> Call:
    target = entry.get("objectRef") or {}
    resource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
    return Call(
        entry["user"].get("username", ""),
        entry.get("userAgent", ""),
        entry["verb"],
        resource or entry["requestURI"].partition("?")[0],
        target.get("namespace", ""),
        target.get("name", ""),
        (_time(entry["stageTimestamp"]) - _time(entry["requestReceivedTimestamp"])).total_seconds(),
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def by_kind(calls: list[Call]) -> Counter[str]:
    """How many requests of each kind, as ``create pods``."""
    return Counter(f"{call.verb} {call.resource}" for call in calls)
