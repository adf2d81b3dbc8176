"""CustomResourceDefinitions: their defaults, their validation, and the resources that they define."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from edl_workflows.core.schemas import structural
from edl_workflows.core.schemas.structural import Schema
from edl_workflows.local.apiserver.errors import Cause
from edl_workflows.local.apiserver.objects import metadata, rules, schemas
from edl_workflows.local.apiserver.objects.catalog import ScalePaths, ServedResource, TableColumn
from edl_workflows.local.apiserver.storage.revisions import Object

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Finalizer that keeps a definition until its objects are gone."""
_AGE = TableColumn("Age", "date", ".metadata.creationTimestamp")


def fill_definition(crd: Object) -> None:
    """Set the defaults of names and conversion."""
    names = crd.get("spec", {}).get("names") or {}
    kind = names.get("kind") or ""
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    if crd.get("spec"):
        crd["spec"].setdefault("conversion", {"strategy": "None"})


def check_definition(crd: Object, old: Object | None) -> list[Cause]:
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
    expected_name = f"{names['plural']}.{spec['group']}"
    if (name := crd["metadata"].get("name", "")) != expected_name:
        message = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        causes.append(Cause("FieldValueInvalid", message, "metadata.name"))
    if old is not None:
        causes += [
            Cause("FieldValueInvalid", "Invalid value: field is immutable", path)
            for path in ("spec.group", "spec.scope", "spec.names.plural", "spec.names.kind")
            if schemas.value_at_path(crd, path) != schemas.value_at_path(old, path)
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
    causes = check_definition_schema(schema, at)
    if not causes and schema.get("type") != "object":
        causes.append(Cause("FieldValueInvalid", "Invalid value: must be object at the root", f"{at}.type"))
    return causes or rules.compile_rules(schema, at)[1]


def mark_established(crd: Object, now: datetime) -> None:
    """Set the status of a definition whose resources are served."""
    status = crd.setdefault("status", {})
    stored = next(version["name"] for version in crd["spec"]["versions"] if version.get("storage"))
    versions = status.get("storedVersions") or []
    status["storedVersions"] = versions if stored in versions else [*versions, stored]
    status["acceptedNames"] = crd["spec"]["names"]
    have = {condition["type"]: condition for condition in status.get("conditions") or []}
    initial_conditions = {
        "NamesAccepted": ("NoConflicts", "no conflicts found"),
        "Established": ("InitialNamesAccepted", "the initial names have been accepted"),
    }
    for kind, (reason, message) in initial_conditions.items():
        have.setdefault(
            kind,
            {
                "type": kind,
                "status": "True",
                "lastTransitionTime": metadata.format_time(now),
                "reason": reason,
                "message": message,
            },
        )
    status["conditions"] = list(have.values())


def resources_of_definition(crd: Object) -> list[ServedResource]:
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


_OPEN, _INT_OR_STRING = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"
_FORBIDDEN = frozenset({"$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties"})
_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf"})
Shape = tuple[Callable[[Any], bool], str]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_rule(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("rule")) and all(map(_is_text, _texts_of(value)))


def _texts_of(rule: Mapping[str, Any]) -> Iterable[Any]:
    return (
        rule[key] for key in ("rule", "message", "messageExpression", "reason", "fieldPath") if key in rule
    )


_TEXT: Shape = (_is_text, "must be a string")
_FLAG: Shape = (lambda value: isinstance(value, bool), "must be true or false")
_NUMBER: Shape = (_is_number, "must be a number")
_COUNT: Shape = (_is_count, "must be a non-negative integer")
_SHAPES: Mapping[str, Shape] = {
    **dict.fromkeys(("type", "format", "title", "description", "pattern"), _TEXT),
    **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), _TEXT),
    **dict.fromkeys(("nullable", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems"), _FLAG),
    **dict.fromkeys((_OPEN, _INT_OR_STRING, "x-kubernetes-embedded-resource"), _FLAG),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    _COUNT),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "must be a number above 0"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "must be a list of values"),
    "required": (_is_texts, "must be a list of names"),
    "x-kubernetes-list-map-keys": (_is_texts, "must be a list of names"),
    "x-kubernetes-validations": (
        lambda value: isinstance(value, list) and all(map(_is_rule, value)),
        "must be a list of rules, each with a CEL expression in `rule`",
    ),
}  # fmt: skip


def check_definition_schema(schema: Any, path: str) -> list[Cause]:
    """The problems of a definition's `schema`. If its form is wrong, only that is reported: all other checks
    rely on it."""
    return list(_shape_problems(schema, path)) or list(_structural_problems(schema, path))


def _shape_problems(schema: Any, path: str) -> Iterator[Cause]:
    if not isinstance(schema, dict):
        yield _invalid("must be a schema", path)
        return
    for keyword, value in schema.items():
        at = f"{path}.{keyword}"
        if keyword in _FORBIDDEN:
            yield Cause("FieldValueForbidden", f"Forbidden: {keyword} is not supported", at)
        elif keyword in _SHAPES:
            yield from _keyword_problems(keyword, value, at)
        else:
            yield from _below(keyword, value, at)


def _below(keyword: str, value: Any, path: str) -> Iterator[Cause]:
    if keyword == "properties":
        if isinstance(value, dict):
            for name, child in value.items():
                yield from _shape_problems(child, f"{path}[{name}]")
        else:
            yield _invalid("must be an object of schemas", path)
    elif keyword in _SCHEMAS:
        if isinstance(value, list):
            for index, child in enumerate(value):
                yield from _shape_problems(child, f"{path}[{index}]")
        else:
            yield _invalid("must be a list of schemas", path)
    elif keyword in ("items", "not") or (keyword == "additionalProperties" and not isinstance(value, bool)):
        yield from _shape_problems(value, path)


def _keyword_problems(keyword: str, value: Any, path: str) -> Iterator[Cause]:
    good, requirement = _SHAPES[keyword]
    if not good(value):
        yield _invalid(requirement, path)
    elif keyword == "type" and value and value not in structural.TYPES:
        supported = ", ".join(sorted(structural.TYPES))
        yield Cause(
            "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {supported}', path
        )
    elif keyword == "uniqueItems" and value:
        yield Cause(
            "FieldValueForbidden",
            "Forbidden: uniqueItems cannot be set to true; its runtime is quadratic",
            path,
        )
    elif keyword == "pattern" and (problem := structural.pattern_problem(value)):
        yield _invalid(f"must be a valid regular expression, but isn't: {problem}", path)


def _invalid(problem: str, path: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {problem}", path)


def _structural_problems(schema: Schema, path: str) -> Iterator[Cause]:
    if not (schema.get("type") or schema.get(_OPEN) or schema.get(_INT_OR_STRING)):
        message = "Required value: must not be empty for specified object fields"
        yield Cause("FieldValueRequired", message, f"{path}.type")
    if schema.get("properties") and schema.get("additionalProperties"):
        message = "Forbidden: additionalProperties and properties are mutual exclusive"
        yield Cause("FieldValueForbidden", message, f"{path}.additionalProperties")
    if schema.get("type") == "array" and not isinstance(schema.get("items"), Mapping):
        yield Cause("FieldValueRequired", "Required value: must be specified for arrays", f"{path}.items")
    for field, child in (schema.get("properties") or {}).items():
        yield from _structural_problems(child, f"{path}.properties[{field}]")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), Mapping):
            yield from _structural_problems(schema[keyword], f"{path}.{keyword}")
