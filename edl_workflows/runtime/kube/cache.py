"""Caches an informer's objects, by key and by indices; the newest version wins. Thread-safe; makes no
requests.

The cache may be *written through*: a caller that created, patched or deleted an object puts the server's
answer into the cache, so that it sees its own write at once. Versions order the states, so a late event does
not undo the write. The answer may also contain a change by somebody else just before the write. The event of
that change is still reported when it arrives, although the cache already contains the change.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from edl_workflows.core.jobs import cache_fields
from edl_workflows.runtime.kube.resources import Object, ObjectKey, key_of, version_of
from edl_workflows.runtime.kube.watch import EventType

MAX_REMOVED = 10_000
"""Number of deleted objects to remember; fewer are deleted in the time until the last event about an object
arrives."""

IndexFunction = Callable[[Object], Iterable[str]]
"""Returns the values under which the index finds an object."""
KeepFunction = Callable[[Object], Object]
"""Returns the parts of an object that the cache keeps: at least its key, uid, resourceVersion and everything
that the indices read."""


@dataclass(frozen=True)
class ObjectChange:
    """An object that was added, changed or deleted.

    Attributes:
        type: ADDED, MODIFIED or DELETED.
        object: current state; of a deleted one, the last state.
        old: previous state; None for an added one.
    """

    type: EventType
    object: Object
    old: Object | None = None

    @property
    def key(self) -> ObjectKey:
        return key_of(self.object)


@dataclass
class _AheadOfEvents:
    """An object that was written through before the events of the written versions arrived.

    Attributes:
        reported: the last state that an event or a list reported; None if there was none.
        uid: uid of the object that was written.
        own: the versions created by our writes.
    """

    reported: Object | None
    uid: str
    own: set[int] = field(default_factory=set)


class ObjectCache:
    """The objects of one scope.

    Args:
        indices: name → function; an object is found under each value that the function returns.
        keep: reduces an object to the parts to keep; default: everything except ``managedFields``.
    """

    def __init__(
        self, indices: Mapping[str, IndexFunction] | None = None, keep: KeepFunction = cache_fields.keep_whole
    ) -> None:
        self._keep = keep
        self._lock = threading.RLock()
        self._functions = dict(indices or {})
        self._objects: dict[ObjectKey, Object] = {}
        self._index: dict[str, defaultdict[str, set[ObjectKey]]] = {
            name: defaultdict(set) for name in self._functions
        }
        # For the latest deleted objects, by uid: the version up to which their states are ignored, because
        # the answer to a write, or a late event, may arrive after the deletion.
        self._removed: dict[str, float] = {}
        self._ahead: dict[ObjectKey, _AheadOfEvents] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: ObjectKey) -> Object | None:
        """The object, or None. It must not be changed."""
        return self._objects.get(key)

    def items(self) -> list[Object]:
        """All objects. They must not be changed."""
        with self._lock:
            return list(self._objects.values())

    def by_index(self, index: str, value: str) -> list[Object]:
        """The objects found under `value`, by key. They must not be changed."""
        with self._lock:
            keys = self._index[index].get(value, ())
            return [self._objects[key] for key in sorted(keys)]

    def put(self, obj: Object) -> ObjectChange | None:
        """Store the state that an event reports.

        Returns:
            The change since the last report; None if there is nothing new, or it is our own write.
        """
        with self._lock:
            return self._report(obj, listed=False)

    def write_through(self, obj: Object) -> None:
        """Store the server's answer to our own write, before its event arrives."""
        with self._lock:
            key, version = key_of(obj), version_of(obj)
            reported = self._objects.get(key)
            if self._accept(key, obj) is None or version == 0:
                return
            ahead = self._ahead.get(key)
            if ahead is None or ahead.uid != _uid(obj):
                ahead = self._ahead[key] = _AheadOfEvents(reported, _uid(obj))
            ahead.own.add(version)

    def remove(self, obj: Object, version: float = math.inf) -> ObjectChange | None:
        """Remove an object, and ignore its states that arrive later.

        Args:
            obj: its last state.
            version: states up to this version are ignored. An object that no longer matches the scope's label
                selector can come back with a later version. By default all versions are ignored.

        Returns:
            The deletion; None if the object was not in the cache, or another object has its name.
        """
        with self._lock:
            self._bury(_uid(obj), version)
            key = key_of(obj)
            old = self._objects.get(key)
            if old is None or _uid(old) != _uid(obj):
                return None
            self._drop(key)
            self._ahead.pop(key, None)
            return ObjectChange(EventType.DELETED, obj, old)

    def replace(self, objects: Collection[Object], resource_version: str) -> list[ObjectChange]:
        """Store the result of a LIST, and return the differences: deleted objects, then added and changed
        ones.

        Objects that were written through after the list was made are kept.
        """
        with self._lock:
            taken = _taken_at(resource_version)
            gone = self.gone(objects, resource_version)
            changes = [self.remove(obj, max(taken, version_of(obj))) for obj in gone]
            listed = {key_of(obj): obj for obj in objects}
            changes += [self._report(obj, listed=True) for obj in listed.values()]
            return [change for change in changes if change is not None]

    def gone(self, objects: Collection[Object], resource_version: str) -> list[Object]:
        """The objects that `replace` deletes, given the result of a LIST."""
        uids, taken = {key_of(obj): _uid(obj) for obj in objects}, _taken_at(resource_version)
        with self._lock:
            cached = self._objects.items()
            return [obj for key, obj in cached if uids.get(key) != _uid(obj) and version_of(obj) <= taken]

    def holds(self, obj: Object) -> bool:
        """Whether the cache has any state of an object."""
        cached = self._objects.get(key_of(obj))
        return cached is not None and _uid(cached) == _uid(obj)

    def _report(self, obj: Object, *, listed: bool) -> ObjectChange | None:
        key = key_of(obj)
        old, kept = self._objects.get(key), self._accept(key, obj)
        ahead = self._ahead.get(key)
        if ahead is None or ahead.uid != _uid(obj):
            return None if kept is None else _change(kept, old)
        if ahead.reported is not None and not _newer(obj, ahead.reported):
            return None
        before, ahead.reported = ahead.reported, kept or self._keep(obj)
        if version_of(obj) >= version_of(self._objects.get(key, obj)):
            del self._ahead[key]
        # A list does not show what happened between two versions, so our own write is not recognized there.
        own = version_of(obj) in ahead.own and not listed
        return None if own else _change(ahead.reported, before)

    def _accept(self, key: ObjectKey, obj: Object) -> Object | None:
        """Store an object and return what the cache keeps of it. Return None, and store nothing, if the
        object was removed or the cache has this version or a newer one."""
        old = self._objects.get(key)
        over = version_of(obj) <= self._removed.get(_uid(obj), -1)
        if over or (old is not None and not _newer(obj, old)):
            return None
        return self._store(key, obj)

    def _bury(self, uid: str, version: float) -> None:
        self._removed[uid] = max(version, self._removed.get(uid, -1))
        if len(self._removed) > MAX_REMOVED:
            del self._removed[next(iter(self._removed))]

    def _store(self, key: ObjectKey, obj: Object) -> Object:
        self._drop(key)
        obj = self._objects[key] = self._keep(obj)
        for name, function in self._functions.items():
            for value in function(obj):
                self._index[name][value].add(key)
        return obj

    def _drop(self, key: ObjectKey) -> None:
        old = self._objects.pop(key, None)
        if old is None:
            return
        for name, function in self._functions.items():
            for value in function(old):
                keys = self._index[name][value]
                keys.discard(key)
                if not keys:
                    del self._index[name][value]


def _change(obj: Object, old: Object | None) -> ObjectChange:
    return ObjectChange(EventType.ADDED if old is None else EventType.MODIFIED, obj, old)


def _taken_at(resource_version: str) -> int:
    """The version at which a LIST was made; 0 if that is unknown."""
    return int(resource_version) if resource_version.isdecimal() else 0


def _uid(obj: Object) -> str:
    return str(obj["metadata"].get("uid") or "")


def _newer(obj: Object, old: Object) -> bool:
    if _uid(obj) != _uid(old):
        return version_of(obj) >= version_of(old)
    return version_of(obj) > version_of(old) or version_of(obj) == 0
