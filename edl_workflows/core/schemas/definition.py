"""CustomResourceDefinitions from the models: structural OpenAPI schemas with CEL rules. Pure; `make_crd`
writes the files.

Kubernetes calls a schema structural if it has no ``$ref`` and no ``additionalProperties: false``, gives every
node a type, and validates nothing under ``anyOf`` except int-or-string.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import Metadata, Model, Resource

Schema = dict[str, Any]

_QUANTITY_PATTERN = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$"
_COPIED = (
    "type", "format", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength", "maxProperties",
    "minItems", "maxItems", "description", "x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields",
)  # fmt: skip


@dataclass(frozen=True)
class CrdColumn:
    """A column of ``kubectl get``; shown with ``-o wide`` only if `priority` is above 0."""

    name: str
    type: str
    path: str
    priority: int = 0


@dataclass(frozen=True)
class CrdOptions:
    """The parts of a CustomResourceDefinition apart from its schema.

    Attributes:
        scale: the scale subresource's specReplicasPath, statusReplicasPath and labelSelectorPath.
        also_served: further versions with the same schema; objects are stored in the version of the registry.
    """

    singular: str
    short_names: tuple[str, ...]
    columns: tuple[CrdColumn, ...]
    categories: tuple[str, ...] = ("all", "edl")
    scale: tuple[str, str, str] | None = None
    also_served: tuple[str, ...] = ()


def make_crd(
    group: str, version: str, plural: str, model: type[Resource], options: CrdOptions
) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    subresources: dict[str, Any] = {"status": {}}
    if options.scale:
        paths = ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
        subresources["scale"] = dict(zip(paths, options.scale, strict=True))
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": structural_schema(model)},
        "subresources": subresources,
        "additionalPrinterColumns": [_column(column) for column in options.columns],
    }
    kind = model.__name__
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "labels": dict(names.PART_OF)},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": options.singular,
                "shortNames": list(options.short_names),
                "categories": list(options.categories),
            },
            "versions": [served, *(served | {"name": v, "storage": False} for v in options.also_served)],
        },
    }


def structural_schema(model: type[Resource]) -> Schema:
    """The structural schema of a custom resource."""
    source = model.model_json_schema(by_alias=True, schema_generator=_Documented)
    schema = _node(source, source.get("$defs", {}))
    # The API server validates ObjectMeta itself, and allows a schema to restrict only the name.
    schema["properties"]["metadata"] = {"type": "object"}
    schema["properties"]["status"] = _without_defaults(schema["properties"]["status"])
    schema["properties"] |= {name: {"type": "string"} for name in ("apiVersion", "kind")}
    return schema | {"required": ["spec"]}


class _Documented(GenerateJsonSchema):
    """Takes descriptions from the models' docstrings: the first paragraph, and the lines under
    ``Attributes``.
    """

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        json_schema = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        if model is Metadata:
            return {"type": "object"}
        text = inspect.cleandoc(model.__doc__ or "")
        json_schema["description"] = _plain(text.split("\n\n")[0])
        documented: dict[str, str] = {}
        for base in reversed(model.__mro__):
            if issubclass(base, Model):
                documented |= documented_attributes(base)
        for name, field in model.model_fields.items():
            if name in documented:
                json_schema["properties"][field.alias or name]["description"] = _plain(documented[name])
        return json_schema


def documented_attributes(model: type) -> dict[str, str]:
    """Field name → text, from the entries ``a, b: text`` of a Google-style Attributes section."""
    _, _, section = inspect.cleandoc(model.__doc__ or "").partition("Attributes:\n")
    entries = re.split(r"\n(?=    \w)|(?<=\.)  (?=\w+(?:, \w+)*: )", section.split("\n\n")[0])
    texts: dict[str, str] = {}
    for entry in entries:
        match = re.match(r"\s*(\w+(?:, \w+)*): (.+)", entry, re.DOTALL)
        if match:
            texts |= {name: " ".join(match[2].split()) for name in match[1].split(", ")}
    return texts


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def _column(column: CrdColumn) -> dict[str, Any]:
    printer_column = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return printer_column | {"priority": column.priority} if column.priority else printer_column


def _node(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    if "$ref" in node:
        target = defs[node["$ref"].removeprefix("#/$defs/")]
        return _node({**target, **{key: value for key, value in node.items() if key != "$ref"}}, defs)
    if "anyOf" in node:  # in our models only "or None"
        chosen = next(option for option in node["anyOf"] if option.get("type") != "null")
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _node({**chosen, **rest}, defs) | {"nullable": True}
    if node.get("x-kubernetes-int-or-string"):
        return _quantity(node)
    schema = {key: node[key] for key in _COPIED if key in node}
    if "description" in node:
        schema["description"] = _plain(node["description"])
    if "const" in node:
        schema["enum"] = [node["const"]]
    if node.get("default") not in (None, ""):
        schema["default"] = node["default"]
    if "required" in node:
        schema["required"] = list(node["required"])
    if "properties" in node:
        schema["properties"] = {name: _node(value, defs) for name, value in node["properties"].items()}
    if "items" in node:
        schema["items"] = _node(node["items"], defs)
    return schema | _members(node, defs)


def _quantity(node: Mapping[str, Any]) -> Schema:
    schema: Schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
    schema |= {"pattern": _QUANTITY_PATTERN, "maxLength": 32}
    return schema | {key: node[key] for key in ("default", "description") if node.get(key) is not None}


def _members(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Maps: those with fixed keys become properties (CEL and the scale subresource need paths), the others
    stay maps. A structural schema can have either properties or additionalProperties. If a model has both,
    additional properties are preserved without a schema, and checked by the models.
    """
    members = node.get("additionalProperties")
    if not isinstance(members, Mapping):
        open_map = members is True and "x-kubernetes-preserve-unknown-fields" not in node
        return {"x-kubernetes-preserve-unknown-fields": True} if open_map else {}
    if "properties" in node:
        return {"x-kubernetes-preserve-unknown-fields": True}
    keys = node.get("propertyNames", {}).get("enum")
    if keys:
        return {"properties": {key: _node(members, defs) for key in keys}}
    return {"additionalProperties": _node(members, defs)}


def _without_defaults(node: Any) -> Any:
    """The schema of a status, without defaults: the API server must not fill in what the controller
    writes."""
    if isinstance(node, Mapping):
        kept = {k: _without_defaults(v) for k, v in node.items() if k != "default" or isinstance(v, Mapping)}
        return {key: value for key, value in kept.items() if key != "required"}
    return [_without_defaults(item) for item in node] if isinstance(node, list) else node
