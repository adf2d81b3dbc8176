"""Discovery: the groups, versions and resources of the server."""

from edl_workflows.local.apiserver.catalog import Catalog, ServedResource
from edl_workflows.local.apiserver.store import Object

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
}
"""By subresource, its kind (empty: that of the resource) and its verbs."""
_FOREIGN_GROUPS = {
    "Scale": ("autoscaling", "v1"),
    "Eviction": ("policy", "v1"),
    "TokenRequest": ("authentication.k8s.io", "v1"),
}


def core_versions() -> Object:
    """``/api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(catalog: Catalog) -> Object:
    """``/apis``."""
    names = dict.fromkeys(resource.group for resource in catalog if resource.group)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(catalog, name) for name in names]}


def group(catalog: Catalog, name: str) -> Object | None:
    """``/apis/GROUP``; None if there is no such group."""
    if not name or all(resource.group != name for resource in catalog):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(catalog, name)}


def _group(catalog: Catalog, name: str) -> Object:
    names = dict.fromkeys(resource.version for resource in catalog if resource.group == name)
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in names]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def resources(catalog: Catalog, group_name: str, version: str) -> Object | None:
    """``/api/v1`` or ``/apis/GROUP/VERSION``; None if nothing is served there."""
    served = [one for one in catalog if (one.group, one.version) == (group_name, version)]
    if not served:
        return None
    entries = [entry for resource in served for entry in _entries(resource)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": entries,
    }


def subresources(resource: ServedResource) -> tuple[str, ...]:
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
    for name in subresources(resource):
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
