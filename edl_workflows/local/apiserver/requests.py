"""Parsing of HTTP requests: paths to resources, query parameters to options, bodies to objects."""

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from starlette.requests import Request

from edl_workflows.local.apiserver import discovery, errors, off_loop, protobuf
from edl_workflows.local.apiserver.objects import deletion, patches, registry
from edl_workflows.local.apiserver.objects.catalog import Catalog, ServedResource
from edl_workflows.local.apiserver.objects.checks import MAX_DEFINITION_VALUES
from edl_workflows.local.apiserver.objects.deletion import DeletionOptions
from edl_workflows.local.apiserver.objects.registry import WriteOptions
from edl_workflows.local.apiserver.storage.revisions import Object
from edl_workflows.runtime.kube.yaml_keys import TextKeys

MAX_DIGITS = 18
"""Most digits of a number in the query: enough for 64-bit integers. Python raises a different error for more
than 4,300 digits."""
MAX_BODY_BYTES = 3 * 1024 * 1024
"""Largest request body in bytes, as in Kubernetes."""
_STRUCTURE = (b",", b"[", b"{")
"""Characters that bound the number of values in a JSON text: it has at most one value more than it has of
these."""
_TOO_MANY = f"it has more than {MAX_DEFINITION_VALUES} values"


_HERE = "a container is a process of this machine"
_PORTS = "pods listen on ports of this machine, which services.json in the cluster's folder maps to addresses"
_STREAMS = {
    name: f"{called} is not served by the embedded cluster: {instead}"
    for name, called, instead in (
        ("exec", "exec (and cp, which uses it)", f"{_HERE}; run the command here, and copy files here"),
        ("attach", "attach", "read the container's output with kubectl logs -f or edl logs -f"),
        ("portforward", "port-forward", _PORTS),
        ("proxy", "proxy", _PORTS),
        ("ephemeralcontainers", "debug", f"{_HERE}; debug it here"),
    )
}
"""Subresources that would open a stream into a container. The messages say what to do instead."""


@dataclass(frozen=True)
class RequestTarget:
    """The target of a path.

    Attributes:
        resource: the resource.
        namespace: empty for cluster-scoped resources and for all namespaces.
        name: empty for collections.
        subresource: empty for the object itself.
    """

    resource: ServedResource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def locate_target(catalog: Catalog, path: str) -> RequestTarget:
    """The target of a path below ``/api/v1`` or ``/apis/GROUP/VERSION``.

    Raises:
        ApiError: 404, nothing is served there; 501, it would be a stream into a container.
    """
    group, version, rest = _group_version(path.strip("/").split("/"))
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    resource = catalog.at(group, version, rest[0])
    if len(rest) > 3 and rest[2] == "proxy":
        rest = rest[:3]  # without the path that the proxy would forward
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        raise errors.no_such_path()
    name, subresource = ([*rest[1:], "", ""])[:2]
    if name and resource.namespaced and not namespace:
        raise errors.no_such_path()
    streams = subresource in _STREAMS and subresource not in resource.subresources
    if streams and resource.id in ("nodes", "pods", "services"):
        raise errors.ApiError(501, "NotImplemented", _STREAMS[subresource])
    if subresource and subresource not in discovery.list_subresources(resource):
        raise errors.no_such_path()
    return RequestTarget(resource, namespace, name, subresource)


def _group_version(steps: list[str]) -> tuple[str, str, list[str]]:
    if steps[0] == "api" and len(steps) > 2:
        return "", steps[1], steps[2:]
    if steps[0] == "apis" and len(steps) > 3:
        return steps[1], steps[2], steps[3:]
    raise errors.no_such_path()


def verb_of_request(target: RequestTarget, method: str, query: Mapping[str, str]) -> str:
    """The Kubernetes verb of a request.

    Raises:
        ApiError: 405.
    """
    verb = _verb(target, method, query)
    served = ("get",) if target.subresource == "proxy" else target.resource.verbs
    if not verb or (target.subresource in ("", "proxy") and verb not in served):
        raise errors.method_not_allowed()
    return verb


