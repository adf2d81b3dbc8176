"""The verbs: get, list, create, replace, patch and delete, over plain dicts, for every resource.

``namespace=None`` means the cluster handle's own. Each function raises the errors of
`edl_workflows.core.exceptions`: NotFoundError, AlreadyExistsError, ConflictError, ForbiddenError,
ManifestError, InvalidError, UnavailableError. Calls that can be repeated are, on 429, 5xx and broken
connections. Watching is in `watch`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import stamina

from edl_workflows.core.exceptions import (
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.runtime.kube import errors, resources, transport
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.errors import ExpiredError
from edl_workflows.runtime.kube.resources import JSON, Object, Scope
from edl_workflows.runtime.kube.transport import ApiRequest

PAGE_SIZE = 500
"""Objects a LIST page, as client-go's pager asks for."""

SERVICE_SECONDS = 3.0
"""To wait for a program behind a Service."""
MAX_SERVICE_BYTES = 64 * 1024
"""Of its answer."""

CONFLICT_SECONDS = 20.0
"""How long `retry_conflicts` goes on."""

T = TypeVar("T")
FieldValidation = Literal["Strict", "Warn", "Ignore"]


@dataclass(frozen=True)
class ObjectList:
    """What a LIST returned.

    Attributes:
        items: the objects, each with ``apiVersion`` and ``kind``.
        resource_version: from which a watch goes on without a gap.
    """

    items: list[Object]
    resource_version: str


@dataclass(frozen=True)
class ServiceAddress:
    """A path of a program behind a Service."""

    namespace: str
    service: str
    port: int
    path: str


@dataclass(frozen=True)
class DeletionOptions:
    """How to delete.

    Attributes:
        uid: delete only this very object, not a later one of the same name.
        resource_version: delete only if nothing changed since this version was read.
        propagation: what happens to what it owns.
        grace_seconds: before a pod is killed; None leaves it to the pod.
    """

    uid: str | None = None
    propagation: Literal["Background", "Foreground", "Orphan"] = "Background"
    grace_seconds: int | None = None
    resource_version: str | None = None

    def to_body(self) -> dict[str, Any]:
        """The ``metav1.DeleteOptions``."""
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": self.propagation,
        }
        conditions = {"uid": self.uid, "resourceVersion": self.resource_version}
        if any(conditions.values()):
            body["preconditions"] = {name: value for name, value in conditions.items() if value}
        if self.grace_seconds is not None:
            body["gracePeriodSeconds"] = self.grace_seconds
        return body


def get(cluster: Cluster, resource: ApiResource, name: str, namespace: str | None = None) -> Object:
    """The object.

    Raises:
        NotFoundError: it is not there.
    """
    return _send(cluster, _request(cluster, "get", resource, name, namespace))


def find(cluster: Cluster, resource: ApiResource, name: str, namespace: str | None = None) -> Object | None:
    """The object, or None if it is not there."""
    try:
        return get(cluster, resource, name, namespace)
    except NotFoundError:
        return None


def find_listed(
    cluster: Cluster,
    resource: ApiResource,
    name: str,
    namespace: str | None = None,
    *,
    metadata_only: bool = False,
) -> Object | None:
    """As `find`, by a LIST of one: who watches a kind needs no further right for it."""
    where = _namespace(cluster, resource, namespace)
    own = f"metadata.name={name}"
    scope = Scope(resource, where, field_selector=own, metadata_only=metadata_only)
    return next(iter(list_objects(cluster, scope).items), None)


def list_objects(cluster: Cluster, scope: Scope, page_size: int = PAGE_SIZE) -> ObjectList:
    """All objects of a scope, page by page, as of one resourceVersion.

    Raises:
        NotFoundError: the server has no such kind.
    """
    try:
        pages = list(_pages(cluster, scope, page_size))
    except ExpiredError:  # the list took longer than the server keeps its continue token: all at once then
        pages = list(_pages(cluster, scope, 0))
    items = [scope.name_kind(item) for page in pages for item in page.get("items") or []]
    return ObjectList(items, pages[-1].get("metadata", {}).get("resourceVersion", ""))


