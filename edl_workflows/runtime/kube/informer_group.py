"""Informers that a program uses together: of several kinds, of one kind in several namespaces, and the
watch of the namespaces that it serves."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from edl_workflows.core.exceptions import EdlError, ForbiddenError
from edl_workflows.core.jobs import cache_fields
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube.cache import IndexFunction, KeepFunction, ObjectChange
from edl_workflows.runtime.kube.connect import ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import ALL_NAMESPACES, NAMESPACES, Object, ObjectKey, Scope
from edl_workflows.runtime.kube.watch import EventType

REPORT_EVERY = 20
"""A failing watch is reported the first time and then every 20th time, which is every five minutes at the
longest delay."""

NamespaceListener = Callable[[str, bool], None]
"""Called with the name of a namespace and whether it is served now."""


class InformerGroup:
    """The informers.

    A named namespace that the process may not read, for example because it was deleted with its RoleBinding,
    does not stop the others. If the process may read none of the named ones, it waits for all.

    Args:
        informers: not started yet.
        report: called with the errors of failing watches, now and then; see `REPORT_EVERY`.
    """

    def __init__(self, informers: Iterable[Informer], report: Callable[[Scope, EdlError], None]) -> None:
        self._informers = tuple(informers)
        self._report = report
        for informer in self._informers:
            informer.on_error(partial(self._count_failure, informer.scope))

    def start(self) -> None:
        """Begin to watch."""
        for informer in self._informers:
            informer.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Stop all watches, and wait at most this long in total for their threads."""
        deadline = time.monotonic() + seconds
        for informer in self._informers:
            informer.stop(join_seconds=0)
        for informer in self._informers:
            informer.stop(max(0.0, deadline - time.monotonic()))

    @property
    def unlisted(self) -> list[Scope]:
        """What is not listed yet; empty once decisions can be made. Refused namespaces do not count."""
        scopes = [informer.scope for informer in self._informers if not informer.synced]
        refused = self._refused_namespaces() if scopes else frozenset()
        return [scope for scope in scopes if scope.namespace not in refused]

    def unlisted_in(self, namespace: str) -> list[Scope]:
        """What is not listed yet of one namespace, which may be refused."""
        informers = (i for i in self._informers if i.scope.namespace in (ALL_NAMESPACES, namespace))
        return [informer.scope for informer in informers if not informer.synced]

    def waits_for(self) -> list[str]:
        """What is not listed yet, in words."""
        return [f"not listed yet: {scope}" for scope in self.unlisted]

    def wait_synced(self, seconds: float) -> bool:
        """Wait until decisions can be made. Return False on time-out."""
        if not self.unlisted:
            return True
        deadline = time.monotonic() + seconds
        listed = all(i.wait_synced(max(0.0, deadline - time.monotonic())) for i in self._informers)
        return listed or not self.unlisted

    def _refused_namespaces(self) -> frozenset[str]:
        """The named namespaces of which something was never listed because it is forbidden; none if that are
        all."""
        named = frozenset(i.scope.namespace for i in self._informers) - {ALL_NAMESPACES}
        refused = (i for i in self._informers if not i.synced and isinstance(i.last_error, ForbiddenError))
        namespaces = frozenset(informer.scope.namespace for informer in refused) & named
        return frozenset() if namespaces == named else namespaces

    def _count_failure(self, scope: Scope, error: EdlError, failures: int) -> None:
        if failures % REPORT_EVERY == 1:
            self._report(scope, error)


