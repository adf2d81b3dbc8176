"""Writes the structural schemas of the built-in kinds from the models of the `kubernetes` client.

Run it after a new version of the client: ``python tests/unit/local/apiserver/generate_builtin_schemas.py``.
The client's models are generated from Kubernetes' own OpenAPI document, so the schemas have its fields, types
and required fields.
"""

import inspect
import json
import re
from pathlib import Path
from typing import Any

from kubernetes import client

TARGET = Path(__file__).parents[4] / "edl_workflows" / "local" / "apiserver" / "builtin_schemas.json"
ROOTS = (
    "V1Namespace", "V1Node", "V1Pod", "V1Service", "V1Endpoints", "V1ConfigMap", "V1Secret",
    "V1ServiceAccount",
    "CoreV1Event", "V1Lease", "V1PriorityClass", "V1CustomResourceDefinition", "V1Scale", "V1Eviction",
    "V1Binding",
    "V1DeleteOptions", "V1Role", "V1RoleBinding", "V1SelfSubjectAccessReview", "V1SelfSubjectRulesReview",
    "V1SubjectAccessReview", "V1SelfSubjectReview", "V1TokenReview",
)  # fmt: skip
OPEN: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
QUANTITY = {
    **OPEN,
    "x-edl-quantity": True,
}  # text or a number: `edl_workflows.local.apiserver.objects.quantities`
QUANTITIES = {
    "limits",
    "requests",
    "capacity",
    "allocatable",
    "overhead",
    "allocatedResources",
    "default",
    "hard",
    "sizeLimit",
    "divisor",
}
PLAIN = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
    "object": OPEN,
}
MERGE_KEYS = {
    "V1PodSpec": {
        "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "volumes": "name",
        "imagePullSecrets": "name", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey",
        "resourceClaims": "name", "schedulingGates": "name",
    },
    "V1Container": {"env": "name", "ports": "containerPort", "volumeMounts": "mountPath",
    "volumeDevices": "devicePath"},
    "V1EphemeralContainer": {
        "env": "name", "ports": "containerPort", "volumeMounts": "mountPath", "volumeDevices": "devicePath",
    },
    "V1PodStatus": {"conditions": "type", "podIPs": "ip", "hostIPs": "ip"},
    "V1ServiceSpec": {"ports": "port"},
    "V1ServiceStatus": {"conditions": "type"},
    "V1NodeStatus": {"conditions": "type", "addresses": "type"},
    "V1NamespaceStatus": {"conditions": "type"},
    "V1ServiceAccount": {"secrets": "name"},
}  # fmt: skip
"""Lists that merge by a key: the patchMergeKey tags of k8s.io/api, which the client's models have lost."""
RETAIN_KEYS = {("V1PodSpec", "volumes"), ("V1PodSpec", "resourceClaims")}
METADATA = {
    "type": "object",
    **OPEN,
    "properties": {
        "finalizers": {"type": "array", "items": {"type": "string"}, "x-kubernetes-patch-strategy": "merge"},
        "ownerReferences": {
            "type": "array",
            "items": {"type": "object", **OPEN},
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": "uid",
        },
    },
}
LEFT_OPEN = {"V1ListMeta", "V1JSONSchemaProps", "V1ManagedFieldsEntry"}
"""Checked elsewhere, or recursive."""


def field_schema(name: str, kind: str) -> dict[str, Any]:
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        return {"type": "array", "items": field_schema(name, found[1])}
    if found := re.fullmatch(r"dict[\[(]str, (.+)[\])]", kind):
        value = QUANTITY if name in QUANTITIES else field_schema(name, found[1])
        return {"type": "object", "additionalProperties": value}
    if name in QUANTITIES and kind == "str":
        return QUANTITY
    if kind == "V1ObjectMeta":
        return METADATA
    if kind in LEFT_OPEN:
        return {"type": "object", **OPEN}
    return PLAIN.get(kind) or {"$ref": kind}


def type_schema(name: str) -> dict[str, Any]:
    model = getattr(client, name)
    properties = {
        model.attribute_map[field]: field_schema(model.attribute_map[field], kind)
        for field, kind in model.openapi_types.items()
    }
    for field, key in MERGE_KEYS.get(name, {}).items():
        properties[field]["x-kubernetes-patch-merge-key"] = key
        strategy = "merge,retainKeys" if (name, field) in RETAIN_KEYS else "merge"
        properties[field]["x-kubernetes-patch-strategy"] = strategy
    required = [json_name for field, json_name in model.attribute_map.items() if is_required(model, field)]
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def is_required(model: type, field: str) -> bool:
    setter = getattr(model, field).fset
    return "must not be `None`" in inspect.getsource(setter)


def references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        found = {schema["$ref"]} if "$ref" in schema else set()
        return found.union(*(references(value) for value in schema.values()))
    return set()


def generate() -> str:
    types: dict[str, Any] = {}
    waiting = set(ROOTS)
    while waiting:
        name = waiting.pop()
        types[name] = type_schema(name)
        waiting |= references(types[name]) - types.keys()
    lines = [f"{json.dumps(name)}: {json.dumps(types[name], sort_keys=True)}" for name in sorted(types)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TARGET.write_text(generate())
