"""CustomResourceDefinitions: their defaults and checks, and the resources that they define."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from edl_workflows.local.apiserver import metadata, rules, schemas, structural
from edl_workflows.local.apiserver.catalog import ScalePaths, ServedResource, TableColumn
from edl_workflows.local.apiserver.errors import Cause
from edl_workflows.local.apiserver.store import Object

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Keeps a definition until its objects are gone."""
_AGE = TableColumn("Age", "date", ".metadata.creationTimestamp")


def fill(crd: Object) -> None:
    """Set the defaults of names and conversion."""
    names = crd.get("spec", {}).get("names") or {}
    kind = names.get("kind") or ""
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    if crd.get("spec"):
        crd["spec"].setdefault("conversion", {"strategy": "None"})


def check(crd: Object, old: Object | None) -> list[Cause]:
    """The problems of a definition that has its required fields."""
    spec, names = crd["spec"], crd["spec"]["names"]
    causes = _check_identity(crd, old)
    if spec["scope"] not in ("Namespaced", "Cluster"):
        message = f'Unsupported value: "{spec["scope"]}": supported values: "Cluster", "Namespaced"'
        causes.append(Cause("FieldValueNotSupported", message, "spec.scope"))
    for field in (
        "plural",
        "singular",
        *(f"shortNames[{index}]" for index in range(len(names.get("shortNames") or []))),
    ):
        name = names["shortNames"][int(field[11:-1])] if field.startswith("short") else names[field]
        if problem := metadata.name_problem(name, label=True):
            causes.append(
                Cause(
                    "FieldValueInvalid",
                    f"Invalid value: {json.dumps(name)}: {problem}",
                    f"spec.names.{field}",
                )
            )
    if spec["conversion"].get("strategy") != "None":
        message = "Unsupported value: only the conversion strategy None is served here"
        causes.append(Cause("FieldValueNotSupported", message, "spec.conversion.strategy"))
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        message = "Invalid value: must have exactly one version marked as storage version"
        causes.append(Cause("FieldValueInvalid", message, "spec.versions"))
    for index, version in enumerate(spec["versions"]):
        causes += _check_version(version, f"spec.versions[{index}]")
    return causes


def _check_identity(crd: Object, old: Object | None) -> list[Cause]:
    spec, names = crd["spec"], crd["spec"]["names"]
    causes: list[Cause] = []
    wanted = f"{names['plural']}.{spec['group']}"
    if (name := crd["metadata"].get("name", "")) != wanted:
        message = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        causes.append(Cause("FieldValueInvalid", message, "metadata.name"))
    if old is not None:
        causes += [
            Cause("FieldValueInvalid", "Invalid value: field is immutable", path)
            for path in ("spec.group", "spec.scope", "spec.names.plural", "spec.names.kind")
            if schemas.selectable(crd, path) != schemas.selectable(old, path)
        ]
    return causes


def _check_version(version: Mapping[str, Any], path: str) -> list[Cause]:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if not schema:
        return [
            Cause(
                "FieldValueRequired", "Required value: schemas are required", f"{path}.schema.openAPIV3Schema"
            )
        ]
    at = f"{path}.schema.openAPIV3Schema"
    causes = structural.check_definition_schema(schema, at)
    if not causes and schema.get("type") != "object":
        causes.append(Cause("FieldValueInvalid", "Invalid value: must be object at the root", f"{at}.type"))
    return causes or rules.compile_rules(schema, at)[1]


def established(crd: Object, now: datetime) -> None:
    """Set the status of a definition that is served."""
    status = crd.setdefault("status", {})
    stored = next(version["name"] for version in crd["spec"]["versions"] if version.get("storage"))
    versions = status.get("storedVersions") or []
    status["storedVersions"] = versions if stored in versions else [*versions, stored]
    status["acceptedNames"] = crd["spec"]["names"]
    have = {condition["type"]: condition for condition in status.get("conditions") or []}
    wanted = {
        "NamesAccepted": ("NoConflicts", "no conflicts found"),
        "Established": ("InitialNamesAccepted", "the initial names have been accepted"),
    }
    for kind, (reason, message) in wanted.items():
        have.setdefault(
            kind,
            {
                "type": kind,
                "status": "True",
                "lastTransitionTime": metadata.timestamp(now),
                "reason": reason,
                "message": message,
            },
        )
    status["conditions"] = list(have.values())


def resources(crd: Object) -> list[ServedResource]:
    """The served versions of a checked definition."""
    spec = crd["spec"]
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    return [_resource(spec, version, stored) for version in spec["versions"] if version.get("served")]


def _resource(spec: Object, version: Object, stored: str) -> ServedResource:
    names = spec["names"]
    schema = version["schema"]["openAPIV3Schema"]
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    fields = [field["jsonPath"] for field in version.get("selectableFields") or []]
    return ServedResource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        singular=names["singular"],
        storage_version=stored,
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        custom=True,
        has_status="status" in subresources,
        scale=_scale(scale) if scale else None,
        schema=schema,
        rules=rules.compile_rules(schema, "")[0],
        columns=tuple(_column(column) for column in version.get("additionalPrinterColumns") or []) or (_AGE,),
        field_paths={path.lstrip("."): path for path in fields},
    )


def _scale(scale: Object) -> ScalePaths:
    return ScalePaths(
        scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath") or ""
    )


def _column(column: Object) -> TableColumn:
    return TableColumn(
        column["name"],
        column["type"],
        column["jsonPath"],
        column.get("description") or "",
        column.get("format") or "",
        column.get("priority") or 0,
    )