def _pages(cluster: Cluster, scope: Scope, page_size: int) -> Iterator[Object]:
    token = ""
    while True:
        query = list(scope.query)
        if page_size:
            query.append(("limit", str(page_size)))
        if token:
            query.append(("continue", token))
        request = ApiRequest(
            "list",
            scope.resource.plural,
            scope.path,
            f"list {scope}",
            tuple(query),
            accept=scope.accept("PartialObjectMetadataList"),
        )
        page = _send(cluster, request)
        yield page
        token = (page.get("metadata") or {}).get("continue") or ""
        if not token:
            return


def create(
    cluster: Cluster,
    manifest: Mapping[str, Any],
    namespace: str | None = None,
    field_validation: FieldValidation = "Strict",
    resource: ApiResource | None = None,
    *,
    dry_run: bool = False,
) -> Object:
    """Create an object; the resource is what the manifest's apiVersion and kind say.

    Args:
        cluster: where.
        manifest: the object; its own namespace wins over `namespace`.
        namespace: for a manifest that names none.
        field_validation: whether the server refuses unknown fields.
        resource: of a kind that this layer does not know.
        dry_run: let the server check and answer all, and store nothing.

    Raises:
        AlreadyExistsError: an object of that name is there.
        ManifestError: the server found it invalid; with each field's path.
    """
    resource = resource or resources.of_manifest(manifest)
    metadata = manifest.get("metadata") or {}
    where = _namespace(cluster, resource, metadata.get("namespace") or namespace)
    label = _label(resource, where, metadata.get("name") or f"{metadata.get('generateName', '')}*")
    request = ApiRequest(
        "create",
        resource.plural,
        resource.path(where),
        f"create {label}",
        (("fieldValidation", field_validation), *((("dryRun", "All"),) if dry_run else ())),
        dict(manifest),
        idempotent=False,
    )
    return _send(cluster, request)


def replace(cluster: Cluster, manifest: Mapping[str, Any]) -> Object:
    """Write a whole object back (PUT); its resourceVersion guards against a lost update.

    Raises:
        ConflictError: it changed since it was read.
        NotFoundError: it is gone.
    """
    resource = resources.of_manifest(manifest)
    metadata = manifest["metadata"]
    request = _request(
        cluster, "update", resource, metadata["name"], metadata.get("namespace"), body=dict(manifest)
    )
    return _send(cluster, request)


def patch(
    cluster: Cluster,
    resource: ApiResource,
    name: str,
    body: Mapping[str, Any],
    namespace: str | None = None,
    subresource: Literal["", "status", "scale"] = "",
) -> Object:
    """Apply a JSON merge patch (null removes a field, lists are replaced whole).

    Put ``metadata.resourceVersion`` into the patch to have it refused if the object changed meanwhile, and
    ``metadata.uid`` to have it refused if it is another object of the same name.

    Raises:
        ConflictError: one of these does not match.
        NotFoundError: the object is gone.
    """
    request = _request(
        cluster, "patch", resource, name, namespace, subresource, dict(body), transport.MERGE_PATCH
    )
    return _send(cluster, request)


def patch_status(
    cluster: Cluster,
    resource: ApiResource,
    name: str,
    status: Mapping[str, Any],
    namespace: str | None = None,
    uid: str | None = None,
    resource_version: str | None = None,
) -> Object:
    """Merge `status` into the object's status.

    Args:
        cluster: where.
        resource: the object's kind.
        name: its name.
        status: what to merge; null removes a field.
        namespace: its namespace.
        uid: patch only this very object.
        resource_version: patch the object only in this version.

    Raises:
        ConflictError: the object has another uid or version.
        NotFoundError: the object is gone.
    """
    body: dict[str, Any] = {"status": dict(status)}
    conditions = {"uid": uid, "resourceVersion": resource_version}
    if metadata := {key: value for key, value in conditions.items() if value}:
        body["metadata"] = metadata
    return patch(cluster, resource, name, body, namespace, "status")


def retry_conflicts(change: Callable[[], T]) -> T:
    """Call a change again while it raises ConflictError, and return its result.

    The change reads an object and writes it guarded by its ``resourceVersion``. The waits grow, as those of
    client-go's ``RetryOnConflict`` do: a controller may write the status of an object several times in a
    fraction of a second. After `CONFLICT_SECONDS` the last ConflictError is raised.
    """
    caller = stamina.RetryingCaller(
        attempts=None, timeout=CONFLICT_SECONDS, wait_initial=0.01, wait_max=1.0, wait_jitter=0.05
    )
    return caller(ConflictError, change)


