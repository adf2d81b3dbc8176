"""The resources of the server: the built-in ones and those that CustomResourceDefinitions add.

A `ServedResource` holds all that the registry needs to know about one served version of a kind. `builtin` and
`crds` create them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edl_workflows.core.schemas.structural import Schema
from edl_workflows.local.apiserver.errors import Cause
from edl_workflows.local.apiserver.objects import schemas
from edl_workflows.local.apiserver.objects.rules import CelRuleTree
from edl_workflows.local.apiserver.storage.revisions import Object

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
"""The verbs of stored objects."""
Fill = Callable[[Object], None]
"""Sets defaults in place."""
Check = Callable[[Object, Object | None], list[Cause]]
"""Called with the new object and the old one or None; returns the problems."""


@dataclass(frozen=True)
class TableColumn:
    """A column of ``kubectl get``, as in a CRD's additionalPrinterColumns."""

    name: str
    type: str
    path: str
    description: str = ""
    format: str = ""
    priority: int = 0


@dataclass(frozen=True)
class ScalePaths:
    """JSON paths that the scale subresource reads and writes (``.spec.replicas``)."""

    spec_path: str
    status_path: str
    selector_path: str = ""


def _fill_nothing(obj: Object) -> None:
    del obj


def _check_nothing(obj: Object, old: Object | None) -> list[Cause]:
    del obj, old
    return []


@dataclass(frozen=True)
class ServedResource:
    """One served version of one kind.

    Attributes:
        group: API group; empty for the core group.
        version: the served version.
        storage_version: the version in which objects are stored. Conversion changes only ``apiVersion``.
        plural: the name in URL paths.
        singular: an alternative name for kubectl.
        kind: the name in manifests.
        namespaced: whether objects belong to namespaces.
        short_names: kubectl's abbreviations.
        categories: groups of resources, such as ``all``.
        custom: whether a CRD defines it.
        has_status: whether there is a status subresource. If so, writes to the main resource cannot change
            ``status``, and writes to the subresource change only that.
        scale: the scale subresource.
        subresources: other subresources, for discovery.
        schema: structural schema of the whole object.
        rules: its CEL rules.
        columns: what ``kubectl get`` prints besides the name.
        field_paths: field selectors besides metadata.name and metadata.namespace, with the JSON paths that
            they read.
        label_name: whether names of objects must be DNS labels rather than subdomains.
        fill: sets defaults that the schema does not contain.
        check: makes checks that the schema does not contain.
        graceful: whether a deletion waits until a component has ended the object (pods).
        verbs: the verbs that its objects support; reviews can only be created, and are not stored.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    storage_version: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    custom: bool = False
    has_status: bool = False
    scale: ScalePaths | None = None
    subresources: tuple[str, ...] = ()
    schema: Schema = field(default_factory=dict)
    rules: CelRuleTree = field(default_factory=CelRuleTree)
    columns: tuple[TableColumn, ...] = ()
    field_paths: Mapping[str, str] = field(default_factory=dict)
    label_name: bool = False
    fill: Fill = _fill_nothing
    check: Check = _check_nothing
    graceful: bool = False
    verbs: tuple[str, ...] = VERBS

    @property
    def id(self) -> str:
        """The store's name for the resource: ``pods``, ``elasticjobs.elastic.iml.github.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` in manifests: ``v1``, ``elastic.iml.github.io/v1alpha1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored_as(self) -> str:
        """The ``apiVersion`` of stored objects."""
        version = self.storage_version or self.version
        return f"{self.group}/{version}" if self.group else version

    @property
    def counts_generation(self) -> bool:
        """Whether ``metadata.generation`` counts changes of the spec; the same kinds as in Kubernetes."""
        return self.custom or self.graceful or self.plural == "customresourcedefinitions"

    @property
    def selectable_fields(self) -> frozenset[str]:
        """The fields that field selectors may name."""
        return frozenset({"metadata.name", "metadata.namespace", *self.field_paths})


class Catalog:
    """All served resources, by path and by kind."""

    def __init__(self, builtin: Iterable[ServedResource]) -> None:
        self._by_path: dict[tuple[str, str, str], ServedResource] = {}
        self._by_id: dict[str, list[ServedResource]] = {}
        self.generation = 0
        """Increases with each change, so that caches derived from the catalog know when they are outdated."""
        for resource in builtin:
            self._add(resource)

    def _add(self, resource: ServedResource) -> None:
        self._by_path[resource.group, resource.version, resource.plural] = resource
        self._by_id.setdefault(resource.id, []).append(resource)

    def __iter__(self) -> Iterator[ServedResource]:
        return iter(list(self._by_path.values()))

    def replace(self, resource_id: str, resources: Iterable[ServedResource]) -> None:
        """Serve these versions of a custom resource instead of the former ones. With no versions, stop
        serving it."""
        for old in self._by_id.pop(resource_id, []):
            del self._by_path[old.group, old.version, old.plural]
        for resource in resources:
            self._add(resource)
        self.generation += 1

    def at(self, group: str, version: str, plural: str) -> ServedResource | None:
        """The resource at a path; None if nothing is served there."""
        return self._by_path.get((group, version, plural))

    def by_id(self, resource_id: str) -> ServedResource | None:
        """A served version of the resource with this `ServedResource.id`: the storage version if that is
        served, otherwise any other."""
        versions = self._by_id.get(resource_id, [])
        stored = [resource for resource in versions if resource.api_version == resource.stored_as]
        return next(iter(stored or versions), None)

    def index(self, resource_id: str, obj: Object) -> Mapping[str, str]:
        """The values that field selectors can select by. This is the store's `FieldIndex`."""
        metadata = obj["metadata"]
        values = {"metadata.name": metadata["name"], "metadata.namespace": metadata.get("namespace", "")}
        resource = self.by_id(resource_id)
        for name, path in resource.field_paths.items() if resource else ():
            values[name] = _spell(schemas.value_at_path(obj, path))
        return values


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
