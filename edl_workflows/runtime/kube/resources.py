"""The resources that this layer knows, and keys, versions and scopes of their objects. No requests here."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes.api import (
    CONFIG_MAPS,
    CRDS,
    ELASTIC_JOBS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    POD_GROUPS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SCALE_PLANS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    ApiResource,
)

__all__ = [
    "ALL_NAMESPACES",
    "CONFIG_MAPS",
    "CRDS",
    "ELASTIC_JOBS",
    "EVENTS",
    "LEASES",
    "NAMESPACES",
    "NETWORK_POLICIES",
    "NODES",
    "PODS",
    "RESOURCES",
    "ROLES",
    "ROLE_BINDINGS",
    "SCALE_PLANS",
    "SECRETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "ApiResource",
    "Object",
    "ObjectKey",
    "Scope",
    "key_of",
    "of_kind",
    "of_manifest",
    "version_of",
]

JSON = "application/json"
ALL_NAMESPACES = ""
"""Stands for all namespaces when listing or watching."""

Object = dict[str, Any]
"""An object, as in its manifest. Objects returned by a cache must not be changed."""

RESOURCES = (
    NAMESPACES, NODES, PODS, SERVICES, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, EVENTS, LEASES, ROLES,
    ROLE_BINDINGS,
    CRDS, ELASTIC_JOBS, SCALE_PLANS, POD_GROUPS, NETWORK_POLICIES,
)  # fmt: skip
"""Resources that callers of this layer use; `of_kind` also knows the registered job kinds."""

_BY_KIND = {(resource.api_version, resource.kind): resource for resource in RESOURCES}


def of_manifest(manifest: Mapping[str, Any]) -> ApiResource:
    """The resource that a manifest's ``apiVersion`` and ``kind`` name.

    Raises:
        InvalidError: the resource is unknown.
    """
    return of_kind(str(manifest.get("apiVersion", "")), str(manifest.get("kind", "")))


def of_kind(api_version: str, kind: str) -> ApiResource:
    """The resource of an ``apiVersion`` and a ``kind``.

    Raises:
        InvalidError: the resource is unknown.
    """
    resource = _BY_KIND.get((api_version, kind)) or _of_job_kinds(api_version, kind)
    if resource is None:
        raise InvalidError(f"unknown kind {kind!r} with apiVersion {api_version!r}; check both fields")
    return resource


def _of_job_kinds(api_version: str, kind: str) -> ApiResource | None:
    """Look up a kind in the registry of job kinds. The registry is imported here because its import is slow,
    and callers that only need pods should not wait for it."""
    from edl_workflows.core.jobs.kinds import KINDS

    for job_kind in KINDS:
        api = job_kind.source.api
        for version in (api.version, *job_kind.crd.also_served):
            resource = replace(api, version=version)
            if (resource.api_version, resource.kind) == (api_version, kind):
                return resource
    return None


class ObjectKey(NamedTuple):
    """Namespace and name of an object; printed as ``namespace/name``."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(obj: Mapping[str, Any]) -> ObjectKey:
    """The key of an object; events and caches are keyed by it."""
    metadata = obj.get("metadata") or {}
    return ObjectKey(metadata.get("namespace") or "", metadata.get("name") or "")


def version_of(obj: Mapping[str, Any]) -> int:
    """The object's resourceVersion as a number, to compare the age of two states; 0 if it is not a number.

    The API server's versions are decimal numbers that grow (stated as a guarantee since Kubernetes 1.35,
    KEP-5504, and true of every earlier server that stores in etcd).
    """
    text = (obj.get("metadata") or {}).get("resourceVersion") or ""
    return int(text) if text.isdecimal() else 0


@dataclass(frozen=True)
class Scope:
    """What to list or to watch.

    Attributes:
        resource: the kind.
        namespace: a namespace, or `ALL_NAMESPACES`.
        label_selector, field_selector: as kubectl's ``-l`` and ``--field-selector``.
        metadata_only: whether the server sends nothing but the objects' metadata (``PartialObjectMetadata``).
    """

    resource: ApiResource
    namespace: str = ALL_NAMESPACES
    label_selector: str = ""
    field_selector: str = ""
    metadata_only: bool = False

    @property
    def path(self) -> str:
        """URL path of the collection."""
        return self.resource.path(self.namespace)

    @property
    def query(self) -> list[tuple[str, str]]:
        """Query parameters of the selectors."""
        pairs = (("labelSelector", self.label_selector), ("fieldSelector", self.field_selector))
        return [(name, value) for name, value in pairs if value]

    def accept(self, kind: Literal["PartialObjectMetadata", "PartialObjectMetadataList"]) -> str:
        """The ``Accept`` header of a request.

        Args:
            kind: what to ask for if only the metadata is needed: the list for a LIST, one object for a WATCH.
        """
        return f"{JSON};as={kind};g=meta.k8s.io;v=v1" if self.metadata_only else JSON

    def name_kind(self, obj: Object) -> Object:
        """An object of an answer, with the ``apiVersion`` and ``kind`` of the resource: built-in objects in
        lists have none, and of metadata alone they say only that it is metadata."""
        kind = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        return {**obj, **kind} if self.metadata_only else {**kind, **obj}

    def __str__(self) -> str:
        where = f"namespace {self.namespace}" if self.namespace else "all namespaces"
        return f"{self.resource.plural} in {where}" if self.resource.namespaced else self.resource.plural
