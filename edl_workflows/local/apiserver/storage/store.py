"""Versioned object store: current objects, bounded history and watches on one SQLite log.

The log is append-only with one row per change, and nothing else is on disk. The current objects are the
newest rows of each key, as in kine, which stores etcd's data in SQL. A change is first committed to SQLite,
then applied in memory and sent to watchers, without a suspension point in between. So everything that a
reader or watcher has seen is on disk. WAL with ``synchronous=NORMAL`` loses nothing if the process is killed.
A power failure may lose the last changes, but does not corrupt the file.

The store handles keys, revisions and bytes; `edl_workflows.local.apiserver.objects.registry` knows the
meaning of fields. All calls must be made in the thread of one event loop.
"""

import bisect
import dataclasses
import itertools
import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.storage.revisions import (
    ADDED,
    DELETED,
    MODIFIED,
    Match,
    Object,
    Revision,
    StoredChange,
    StoreKey,
    encode_object,
    match_everything,
)
from edl_workflows.local.apiserver.storage.watches import StoreWatch

FieldIndex = Callable[[str, Object], Mapping[str, str]]
"""Called with a resource and an object; returns the fields by which selectors can select it."""

MAX_OBJECT_BYTES = 3 * 2**19
"""Largest object that a client may write: etcd's default limit of a request."""
MAX_STORED_BYTES = 2**21
"""Largest object including what is added later: the status and the deletion timestamp."""
MAX_HISTORY_BYTES = 128 * 2**20
"""Total size of the changes that are kept for watches and consistent pages, over all resources."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
  rv INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  type TEXT NOT NULL, previous INTEGER, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS floor (resource TEXT PRIMARY KEY, rv INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def metadata_fields(resource: str, obj: Object) -> Mapping[str, str]:
    """The two fields by which objects of every resource can be selected."""
    del resource
    metadata = obj["metadata"]
    return {"metadata.name": metadata["name"], "metadata.namespace": metadata.get("namespace", "")}


class ObjectStore:
    """Objects by key with one global resourceVersion.

    Args:
        path: the SQLite file; created if absent.
        history: number of changes that are kept per resource for watches and consistent pages, within
            `MAX_HISTORY_BYTES`. Requests for older versions get 410.
        index: computes the fields by which selectors can select an object.
    """

    def __init__(self, path: Path, *, history: int = 10_000, index: FieldIndex = metadata_fields) -> None:
        self._history = history
        self._index = index
        self._objects: dict[str, dict[str, dict[str, Revision]]] = {}
        self._changes: dict[str, deque[StoredChange]] = {}
        self._change_bytes: dict[str, int] = {}
        self._floor: dict[str, int] = {}
        self._watches: dict[str, set[StoreWatch]] = {}
        self._observers: list[Callable[[StoredChange], None]] = []
        self._rv = 1
        self._db = sqlite3.connect(path, isolation_level=None)
        path.chmod(0o600)  # it contains Secrets
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._load()

    def _load(self) -> None:
        self._floor = dict(self._db.execute("SELECT resource, rv FROM floor"))
        rows = self._db.execute("SELECT rv, resource, namespace, name, type, body FROM log ORDER BY rv")
        for rv, resource, namespace, name, kind, body in rows:
            revision = self._revision(StoreKey(resource, namespace, name), rv, body, json.loads(body))
            previous = self.get(revision.key)
            self._remember(StoredChange(kind, revision, previous), record=rv > self._floor.get(resource, 0))
            self._rv = rv
        for resource in self._changes:
            self._compact(resource)

    @property
    def revision(self) -> int:
        return self._rv

    def close(self) -> None:
        """Close the file. A process that is killed before this loses nothing."""
        self._db.close()

    def setting(self, name: str, default: str) -> str:
        """A stored value that is not an object, such as a signing key. The first call stores `default`."""
        self._db.execute("INSERT OR IGNORE INTO setting VALUES (?, ?)", (name, default))
        row = self._db.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        return str(row[0])

    def get(self, key: StoreKey) -> Revision | None:
        """The current version, or None."""
        return self._objects.get(key.resource, {}).get(key.namespace, {}).get(key.name)

    def require(self, key: StoreKey) -> Revision:
        """The current version.

        Raises:
            ApiError: 404 NotFound.
        """
        revision = self.get(key)
        if revision is None:
            raise errors.not_found(key.resource, key.name)
        return revision

    def create(self, key: StoreKey, obj: Object) -> Revision:
        """Add an object and set its ``metadata.resourceVersion``.

        Raises:
            ApiError: 409 AlreadyExists; 413, it is larger than `MAX_OBJECT_BYTES`.
        """
        if self.get(key) is not None:
            raise errors.already_exists(key.resource, key.name)
        return self._write(ADDED, key, obj, None, MAX_OBJECT_BYTES)

    def update(
        self, key: StoreKey, obj: Object, expect: int | None = None, *, most: int = MAX_STORED_BYTES
    ) -> Revision:
        """Replace an object; a replacement that changes nothing keeps its version.

        Raises:
            ApiError: 404 NotFound; 409 Conflict, its version is not `expect`; 413, it has more than `most`
                bytes.
        """
        current = self._expect(key, expect)
        unchanged = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(current.rv)}}
        if unchanged == current.decode():
            return current
        return self._write(MODIFIED, key, obj, current, most)

    def delete(self, key: StoreKey, expect: int | None = None, last: Object | None = None) -> Revision:
        """Remove an object. Watchers receive `last`, or else its last version.

        Raises:
            ApiError: 404 NotFound; 409 Conflict, its version is not `expect`.
        """
        current = self._expect(key, expect)
        return self._write(DELETED, key, last if last is not None else current.decode(), current)

    def list_objects(
        self, resource: str, namespace: str = "", *, match: Match = match_everything, at: int | None = None
    ) -> list[Revision]:
        """The objects of a resource, ordered by namespace and name, now or `at` an earlier version. An empty
        namespace means all.

        Raises:
            ApiError: 410 Expired, the history does not reach back to `at`.
        """
        spaces = self._objects.get(resource, {})
        if at is not None and at < self._rv:
            spaces = self._past(resource, at)
        names = [namespace] if namespace else sorted(spaces)
        revisions: list[Revision] = []
        for space in names:
            objects = spaces.get(space, {})
            revisions.extend(objects[name] for name in sorted(objects))
        return (
            revisions
            if match is match_everything
            else [revision for revision in revisions if match(revision)]
        )

    def _past(self, resource: str, at: int) -> dict[str, dict[str, Revision]]:
        # Undo the changes after that version, newest first.
        spaces = {space: dict(objects) for space, objects in self._objects.get(resource, {}).items()}
        for change in reversed(list(self._since(resource, at))):
            key = change.revision.key
            objects = spaces.setdefault(key.namespace, {})
            if change.previous is None:
                objects.pop(key.name, None)
            else:
                objects[key.name] = change.previous
        return spaces

    def reindex(self, resource: str) -> None:
        """Recompute the selectable fields of all objects of a resource, after its definition was loaded or
        changed."""
        revisions: dict[int, Revision] = {}

        def indexed(revision: Revision) -> Revision:
            if revision.rv not in revisions:
                fields = self._index(resource, revision.decode())
                revisions[revision.rv] = dataclasses.replace(revision, fields=fields)
            return revisions[revision.rv]

        for objects in self._objects.get(resource, {}).values():
            objects.update({name: indexed(revision) for name, revision in objects.items()})
        changes = self._changes.get(resource, deque())
        self._changes[resource] = deque(
            StoredChange(
                change.type, indexed(change.revision), indexed(change.previous) if change.previous else None
            )
            for change in changes
        )

    def resources(self) -> list[str]:
        """The resources that have objects."""
        return [resource for resource, spaces in self._objects.items() if any(spaces.values())]

    def watch(
        self, resource: str, namespace: str = "", *, since: int, match: Match = match_everything
    ) -> StoreWatch:
        """The changes after version `since`, from the history and then as they happen.

        Raises:
            ApiError: 410 Expired, the history does not reach back to `since`, or `since` is in the future
                (another cluster's version): in both cases the reader must list again.
        """
        if since > self._rv:
            raise errors.expired_error(
                f"resourceVersion {since} is newer than the newest, {self._rv}; list again"
            )
        changes = self._since(resource, since)
        watches = self._watches.setdefault(resource, set())
        watch = StoreWatch(namespace, match, most_pending=self._history, on_close=watches.discard)
        watch.replay(changes)
        watches.add(watch)
        return watch

    def observe(self, observer: Callable[[StoredChange], None]) -> None:
        """Call `observer` with every change of every resource, as part of the write. The observer must
        neither write nor raise."""
        self._observers.append(observer)

    def end_watches(self) -> None:
        """End all watches because the server stops. Their readers can resume later."""
        for watches in self._watches.values():
            for watch in watches:
                watch.end()

    def _since(self, resource: str, rv: int) -> Iterator[StoredChange]:
        floor = self._floor.get(resource, 0)
        if rv < floor:
            raise errors.expired_error(f"too old resource version: {rv} ({floor})")
        changes = self._changes.get(resource, deque())
        start = bisect.bisect_right(changes, rv, key=lambda change: change.revision.rv)
        return itertools.islice(changes, start, None)

    def _expect(self, key: StoreKey, expect: int | None) -> Revision:
        current = self.require(key)
        if expect is not None and expect != current.rv:
            raise errors.conflict_error(key.resource, key.name, errors.MODIFIED)
        return current

    def _revision(self, key: StoreKey, rv: int, body: bytes, obj: Object) -> Revision:
        meta = obj["metadata"]
        return Revision(
            key=key,
            rv=rv,
            body=body,
            labels=meta.get("labels") or {},
            fields=self._index(key.resource, obj),
            uid=meta.get("uid", ""),
            owners=tuple(owner["uid"] for owner in meta.get("ownerReferences") or ()),
            deleting="deletionTimestamp" in meta,
        )

    def _write(
        self, kind: str, key: StoreKey, obj: Object, previous: Revision | None, most: int | None = None
    ) -> Revision:
        rv = self._rv + 1
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(rv)}}
        revision = self._revision(key, rv, encode_object(stored), stored)
        if most is not None and len(revision.body) > most:
            raise errors.too_large(key.resource, key.name, len(revision.body), most)
        self._db.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)",
            (rv, *key, kind, previous.rv if previous else None, revision.body),
        )
        self._rv = rv
        change = StoredChange(kind, revision, previous)
        self._remember(change, record=True)
        for watch in tuple(self._watches.get(key.resource, ())):
            watch.offer(change)
        for observer in self._observers:
            observer(change)
        self._compact(key.resource)
        return revision

    def _remember(self, change: StoredChange, *, record: bool) -> None:
        key = change.revision.key
        objects = self._objects.setdefault(key.resource, {}).setdefault(key.namespace, {})
        if change.type == DELETED:
            objects.pop(key.name, None)
        else:
            objects[key.name] = change.revision
        if record:
            self._changes.setdefault(key.resource, deque()).append(change)
            size = len(change.revision.body)
            self._change_bytes[key.resource] = self._change_bytes.get(key.resource, 0) + size

    def _compact(self, resource: str) -> None:
        # Many changes are removed at once, so that most writes are not slowed down.
        changes = self._changes[resource]
        if len(changes) > self._history * 5 // 4:
            self._drop(resource, changes[len(changes) - self._history - 1].revision.rv)
        while sum(self._change_bytes.values()) > MAX_HISTORY_BYTES:
            largest = max(self._change_bytes, key=self._change_bytes.__getitem__)
            self._drop(largest, self._half(largest))

    def _half(self, resource: str) -> int:
        """The version at which the older half of the history, in bytes, ends."""
        left = self._change_bytes[resource] // 2
        for change in self._changes[resource]:
            left -= len(change.revision.body)
            if left <= 0:
                return change.revision.rv
        return self._rv

    def _drop(self, resource: str, floor: int) -> None:
        """Remove the changes up to a version from the history."""
        changes, versions = self._changes[resource], []
        while changes and changes[0].revision.rv <= floor:
            change = changes.popleft()
            self._change_bytes[resource] -= len(change.revision.body)
            if change.previous:
                versions.append(change.previous.rv)
            if change.type == DELETED:
                versions.append(change.revision.rv)
        self._floor[resource] = floor
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute("INSERT OR REPLACE INTO floor VALUES (?, ?)", (resource, floor))
            self._db.executemany("DELETE FROM log WHERE rv = ?", ((rv,) for rv in versions))