def _verb(target: RequestTarget, method: str, query: Mapping[str, str]) -> str:
    if method == "GET":
        return "get" if target.name else "watch" if read_flag(query, "watch") else "list"
    if method == "POST":
        return "create" if not target.name or target.subresource else ""
    if method == "DELETE" and not target.name:
        return "deletecollection"
    named = {"PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return named.get(method, "") if target.name else ""


def read_flag(query: Mapping[str, str], name: str) -> bool:
    """A boolean query parameter."""
    return query.get(name, "").lower() in ("1", "true", "t")


def read_number(query: Mapping[str, str], name: str) -> int | None:
    """A non-negative integer query parameter, None if it is absent.

    Raises:
        ApiError: 400.
    """
    text = query.get(name)
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        raise errors.bad_request(
            f"{name}: {text[:40]!r} is not a non-negative integer of at most {MAX_DIGITS} digits"
        )
    return int(text)


async def read_body(request: Request) -> bytes:
    """Read the bounded body.

    Raises:
        ApiError: 413.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            message = f"Request entity too large: limit is {MAX_BODY_BYTES}"
            raise errors.ApiError(413, "RequestEntityTooLarge", message)
    return bytes(body)


def media_type(request: Request) -> str:
    """The body's content type without parameters."""
    return request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()


class _PlainLoader(TextKeys, yaml.SafeLoader):
    """Safe YAML loader that rejects aliases: a few nested aliases turn a small body into a huge object. Its
    maps have texts as keys."""

    _nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("YAML aliases are not accepted")
        self._nodes += 1
        if self._nodes > 2 * MAX_DEFINITION_VALUES:
            raise yaml.YAMLError(_TOO_MANY)
        return super().compose_node(parent, index)


def parse_body(body: bytes, kind: str) -> Any:
    """Parse a body in JSON or YAML, or one of the protobuf bodies that kubectl sends.

    Raises:
        ApiError: 400, it cannot be parsed; 415, it has another content type.
    """
    if kind == "application/vnd.kubernetes.protobuf":
        return protobuf.decode(body)
    if kind not in ("application/json", "application/yaml", "*/*") and not kind.endswith(("+json", "+yaml")):
        raise errors.unsupported_media_type(
            f"the body of the request was in an unknown format - {kind}; send application/json"
        )
    try:
        return _from_yaml(body) if kind.endswith("yaml") else _from_json_body(body)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise errors.bad_request(
            f"the object provided is unrecognized: couldn't parse the body as {kind}: {error}"
        ) from error


def _from_json_body(body: bytes) -> Any:
    if not _few_values(body):
        raise ValueError(_TOO_MANY)
    return _from_json(body.decode())


def _few_values(body: bytes) -> bool:
    """Whether a JSON text has few enough values to be parsed without blocking the event loop. A worker thread
    would not help: the parser holds the interpreter lock."""
    if sum(map(body.count, _STRUCTURE)) <= MAX_DEFINITION_VALUES:
        return True
    # A string counts as one value, whatever characters it contains.
    parts = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * MAX_DEFINITION_VALUES)
    if len(parts) > 4 * MAX_DEFINITION_VALUES:
        return False
    return sum(map(b"".join(parts[::2]).count, _STRUCTURE)) <= MAX_DEFINITION_VALUES


def _from_yaml(body: bytes) -> Any:
    # Converted through JSON, because YAML has values that API objects cannot hold, such as dates.
    return _from_json(json.dumps(yaml.load(body, _PlainLoader), default=_no_json))  # noqa: S506 - it is safe


def _no_json(value: object) -> Any:
    raise ValueError(f"{value} ({type(value).__name__}) is not a JSON value; put text in quotes")


def _from_json(text: str) -> Any:
    value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    if "\\u" in text:
        # Half a surrogate pair is not valid text and can't be stored.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


async def _parse(request: Request, absent: Any = None) -> Any:
    """Parse the body; an empty body gives `absent`, if that is set."""
    body, kind = await read_body(request), media_type(request)
    if not body and absent is not None:
        return absent
    if len(body) < off_loop.LONG_BYTES:
        return parse_body(body, kind)
    return await off_loop.off_loop(lambda: parse_body(body, kind))


async def read_object(request: Request) -> Object:
    """Parse the body as one object.

    Raises:
        ApiError: 400, 413 or 415.
    """
    value = await _parse(request)
    if not isinstance(value, dict):
        raise errors.bad_request("the object provided is unrecognized: the body must be an object")
    return value


