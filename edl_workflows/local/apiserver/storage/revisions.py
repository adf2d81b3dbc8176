"""Objects as the store keeps them: their keys, their versions and the changes between versions."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Object = dict[str, Any]

ADDED, MODIFIED, DELETED, BOOKMARK = "ADDED", "MODIFIED", "DELETED", "BOOKMARK"


def encode_object(obj: Object) -> bytes:
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()


class StoreKey(NamedTuple):
    """The identity of an object. `resource` is a name such as ``pods`` or
    ``elasticjobs.elastic.iml.github.io``; `namespace` is empty for cluster-scoped objects."""

    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of one object, encoded once.

    Selectors use `labels` and `fields`; the garbage collector uses `uid`, `owners` (uids) and `deleting`. So
    neither has to decode the object.
    """

    key: StoreKey
    rv: int
    body: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    uid: str
    owners: tuple[str, ...]
    deleting: bool

    def decode(self) -> Object:
        """A copy of the object that the caller may change."""
        obj: Object = json.loads(self.body)
        return obj


Match = Callable[[Revision], bool]


def match_everything(revision: Revision) -> bool:
    """The predicate of a watch or list without selectors."""
    del revision
    return True


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One row of the log in memory."""

    type: str
    revision: Revision
    previous: Revision | None
