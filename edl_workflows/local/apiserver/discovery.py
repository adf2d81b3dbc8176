"""API discovery, and the OpenAPI documents that ``kubectl`` needs for validation, ``apply`` and ``explain``.

``/openapi/v3`` describes each group and version with the schemas that the server checks against, without
descriptions of built-in fields. ``/openapi/v2`` describes all kinds in one document as JSON. As protobuf it
describes none: kubectl reads that document only for lists and for kinds that it did not find in version 3,
and then lets the server check the fields.
"""

import hashlib
import json

from edl_workflows.local.apiserver.objects.catalog import Catalog, ServedResource
from edl_workflows.local.apiserver.storage.revisions import Object

SERVER_VERSION = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0+edl",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
"""The Kubernetes version whose behaviour the server follows."""
_SUBRESOURCES = {
    "status": ("", ("get", "patch", "update")),
    "log": ("", ("get",)),
    "binding": ("Binding", ("create",)),
    "eviction": ("Eviction", ("create",)),
    "token": ("TokenRequest", ("create",)),
    "scale": ("Scale", ("get", "patch", "update")),
    "proxy": ("ServiceProxyOptions", ("get",)),
}
"""The kind (empty: that of the resource) and the verbs of each subresource."""
_FOREIGN_GROUPS = {
    "Scale": ("autoscaling", "v1"),
    "Eviction": ("policy", "v1"),
    "TokenRequest": ("authentication.k8s.io", "v1"),
}


def core_versions() -> Object:
    """``/api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def list_groups(catalog: Catalog) -> Object:
    """``/apis``."""
    names = dict.fromkeys(resource.group for resource in catalog if resource.group)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(catalog, name) for name in names]}


def describe_group(catalog: Catalog, name: str) -> Object | None:
    """``/apis/GROUP``; None if there is no such group."""
    if not name or all(resource.group != name for resource in catalog):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(catalog, name)}


def _group(catalog: Catalog, name: str) -> Object:
    names = dict.fromkeys(resource.version for resource in catalog if resource.group == name)
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in names]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def list_resources(catalog: Catalog, group_name: str, version: str) -> Object | None:
    """``/api/v1`` or ``/apis/GROUP/VERSION``; None if nothing is served there."""
    served = [resource for resource in catalog if (resource.group, resource.version) == (group_name, version)]
    if not served:
        return None
    entries = [entry for resource in served for entry in _entries(resource)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": entries,
    }


def list_subresources(resource: ServedResource) -> tuple[str, ...]:
    """All subresources of a resource."""
    status = ("status",) if resource.has_status else ()
    scale = ("scale",) if resource.scale else ()
    return (*status, *scale, *resource.subresources)


def _entries(resource: ServedResource) -> list[Object]:
    entry: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    entries = [entry]
    for name in list_subresources(resource):
        kind, verbs = _SUBRESOURCES[name]
        below: Object = {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind or resource.kind,
            "verbs": list(verbs),
        }
        if kind in _FOREIGN_GROUPS:
            below["group"], below["version"] = _FOREIGN_GROUPS[kind]
        entries.append(below)
    return entries


_OPTIONS = ("dryRun", "fieldManager", "fieldValidation")
_PATCHES = ("application/json-patch+json", "application/merge-patch+json")


def openapi_index(catalog: Catalog) -> Object:
    """``/openapi/v3``: the location of each group's document; the hash changes with the content."""
    paths = {}
    for path in dict.fromkeys(_base(resource) for resource in catalog):
        digest = hashlib.sha256(f"{path}@{catalog.generation}".encode()).hexdigest()[:32].upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def _base(resource: ServedResource) -> str:
    return f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"


def _component(resource: ServedResource) -> str:
    reverse = ".".join(reversed(resource.group.split("."))) if resource.group else "io.k8s.api.core"
    return f"{reverse}.{resource.version}.{resource.kind}"


def openapi_document(catalog: Catalog, path: str) -> Object | None:
    """``/openapi/v3/PATH``; None if no such group is served."""
    served = [resource for resource in catalog if _base(resource) == path]
    if not served:
        return None
    paths: Object = {}
    components: Object = {}
    for resource in served:
        components[_component(resource)] = _schema(resource)
        paths |= _paths(resource)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": SERVER_VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": components},
    }