async def read_patch(request: Request, resource: ServedResource) -> Callable[[Object], Object]:
    """Parse the body as a patch. Returns the function that applies it.

    Raises:
        ApiError: 415, the kind of patch is not supported; 400 or 413.
    """
    kinds: dict[str, Callable[[Object, Any], Object]] = {
        "application/json-patch+json": patches.json_patch,
        "application/merge-patch+json": patches.merge_patch,
    }
    if not resource.custom:
        kinds["application/strategic-merge-patch+json"] = lambda obj, patch: patches.strategic_merge_patch(
            obj, patch, resource.schema
        )
    kind = media_type(request)
    if kind.startswith("application/apply-patch"):
        message = (
            "server-side apply is not served by this API server; use client-side apply (kubectl "
            "apply without --server-side)"
        )
        raise errors.unsupported_media_type(message)
    if kind not in kinds:
        message = (
            "the body of the request was in an unknown format - accepted media types include: "
            f"{', '.join(kinds)}"
        )
        raise errors.unsupported_media_type(message)
    patch = await _parse(request)
    return lambda obj: kinds[kind](obj, patch)


def _dry_run(values: list[str]) -> bool:
    if any(value != "All" for value in values):
        raise errors.bad_request(f'dryRun: Unsupported value: {", ".join(values)}: supported values: "All"')
    return bool(values)


def write_options(request: Request, subresource: str = "") -> WriteOptions:
    """Options of create, update and patch.

    Raises:
        ApiError: 400.
    """
    validation = request.query_params.get("fieldValidation") or registry.WARN
    if validation not in (registry.STRICT, registry.WARN, registry.IGNORE):
        supported = f'supported values: "{registry.IGNORE}", "{registry.WARN}", "{registry.STRICT}"'
        raise errors.bad_request(f'fieldValidation: Unsupported value: "{validation}": {supported}')
    return WriteOptions(_dry_run(request.query_params.getlist("dryRun")), validation, subresource)


def object_field(body: Object, field: str) -> Object:
    """A field that is an object; empty if absent.

    Raises:
        ApiError: 400.
    """
    value = body.get(field) or {}
    if not isinstance(value, dict):
        raise errors.bad_request(f"{field} must be an object")
    return value


def grace_seconds(value: Any) -> int | None:
    """A grace period from a body.

    Raises:
        ApiError: 400.
    """
    if value is not None and (
        not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63
    ):
        raise errors.bad_request(f"gracePeriodSeconds: {value!r} is not a non-negative integer")
    return value


async def delete_options(request: Request) -> DeletionOptions:
    """Options of a deletion, from the query and the body; the query takes precedence.

    Raises:
        ApiError: 400 or 413.
    """
    body = await _parse(request, {})
    if not isinstance(body, dict):
        raise errors.bad_request("DeleteOptions must be an object")
    query = request.query_params
    grace = (
        read_number(query, "gracePeriodSeconds")
        if "gracePeriodSeconds" in query
        else body.get("gracePeriodSeconds")
    )
    grace = grace_seconds(grace)
    propagation = query.get("propagationPolicy") or body.get("propagationPolicy")
    orphan = read_flag(query, "orphanDependents") or body.get("orphanDependents") is True
    if propagation is None:
        propagation = deletion.ORPHAN if orphan else deletion.BACKGROUND
    if propagation not in (deletion.BACKGROUND, deletion.FOREGROUND, deletion.ORPHAN):
        supported = 'supported values: "Background", "Foreground", "Orphan"'
        raise errors.bad_request(
            f"propagationPolicy: Unsupported value: {json.dumps(propagation)}: {supported}"
        )
    conditions = object_field(body, "preconditions")
    in_body = body.get("dryRun") or []
    if not isinstance(in_body, list):
        raise errors.bad_request("dryRun must be a list")
    dry_run = _dry_run([*query.getlist("dryRun"), *map(str, in_body)])
    return DeletionOptions(
        grace, propagation, conditions.get("uid") or "", conditions.get("resourceVersion") or "", dry_run
    )


def encode_continue(rv: int, namespace: str, name: str) -> str:
    """The ``continue`` token for the page after an object, at the same version."""
    return (
        base64.urlsafe_b64encode(json.dumps({"rv": rv, "after": [namespace, name]}).encode())
        .decode()
        .rstrip("=")
    )


def decode_continue(token: str) -> tuple[int, tuple[str, str]]:
    """Decode a token of `encode_continue`.

    Raises:
        ApiError: 400.
    """
    try:
        value = _from_json(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
        namespace, name = value["after"]
        return int(value["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from error
