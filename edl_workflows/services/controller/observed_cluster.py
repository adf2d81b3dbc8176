"""The watched objects of all kinds, grouped by the job that they belong to.

There is one informer for each `Source` and namespace, or for all namespaces. The controller puts what it
writes into the cache at once, so that no decision is based on a state older than the controller's own last
write.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import structlog

from edl_workflows.core.exceptions import EdlError, ForbiddenError, NotFoundError
from edl_workflows.core.jobs.kind import Kind, Source
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.informer_group import (
    InformerGroup,
    NamespacedInformer,
    NamespaceListener,
    ServedNamespaces,
)
from edl_workflows.runtime.kube.resources import ApiResource, Object, Scope, key_of
from edl_workflows.runtime.kube.watch import EventType

log = structlog.get_logger(__name__)

REFUSED_SECONDS = 10.0
"""How long `ObservedCluster.refresh` tries again in all, while lists are forbidden that are being watched:
permissions may be missing for a moment while roles and tokens are renewed."""
REFUSED_PAUSE = 0.5
"""Seconds between these attempts."""


class JobGroup(NamedTuple):
    """All objects of one job, printed as ``namespace/job``. Two workers never work on one group."""

    namespace: str
    job: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.job}"


def group_of(source: Source, obj: Mapping[str, Any]) -> JobGroup | None:
    """The group that an object of this source belongs to; None if it belongs to no job."""
    try:
        job = source.job_of(obj)
    except (AttributeError, KeyError, TypeError):
        # An object can be so malformed only if the CRD's schema is missing or older.
        log.warning("object without a readable job", kind=source.api.kind, name=str(key_of(obj)))
        return None
    return JobGroup(obj["metadata"].get("namespace") or "", job) if job else None


class ObservedCluster(InformerGroup):
    """The informers of all sources.

    If namespaces are selected by their labels, those of all namespaces are watched. Nothing is reported of
    objects in others than the selected ones, and `items` leaves them out.

    A definition that the cluster lacks, or that is deleted, stops only the kinds that need it. They come by
    themselves when the definition does.

    Args:
        cluster: the API server.
        selection: the namespaces whose jobs are observed.
        sources: what to watch.
        definitions: those of the sources' resources that have a definition of ours.
        on_change: called with each group in which something changed that decisions read, from an informer's
            thread.
        report: see `InformerGroup`.
    """

    def __init__(
        self,
        cluster: Cluster,
        selection: NamespaceSelection,
        sources: Sequence[Source],
        definitions: Collection[ApiResource],
        on_change: Callable[[JobGroup], None],
        report: Callable[[Scope, EdlError], None],
    ) -> None:
        self._cluster = cluster
        self._notify = on_change
        self._definitions = frozenset(definitions)
        self._missing: set[ApiResource] = set()
        connection = ClusterSource.of(cluster)
        self._served = ServedNamespaces(connection, selection)
        self._waiting = set(selection.names) if len(selection.names) > 1 else set()
        """Those of several namespaces in which something is not listed yet."""
        self._filters = bool(self._waiting or self._served.informers)
        """Whether objects may be observed in namespaces that are not served."""
        self._namespace_listeners: list[NamespaceListener] = []
        self._leave_listeners: list[Callable[[Object], None]] = []
        self._served.on_change(self._report_namespace)
        self._by_source = {source: self._informer(connection, selection, source) for source in sources}
        informers = chain.from_iterable(informer.informers for informer in self._by_source.values())
        super().__init__([*self._served.informers, *informers], report)
        self._sources: dict[tuple[str, str], list[Source]] = {}
        for source in sources:
            self._sources.setdefault((source.api.api_version, source.api.kind), []).append(source)

    @property
    def unlisted(self) -> list[Scope]:
        """See `InformerGroup.unlisted`. A missing definition does not count either, unless all are
        missing."""
        scopes = super().unlisted
        if self._missing == self._definitions:
            return scopes
        return [scope for scope in scopes if scope.resource not in self._missing]

    def wait_synced(self, seconds: float) -> bool:
        """Wait until decisions can be made. Return False on time-out."""
        synced = super().wait_synced(seconds)
        for namespace in tuple(self._waiting):
            self._note_listed(namespace)  # the informers' threads do so a moment later
        return synced

    def is_missing(self, resource: ApiResource) -> bool:
        """Whether the API server lacks the definition of a resource."""
        return resource in self._missing

    def serves(self, kind: Kind) -> bool:
        """Whether the API server has all definitions that decisions about a kind need."""
        return self._missing.isdisjoint(source.api for source in (kind.source, *kind.observes))

    def of_group(self, source: Source, group: JobGroup) -> list[Object]:
        """The objects of a source that belong to the group, by name."""
        return self._by_source[source].by_index("group", str(group), group.namespace)

    def items(self, source: Source) -> list[Object]:
        """All objects of a source."""
        objects = self._by_source[source].items()
        return [obj for obj in objects if self._is_served(obj)] if self._filters else objects

    def serves_namespace(self, namespace: str) -> bool:
        """Whether the jobs of a namespace are reconciled now. Those of one of several namespaces are from
        when everything in it is listed."""
        return namespace not in self._waiting and self._served.includes(namespace)

    def on_namespace(self, listener: NamespaceListener) -> None:
        """Call `listener` with each namespace whose jobs are reconciled from now on, or no longer, from an
        informer's thread. `serves_namespace` gives the same answer."""
        self._namespace_listeners.append(listener)

    def listen(self, source: Source, listener: Callable[[ObjectChange], None]) -> None:
        """Call `listener` with each change of a source's objects, except our own writes, from the informer's
        thread."""
        self._by_source[source].on_change(self._for_served(listener))

    def reads_metadata_only(self, resource: ApiResource) -> bool:
        """Whether decisions read only the metadata of a resource's objects."""
        sources = self._sources.get((resource.api_version, resource.kind), ())
        return bool(sources) and all(source.metadata_only for source in sources)

    def wrote(self, obj: Object) -> None:
        """Put an object that we have written into the cache, as the server returned it."""
        for source in self._sources_of(obj):
            self._by_source[source].put(obj)

    def removed(self, obj: Object) -> None:
        """Remove an object that we have deleted from the cache."""
        self._note_leaving(obj)
        for source in self._sources_of(obj):
            self._by_source[source].remove(obj)

    def on_leave(self, listener: Callable[[Object], None]) -> None:
        """Call `listener` with each object that we or others have deleted, before it leaves the cache."""
        self._leave_listeners.append(listener)

    def find(self, api_version: str, kind: str, group: JobGroup, name: str) -> Object | None:
        """The cached object of the group by kind and name."""
        sources = self._sources.get((api_version, kind), ())
        objects = (obj for source in sources for obj in self.of_group(source, group))
        return next((obj for obj in objects if obj["metadata"]["name"] == name), None)

    def notify_all(self) -> None:
        """Report each group as changed."""
        for source, informer in self._by_source.items():
            for group in {group_of(source, obj) for obj in informer.items()}:
                if group is not None and self.serves_namespace(group.namespace):
                    self._notify(group)

    def refresh(self) -> None:
        """List everything anew, so that the caches contain all that was written before. A namespace that
        stays refused is left out, unless all are.

        Raises:
            EdlError: a list failed.
        """
        deadline = time.monotonic() + REFUSED_SECONDS
        for source, informer in self._by_source.items():
            if source.api not in self._missing:
                self._refresh(informer, deadline)

    def _refresh(self, informer: NamespacedInformer, deadline: float) -> None:
        if len(informer.informers) == 1:
            informer.informers[0].refresh(self._cluster)
            return
        refusals = [error for part in informer.informers if (error := self._refusal(part, deadline))]
        if len(refusals) == len(informer.informers):
            raise refusals[0]

    def _refusal(self, informer: Informer, deadline: float) -> ForbiddenError | None:
        """List anew. Return the error of a namespace that stays refused: its watch is refused, too, or the
        deadline has passed."""
        while True:
            try:
                informer.refresh(self._cluster)
            except ForbiddenError as error:
                # Where the process may not list, it may not write either.
                if isinstance(informer.last_error, ForbiddenError) or time.monotonic() >= deadline:
                    log.warning("not listed anew", watch=str(informer.scope), error=str(error))
                    return error
                time.sleep(REFUSED_PAUSE)
            else:
                return None

    def _note_leaving(self, obj: Object) -> None:
        for listener in self._leave_listeners:
            listener(obj)

    def _note_missing(self, resource: ApiResource, error: EdlError, _failures: int) -> None:
        if isinstance(error, NotFoundError):
            self._missing.add(resource)
            for namespace in tuple(self._waiting):
                self._note_listed(namespace)

    def _note_served(self, resource: ApiResource, informer: NamespacedInformer) -> None:
        if resource not in self._missing:
            return
        if any(isinstance(part.last_error, NotFoundError) for part in informer.informers):
            return  # not listed again in every namespace
        self._missing.discard(resource)
        log.info("the API server has this kind now", resource=f"{resource.plural}.{resource.group}")
        # Decisions about these and other kinds were left out meanwhile.
        self.notify_all()

    def _sources_of(self, obj: Object) -> list[Source]:
        sources = self._sources.get((obj.get("apiVersion", ""), obj.get("kind", "")), ())
        return [s for s in sources if s.selects(obj) and group_of(s, obj) is not None]

    def _is_served(self, obj: Object) -> bool:
        return self.serves_namespace(obj["metadata"].get("namespace") or "")

    def _for_served(self, listener: Callable[[ObjectChange], None]) -> Callable[[ObjectChange], None]:
        """The listener without changes in namespaces that are not served."""
        if not self._filters:
            return listener
        return lambda change: listener(change) if self._is_served(change.object) else None

    def _report_namespace(self, namespace: str, served: bool, /) -> None:
        log.info("namespace is served now" if served else "namespace is left alone now", namespace=namespace)
        if served:
            self._notify_namespace(namespace)
        for listener in self._namespace_listeners:
            listener(namespace, served)

    def _notify_namespace(self, namespace: str) -> None:
        """Report each group of a namespace as changed."""
        for source, informer in self._by_source.items():
            objects = (obj for obj in informer.items() if obj["metadata"].get("namespace") == namespace)
            for group in {group_of(source, obj) for obj in objects}:
                if group is not None:
                    self._notify(group)

    def _note_listed(self, namespace: str) -> None:
        """Serve one of several namespaces if everything in it is listed."""
        informers = (i for i in self._informers if i.scope.namespace == namespace)
        listed = all(i.synced or i.scope.resource in self._missing for i in informers)
        if listed and namespace in self._waiting:
            self._waiting.discard(namespace)
            self._report_namespace(namespace, True)

    def _informer(
        self, cluster: ClusterSource, selection: NamespaceSelection, source: Source
    ) -> NamespacedInformer:
        scope = Scope(source.api, label_selector=source.selector, metadata_only=source.metadata_only)

        def index(obj: Object) -> list[str]:
            group = group_of(source, obj)
            return [str(group)] if group is not None else []

        def changed(change: ObjectChange) -> None:
            new, old = change.object, change.old
            modified = change.type is EventType.MODIFIED
            if modified and old is not None and not source.asks_for_decision(new, old):
                return
            states = (new,) if old is None else (new, old)
            for group in {group_of(source, state) for state in states}:
                if group is not None:
                    self._notify(group)

        informer = NamespacedInformer(cluster, scope, selection.scopes, {"group": index}, source.keep)
        informer.on_change(self._for_served(changed))
        informer.on_leave(self._note_leaving)
        if source.api in self._definitions:
            informer.on_error(partial(self._note_missing, source.api))
            informer.on_sync(partial(self._note_served, source.api, informer))
        if self._waiting:
            for part in informer.informers:
                part.on_sync(partial(self._note_listed, part.scope.namespace))
        return informer