def openapi_v2(catalog: Catalog) -> Object:
    """``/openapi/v2``, for older clients: the kinds with their fields and paths."""
    definitions: Object = {}
    paths: Object = {}
    for resource in catalog:
        definitions[_component(resource)] = _schema(resource)
        for path, item in _paths(resource).items():
            parameters = [_parameter_v2(parameter) for parameter in item.pop("parameters")]
            actions = {method: _operation_v2(resource, operation) for method, operation in item.items()}
            paths[path] = {"parameters": parameters, **actions}
    info = {"title": "Kubernetes", "version": SERVER_VERSION["gitVersion"]}
    return {"swagger": "2.0", "info": info, "paths": paths, "definitions": definitions}


OPENAPI_V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Media type of the answer; clients ask for it with ``@`` in place of the last but one dot."""


def openapi_v2_protobuf() -> bytes:
    """``/openapi/v2`` without kinds, as a ``Document`` of gnostic's OpenAPIv2.proto: ``swagger`` is its field
    1, and ``info`` with ``title`` and ``version`` its field 2."""
    info = _text_field(1, b"Kubernetes") + _text_field(2, SERVER_VERSION["gitVersion"].encode())
    return _text_field(1, b"2.0") + _text_field(2, info)


def _text_field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2, len(content))) + content


def _parameter_v2(parameter: Object) -> Object:
    schema: Object = parameter["schema"]
    return {name: value for name, value in parameter.items() if name != "schema"} | schema


def _operation_v2(resource: ServedResource, operation: Object) -> Object:
    kept = {
        name: value
        for name, value in operation.items()
        if name not in ("requestBody", "responses", "parameters")
    }
    schema = {"$ref": f"#/definitions/{_component(resource)}"}
    return {**kept, "responses": {"200": {"description": "OK", "schema": schema}}}


def _gvk(resource: ServedResource) -> Object:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


_METADATA: Object = {
    "name": {"type": "string"},
    "namespace": {"type": "string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
}


def _schema(resource: ServedResource) -> Object:
    schema = {"type": "object", **json.loads(json.dumps(resource.schema))}
    properties = schema.setdefault("properties", {})
    metadata = properties.setdefault("metadata", {"type": "object"})
    metadata["properties"] = {**_METADATA, **(metadata.get("properties") or {})}
    properties |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    schema["x-kubernetes-group-version-kind"] = [_gvk(resource)]
    return schema


def _paths(resource: ServedResource) -> Object:
    below = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"/{_base(resource)}{below}/{resource.plural}"
    parameters = [_path_parameter("namespace")] if below else []
    post = _operation(resource, "post", ("application/json", "application/yaml"))
    if "get" not in resource.verbs:
        return {collection: {"parameters": parameters, "post": post}}
    return {
        collection: {"parameters": parameters, "get": _operation(resource, "list"), "post": post},
        f"{collection}/{{name}}": {
            "parameters": [*parameters, _path_parameter("name")],
            "get": _operation(resource, "get"),
            "put": _operation(resource, "put", ("application/json", "application/yaml")),
            "patch": _operation(resource, "patch", _patches(resource)),
            "delete": _operation(resource, "delete"),
        },
    }


def _path_parameter(name: str) -> Object:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _patches(resource: ServedResource) -> tuple[str, ...]:
    return _PATCHES if resource.custom else (*_PATCHES, "application/strategic-merge-patch+json")


def _operation(resource: ServedResource, action: str, bodies: tuple[str, ...] = ()) -> Object:
    reference = {"schema": {"$ref": f"#/components/schemas/{_component(resource)}"}}
    operation: Object = {
        "operationId": f"{action}{resource.kind}",
        "responses": {"200": {"description": "OK", "content": {"application/json": reference}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(resource),
    }
    if bodies:
        operation["requestBody"] = {"content": dict.fromkeys(bodies, reference)}
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": "string"}} for name in _OPTIONS
        ]
    return operation
