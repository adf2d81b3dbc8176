"""The watched objects of all kinds, grouped by the job that they belong to.

There is one informer for each `Source`. The controller puts what it writes into the cache at once, so that no
decision is based on a state older than the controller's own last write.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog

from edl_workflows.core.exceptions import EdlError, NotFoundError
from edl_workflows.core.jobs.kind import Kind, Source
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.informer_group import InformerGroup
from edl_workflows.runtime.kube.resources import ApiResource, Object, Scope, key_of
from edl_workflows.runtime.kube.watch import EventType

log = structlog.get_logger(__name__)


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

    A definition that the cluster lacks, or that is deleted, stops only the kinds that need it. They come by
    themselves when the definition does.

    Args:
        cluster: the API server.
        namespace: the watched namespace, or `ALL_NAMESPACES`.
        sources: what to watch.
        definitions: those of the sources' resources that have a definition of ours.
        on_change: called with each group in which something changed that decisions read, from an informer's
            thread.
        report: see `InformerGroup`.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        sources: Sequence[Source],
        definitions: Collection[ApiResource],
        on_change: Callable[[JobGroup], None],
        report: Callable[[Scope, EdlError], None],
    ) -> None:
        self._cluster = cluster
        self._notify = on_change
        self._definitions = frozenset(definitions)
        self._missing: set[ApiResource] = set()
        self._by_source = {
            source: self._informer(ClusterSource.of(cluster), namespace, source) for source in sources
        }
        super().__init__(self._by_source.values(), report)
        self._sources: dict[tuple[str, str], list[Source]] = {}
        for source in sources:
            self._sources.setdefault((source.api.api_version, source.api.kind), []).append(source)

    @property
    def unlisted(self) -> list[Scope]:
        """What is not listed yet. A missing definition does not count, unless all are missing."""
        scopes = super().unlisted
        if self._missing == self._definitions:
            return scopes
        return [scope for scope in scopes if scope.resource not in self._missing]

    def wait_synced(self, seconds: float) -> bool:
        """Wait until decisions can be made. Return False on time-out."""
        return super().wait_synced(seconds) or not self.unlisted

    def is_missing(self, resource: ApiResource) -> bool:
        """Whether the API server lacks the definition of a resource."""
        return resource in self._missing

    def serves(self, kind: Kind) -> bool:
        """Whether the API server has all definitions that decisions about a kind need."""
        return self._missing.isdisjoint(source.api for source in (kind.source, *kind.observes))

    def of_group(self, source: Source, group: JobGroup) -> list[Object]:
        """The objects of a source that belong to the group, by name."""
        return self._by_source[source].cache.by_index("group", str(group))

    def items(self, source: Source) -> list[Object]:
        """All objects of a source."""
        return self._by_source[source].cache.items()

    def listen(self, source: Source, listener: Callable[[ObjectChange], None]) -> None:
        """Call `listener` with each change of a source's objects, except our own writes, from the informer's
        thread."""
        self._by_source[source].on_change(listener)

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
        for source in self._sources_of(obj):
            self._by_source[source].remove(obj)

    def find(self, api_version: str, kind: str, group: JobGroup, name: str) -> Object | None:
        """The cached object of the group by kind and name."""
        sources = self._sources.get((api_version, kind), ())
        objects = (obj for source in sources for obj in self.of_group(source, group))
        return next((obj for obj in objects if obj["metadata"]["name"] == name), None)

    def notify_all(self) -> None:
        """Report each group as changed."""
        for source, informer in self._by_source.items():
            for group in {group_of(source, obj) for obj in informer.cache.items()}:
                if group is not None:
                    self._notify(group)

    def refresh(self) -> None:
        """List everything anew, so that the caches contain all that was written before.

        Raises:
            EdlError: a list failed.
        """
        for source, informer in self._by_source.items():
            if source.api not in self._missing:
                informer.refresh(self._cluster)

    def _note_missing(self, resource: ApiResource, error: EdlError, _failures: int) -> None:
        if isinstance(error, NotFoundError):
            self._missing.add(resource)

    def _note_served(self, resource: ApiResource) -> None:
        if resource not in self._missing:
            return
        self._missing.discard(resource)
        log.info("the API server has this kind now", resource=f"{resource.plural}.{resource.group}")
        # Decisions about these and other kinds were left out meanwhile.
        self.notify_all()

    def _sources_of(self, obj: Object) -> list[Source]:
        sources = self._sources.get((obj.get("apiVersion", ""), obj.get("kind", "")), ())
        return [s for s in sources if s.selects(obj) and group_of(s, obj) is not None]

    def _informer(self, cluster: ClusterSource, namespace: str, source: Source) -> Informer:
        scope = Scope(
            source.api, namespace, label_selector=source.selector, metadata_only=source.metadata_only
        )

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

        informer = Informer(cluster, scope, {"group": index}, source.keep)
        informer.on_change(changed)
        if source.api in self._definitions:
            informer.on_error(partial(self._note_missing, source.api))
            informer.on_sync(partial(self._note_served, source.api))
        return informer
