"""Deletes what a deletion leaves behind: dependents of owners, contents of namespaces, objects of
definitions.

It does what the garbage collector, the namespace controller and the CRD-finalizer controller of Kubernetes
do, and is level-triggered: every change puts keys into a queue, and so does, at the start, every object that
is being deleted or has an owner. Processing a key twice does no harm.

Events expire an hour after their last occurrence, as in Kubernetes: no component deletes them, so they would
fill the disk.
"""

import asyncio
import functools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import structlog

from edl_workflows.local.apiserver.objects import builtin, crds
from edl_workflows.local.apiserver.objects.deletion import (
    BACKGROUND,
    FOREGROUND,
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    DeletionOptions,
)
from edl_workflows.local.apiserver.objects.registry import Registry
from edl_workflows.local.apiserver.storage import revisions
from edl_workflows.local.apiserver.storage.revisions import Object, Revision, StoredChange, StoreKey

_log = structlog.get_logger(__name__)


class GarbageCollector:
    """Deletes objects whose owners are gone, and the contents of namespaces and definitions that are being
    deleted."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store = registry.store
        self._keys: dict[str, StoreKey] = {}
        self._dependents: dict[str, set[StoreKey]] = {}
        self._queue: dict[StoreKey, None] = {}  # a set in order of arrival
        self._wake = asyncio.Event()
        for resource in self._store.resources():
            for revision in self._store.list_objects(resource):
                self._observe(StoredChange(revisions.ADDED, revision, None))
        self._store.observe(self._observe)

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                self.step()
                await asyncio.sleep(0)  # lets requests run between two objects

    def step(self) -> bool:
        """Process one key of the queue. Return False if the queue is empty."""
        if not self._queue:
            return False
        key = next(iter(self._queue))
        del self._queue[key]
        try:
            self._collect(key)
        except Exception:  # noqa: BLE001 - one broken object must not stop the collection of others
            # The object's next change, or the next start, queues the key again.
            _log.exception("garbage collection failed", object="/".join(key))
        return True

    def _enqueue(self, key: StoreKey) -> None:
        self._queue[key] = None
        self._wake.set()

    def _observe(self, change: StoredChange) -> None:
        revision = change.revision
        key = revision.key
        for uid in change.previous.owners if change.previous else ():
            self._dependents.get(uid, set()).discard(key)
        if change.type == revisions.DELETED:
            self._keys.pop(revision.uid, None)
            for dependent in self._dependents.pop(revision.uid, set()):
                self._enqueue(dependent)
            for waiting in self._waiting_for(revision):
                self._enqueue(waiting)
            return
        self._keys[revision.uid] = key
        for uid in revision.owners:
            self._dependents.setdefault(uid, set()).add(key)
        if revision.owners or revision.deleting:
            self._enqueue(key)

    def _waiting_for(self, gone: Revision) -> Iterator[StoreKey]:
        candidates = [self._keys[uid] for uid in gone.owners if uid in self._keys]
        candidates.append(StoreKey("namespaces", "", gone.key.namespace))
        candidates.append(StoreKey(builtin.CRDS, "", gone.key.resource))
        for key in candidates:
            revision = self._store.get(key)
            if revision is not None and revision.deleting:
                yield key

    def _collect(self, key: StoreKey) -> None:
        revision = self._store.get(key)
        if revision is None:
            return
        if revision.owners and self._without_owners(revision):
            return
        if revision.deleting:
            self._deleting(revision)

    def _without_owners(self, revision: Revision) -> bool:
        """Delete an object whose owners are all gone, or remove its references to absent owners. Returns
        whether it was deleted."""
        present = [uid for uid in revision.owners if self._owns(uid, revision)]
        if len(present) == len(revision.owners):
            return False
        if present:
            self._registry.amend(revision.key, lambda meta: _keep_owners(meta, present))
        elif not revision.deleting:
            self._delete(revision.key, BACKGROUND, revision.uid)
        return not present

    def _owns(self, uid: str, dependent: Revision) -> bool:
        owner = self._keys.get(uid)
        return owner is not None and owner.namespace in ("", dependent.key.namespace)

    def _delete(self, key: StoreKey, propagation: str, uid: str) -> None:
        resource = self._registry.catalog.by_id(key.resource)
        if resource is not None:
            self._registry.delete(
                resource, key.namespace, key.name, DeletionOptions(propagation=propagation, uid=uid)
            )

    def _deleting(self, revision: Revision) -> None:
        finalizers = revision.decode()["metadata"].get("finalizers") or []
        if FOREGROUND_FINALIZER in finalizers:
            self._foreground(revision)
        elif ORPHAN_FINALIZER in finalizers:
            self._orphan(revision)
        elif revision.key.resource == "namespaces":
            self._empty(self._content(revision.key.name))
            if not any(self._content(revision.key.name)):
                self._registry.finish(revision.key)
        elif crds.CLEANUP_FINALIZER in finalizers and revision.key.resource == builtin.CRDS:
            self._empty(iter(self._store.list_objects(revision.key.name)))
            if not self._store.list_objects(revision.key.name):
                self._release(revision.key, crds.CLEANUP_FINALIZER)

    def _foreground(self, owner: Revision) -> None:
        blocked = False
        for key in list(self._dependents.get(owner.uid, ())):
            dependent = self._store.get(key)
            if dependent is None:
                continue
            if not dependent.deleting:
                self._delete(key, FOREGROUND, dependent.uid)
            references = dependent.decode()["metadata"]["ownerReferences"]
            blocks = any(
                reference["uid"] == owner.uid and reference.get("blockOwnerDeletion")
                for reference in references
            )
            blocked |= blocks and self._store.get(key) is not None
        if not blocked:
            self._release(owner.key, FOREGROUND_FINALIZER)

    def _orphan(self, owner: Revision) -> None:
        for key in list(self._dependents.get(owner.uid, ())):
            dependent = self._store.get(key)
            if dependent is not None:
                rest = [uid for uid in dependent.owners if uid != owner.uid]
                self._registry.amend(key, functools.partial(_keep_owners, uids=rest))
        self._release(owner.key, ORPHAN_FINALIZER)

    def _release(self, key: StoreKey, finalizer: str) -> None:
        def drop(meta: Object) -> None:
            meta["finalizers"] = [name for name in meta["finalizers"] if name != finalizer]
            if not meta["finalizers"]:
                del meta["finalizers"]

        self._registry.amend(key, drop)

    def _content(self, namespace: str) -> Iterator[Revision]:
        for resource in self._store.resources():
            served = self._registry.catalog.by_id(resource)
            if served is not None and served.namespaced:
                yield from self._store.list_objects(resource, namespace)

    def _empty(self, content: Iterator[Revision]) -> None:
        for revision in content:
            if not revision.deleting:
                self._delete(revision.key, BACKGROUND, revision.uid)


def _keep_owners(meta: Object, uids: list[str]) -> None:
    meta["ownerReferences"] = [owner for owner in meta["ownerReferences"] if owner["uid"] in uids]
    if not meta["ownerReferences"]:
        del meta["ownerReferences"]


EVENT_LIFE = timedelta(hours=1)
EVENT_SWEEP_SECONDS = 60.0
"""Interval between two scans of all events."""


async def expire_events(registry: Registry) -> None:
    """Expire events until cancelled."""
    while True:
        await asyncio.sleep(EVENT_SWEEP_SECONDS)
        await expire_events_once(registry, datetime.now(UTC))


async def expire_events_once(registry: Registry, now: datetime) -> None:
    """Delete the events that are older than `EVENT_LIFE`."""
    for revision in registry.store.list_objects("events"):
        if now - _last_seen(revision.decode()) > EVENT_LIFE and registry.store.get(revision.key) is revision:
            registry.store.delete(revision.key)
        await asyncio.sleep(0)  # lets requests run between two events


def _last_seen(event: Object) -> datetime:
    stamp = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    try:
        seen = datetime.fromisoformat(stamp)
    except ValueError:
        return datetime.fromisoformat(event["metadata"]["creationTimestamp"])
    return seen if seen.tzinfo else seen.replace(tzinfo=UTC)