class NamespacedInformer:
    """The informers of one kind of objects; a single one for all namespaces.

    Args:
        source: the API server.
        scope: what to watch; its namespace has no effect.
        namespaces: where, as `NamespaceSelection.scopes`.
        indices, keep: see `ObjectCache`.
    """

    def __init__(
        self,
        source: ClusterSource,
        scope: Scope,
        namespaces: Collection[str],
        indices: Mapping[str, IndexFunction] | None = None,
        keep: KeepFunction = cache_fields.keep_whole,
    ) -> None:
        self._by_namespace = {
            namespace: Informer(source, replace(scope, namespace=namespace), indices, keep)
            for namespace in namespaces
        }
        self.informers = tuple(self._by_namespace.values())
        self._everywhere = self._by_namespace.get(ALL_NAMESPACES)

    @property
    def synced(self) -> bool:
        """Whether the first lists of all namespaces are there."""
        return all(informer.synced for informer in self.informers)

    def error_in(self, namespace: str) -> EdlError | None:
        """Why the watch of a namespace is down; None while it is up, or if the namespace is not watched."""
        informer = self._of(namespace)
        return None if informer is None else informer.last_error

    def get(self, key: ObjectKey) -> Object | None:
        """The object, or None. It must not be changed."""
        informer = self._of(key.namespace)
        return None if informer is None else informer.cache.get(key)

    def items(self) -> list[Object]:
        """All objects. They must not be changed."""
        if self._everywhere is not None:
            return self._everywhere.cache.items()
        return [obj for informer in self.informers for obj in informer.cache.items()]

    def by_index(self, index: str, value: str, namespace: str = ALL_NAMESPACES) -> list[Object]:
        """The objects found under `value` in one namespace or, by default, in all, by key. They must not be
        changed."""
        if namespace or self._everywhere is not None:
            informer = self._of(namespace)
            return [] if informer is None else informer.cache.by_index(index, value)
        return [obj for informer in self.informers for obj in informer.cache.by_index(index, value)]

    def put(self, obj: Object) -> None:
        """Write through the server's answer to a create or patch."""
        if (informer := self._of(obj["metadata"].get("namespace") or "")) is not None:
            informer.put(obj)

    def remove(self, obj: Object) -> None:
        """Write through the deletion of an object."""
        if (informer := self._of(obj["metadata"].get("namespace") or "")) is not None:
            informer.remove(obj)

    def on_change(self, listener: Callable[[ObjectChange], None]) -> None:
        """See `Informer.on_change`. The threads of several namespaces call `listener` at the same time."""
        for informer in self.informers:
            informer.on_change(listener)

    def on_leave(self, listener: Callable[[Object], None]) -> None:
        """See `Informer.on_leave`."""
        for informer in self.informers:
            informer.on_leave(listener)

    def on_error(self, listener: Callable[[EdlError, int], None]) -> None:
        """See `Informer.on_error`."""
        for informer in self.informers:
            informer.on_error(listener)

    def on_sync(self, listener: Callable[[], None]) -> None:
        """See `Informer.on_sync`."""
        for informer in self.informers:
            informer.on_sync(listener)

    def _of(self, namespace: str) -> Informer | None:
        return self._everywhere or self._by_namespace.get(namespace)


class ServedNamespaces:
    """The namespaces. Those of a selector are watched: one that gets the labels is served from then on, one
    that loses them is not.

    Args:
        source: the API server.
        selection: see `NamespaceSelection`.
    """

    def __init__(self, source: ClusterSource, selection: NamespaceSelection) -> None:
        self.selection = selection
        self._listeners: list[NamespaceListener] = []
        self._selected: Informer | None = None
        if selection.selector:
            scope = Scope(NAMESPACES, label_selector=selection.selector, metadata_only=True)
            self._selected = Informer(source, scope, keep=cache_fields.keep_head)
            self._selected.on_change(self._notify)

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The watch of the selected namespaces, if there is a selector. The owner starts and stops it."""
        return () if self._selected is None else (self._selected,)

    def includes(self, namespace: str) -> bool:
        """Whether a namespace is served. Without a selector, only such namespaces are ever watched."""
        selected = self._selected
        return selected is None or selected.cache.get(ObjectKey("", namespace)) is not None

    def on_change(self, listener: NamespaceListener) -> None:
        """Call `listener` with each namespace that is served from now on, or no longer, from the watch's
        thread. `includes` gives the same answer."""
        self._listeners.append(listener)

    def _notify(self, change: ObjectChange) -> None:
        if change.type is EventType.MODIFIED:
            return
        for listener in self._listeners:
            listener(change.key.name, change.type is EventType.ADDED)