def delete(
    cluster: Cluster,
    resource: ApiResource,
    name: str,
    namespace: str | None = None,
    options: DeletionOptions | None = None,
) -> Object | None:
    """Delete an object.

    Returns:
        The object as it now stands while its finalizers or its grace period hold it; None once it is gone,
        also if it was gone before.

    Raises:
        ConflictError: an object of that name is there, but with another uid.
    """
    body = (options or DeletionOptions()).to_body()
    try:
        answer = _send(cluster, _request(cluster, "delete", resource, name, namespace, body=body))
    except NotFoundError:
        return None
    still_there = answer.get("kind") == resource.kind and (answer["metadata"].get("deletionTimestamp"))
    return answer if still_there else None


def read_service(cluster: Cluster, address: ServiceAddress, action: str) -> bytes:
    """What a program behind a Service answers to a GET that the API server's proxy makes of it.

    It is asked once, since whoever reads live figures asks again anyway.

    Args:
        cluster: the API server. It does not pass the caller's credentials on.
        address: whom to ask.
        action: the request in words, for errors.

    Raises:
        ForbiddenError: the caller lacks the right ``get`` on ``services/proxy``.
        NotFoundError: there is no such Service.
        UnavailableError: the program can't be reached, refuses the request, or answers at too great length.
    """
    path = resources.SERVICES.path(address.namespace, address.service)
    request = ApiRequest(
        "get",
        "services/proxy",
        f"{path}:{address.port}/proxy{address.path}",
        action,
        read_seconds=SERVICE_SECONDS,
    )
    response = transport.open_foreign(cluster, request)
    with contextlib.closing(response), errors.mapping_errors(action, cluster.route):
        body = _read_bounded(response, action)
    if response.status == 200:
        return body
    status = errors.parse_status(body)
    if status.get("kind") != "Status":
        raise UnavailableError(f"cannot {action}: the program behind the Service answers {response.status}")
    raise errors.of_status({**status, "code": response.status}, action)


def _read_bounded(response: Any, action: str) -> bytes:
    """The body of an answer, whoever wrote it."""
    deadline = time.monotonic() + SERVICE_SECONDS
    body = bytearray()
    # `read1` returns what has arrived. `stream` waits for more, as long as a byte comes now and then.
    while chunk := response.read1(MAX_SERVICE_BYTES, decode_content=False):
        body += chunk
        if len(body) > MAX_SERVICE_BYTES or time.monotonic() > deadline:
            raise UnavailableError(
                f"cannot {action}: the answer is longer than {MAX_SERVICE_BYTES} bytes, or takes "
                f"more than {SERVICE_SECONDS:.0f} s"
            )
    return bytes(body)


def _send(cluster: Cluster, request: ApiRequest) -> Object:
    answer = transport.send(cluster, request)
    return answer if isinstance(answer, dict) else {}


def _request(
    cluster: Cluster,
    verb: str,
    resource: ApiResource,
    name: str,
    namespace: str | None,
    subresource: str = "",
    body: dict[str, Any] | None = None,
    content_type: str = JSON,
) -> ApiRequest:
    if not name:  # the collection's path: a DELETE there deletes all objects
        raise InvalidError(f"cannot {verb} {resource.kind}: it has no name; give one")
    where = _namespace(cluster, resource, namespace)
    suffix = f" ({subresource})" if subresource else ""
    return ApiRequest(
        verb,
        resource.plural,
        resource.path(where, name, subresource),
        f"{verb} {_label(resource, where, name)}{suffix}",
        body=body,
        content_type=content_type,
    )


def _namespace(cluster: Cluster, resource: ApiResource, namespace: str | None) -> str:
    return (namespace or cluster.namespace) if resource.namespaced else ""


def _label(resource: ApiResource, namespace: str, name: str) -> str:
    return f"{resource.kind} {namespace}/{name}" if namespace else f"{resource.kind} {name}"
