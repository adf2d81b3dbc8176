"""The built-in kinds: where they are served, their defaults, and the checks that users rely on.

Fields, types and required fields come from Kubernetes' own OpenAPI document (``builtin_schemas.json``,
written by ``tests/unit/local/apiserver/generate_builtin_schemas.py``). Custom resources are in `crds`.
"""

import base64
import functools
import importlib.resources
import json
import re
from collections.abc import Iterator
from typing import Any

from edl_workflows.core.schemas.structural import Schema, child_values
from edl_workflows.local.apiserver.errors import Cause
from edl_workflows.local.apiserver.objects import builtin_pods, crds
from edl_workflows.local.apiserver.objects.catalog import ServedResource, TableColumn
from edl_workflows.local.apiserver.objects.checks import check_port, required_problem, unsupported_problems
from edl_workflows.local.apiserver.storage.revisions import Object

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
LOOPBACK = "127.0.0.1"
"""Cluster IP of every Service: there is one machine and no pod network."""


Types = dict[str, dict[str, Any]]
"""Schemas by name in Kubernetes' OpenAPI document."""


@functools.cache
def type_schemas() -> Types:
    """The schemas by name, with references resolved (shared, not copied)."""
    text = (importlib.resources.files("edl_workflows.local.apiserver") / "builtin_schemas.json").read_text()
    types: Types = json.loads(text)

    def resolve(schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            return types[schema["$ref"]]
        for key, value in schema.items():
            schema[key] = resolve(value)
        return schema

    for schema in types.values():
        resolve(schema)
    return types


def _fill_namespace(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj.setdefault("status", {}).setdefault("phase", "Active")
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")


def _fill_service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    kind = spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if kind != "ExternalName":
        spec.setdefault("clusterIP", LOOPBACK)
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def _fill_secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    for key, value in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()


def _fill_event(obj: Object) -> None:
    obj.setdefault("source", {})
    obj.setdefault("reportingComponent", "")
    obj.setdefault("reportingInstance", "")
    obj.setdefault("type", "Normal")


def _fill_priority_class(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _check_service(obj: Object, old: Object | None) -> list[Cause]:
    spec = obj["spec"]
    causes = unsupported_problems(
        "spec.type", spec["type"], ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    )
    ports = spec.get("ports") or []
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(required_problem("spec.ports"))
    for index, port in enumerate(ports):
        causes += check_port(port["port"], f"spec.ports[{index}].port", named=False)
        causes += check_port(port["targetPort"], f"spec.ports[{index}].targetPort")
        if len(ports) > 1 and not port.get("name"):
            causes.append(required_problem(f"spec.ports[{index}].name"))
    if (
        old is not None
        and spec["type"] != "ExternalName"
        and spec.get("clusterIP") != old["spec"].get("clusterIP")
    ):
        message = f"Invalid value: {json.dumps([spec.get('clusterIP')])}: field is immutable"
        causes.append(Cause("FieldValueInvalid", message, "spec.clusterIPs[0]"))
    return causes


def _immutable(obj: Object, old: Object | None, fields: tuple[str, ...]) -> list[Cause]:
    if old is None:
        return []
    return [
        Cause(
            "FieldValueForbidden" if field != "type" else "FieldValueInvalid",
            f"{json.dumps(obj.get(field))}: field is immutable",
            field,
        )
        for field in fields
        if obj.get(field) != old.get(field)
    ]


MAX_DATA_BYTES = 2**20
"""Limit for all values of a ConfigMap or Secret together, as in Kubernetes."""


def _check_data_size(obj: Object, *encoded: str) -> list[Cause]:
    """Check the size of ``data`` and ``binaryData``; the values of the fields `encoded` are base64."""
    size = 0
    for field in ("data", "binaryData"):
        for value in (obj.get(field) or {}).values():
            size += len(value) * 3 // 4 - value[-2:].count("=") if field in encoded else len(value.encode())
    message = f"Too long: may not be more than {MAX_DATA_BYTES} bytes"
    return [Cause("FieldValueTooLong", message, "data")] if size > MAX_DATA_BYTES else []


def _check_data(obj: Object, old: Object | None) -> list[Cause]:
    return _check_keys(obj) + _check_immutable_data(obj, old)


def _check_keys(obj: Object) -> list[Cause]:
    """Check the keys, which become file names."""
    rule = "a valid key consists of alphanumeric characters, '-', '_' or '.', and does not begin with '..'"
    return [
        Cause("FieldValueInvalid", f"Invalid value: {json.dumps(key)}: {rule}", f"{field}[{key}]")
        for field in ("data", "binaryData")
        for key in obj.get(field) or {}
        if not _DATA_KEY.match(key)
    ]


def _check_immutable_data(obj: Object, old: Object | None) -> list[Cause]:
    if old is not None and old.get("immutable"):
        fields = [field for field in ("data", "binaryData", "immutable") if obj.get(field) != old.get(field)]
        message = "Forbidden: field is immutable when `immutable` is set"
        return [Cause("FieldValueForbidden", message, field) for field in fields]
    return []


def _check_config_map(obj: Object, old: Object | None) -> list[Cause]:
    return _check_data(obj, old) + _check_data_size(obj, "binaryData")


def _check_secret(obj: Object, old: Object | None) -> list[Cause]:
    causes = _immutable(obj, old, ("type",)) + _check_data(obj, old) + _check_data_size(obj, "data")
    for key, value in (obj.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except ValueError:
            causes.append(
                Cause(
                    "FieldValueInvalid",
                    "Invalid value: must be base64; plain text goes into stringData",
                    f"data[{key}]",
                )
            )
    return causes


def _check_priority_class(obj: Object, old: Object | None) -> list[Cause]:
    return _immutable(obj, old, ("value", "preemptionPolicy"))


_DATA_KEY = re.compile(r"(?!\.\.)(?!\.\Z)[-._a-zA-Z0-9]{1,253}\Z")
_POD_FIELDS = {
    "spec.nodeName": ".spec.nodeName",
    "spec.restartPolicy": ".spec.restartPolicy",
    "spec.schedulerName": ".spec.schedulerName",
    "spec.serviceAccountName": ".spec.serviceAccountName",
    "status.phase": ".status.phase",
    "status.podIP": ".status.podIP",
}
_EVENT_FIELDS = {
    **{
        f"involvedObject.{name}": f".involvedObject.{name}"
        for name in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")
    },
    "reason": ".reason",
    "reportingComponent": ".reportingComponent",
    "source": ".source.component",
    "type": ".type",
}


@functools.cache
def builtin_resources() -> tuple[ServedResource, ...]:
    types = type_schemas()
    return (*_running(types), *_configuration(types), *_groups(types), *_reviews(types))


def _running(types: Types) -> tuple[ServedResource, ...]:
    """The core group: what runs, and where."""
    return (
        ServedResource(
            "", "v1", "namespaces", "Namespace", namespaced=False, singular="namespace", short_names=("ns",),
            has_status=True,
            label_name=True, schema=types["V1Namespace"], fill=_fill_namespace,
            field_paths={"status.phase": ".status.phase"},
            columns=(TableColumn("Status", "string", ".status.phase"),),
        ),
        ServedResource(
            "", "v1", "nodes", "Node", namespaced=False, singular="node", short_names=("no",),
            has_status=True,
            schema=types["V1Node"], field_paths={"spec.unschedulable": ".spec.unschedulable"},
        ),
        ServedResource(
            "", "v1", "pods", "Pod", singular="pod", short_names=("po",), categories=("all",),
            has_status=True, graceful=True,
            schema=types["V1Pod"], fill=builtin_pods.fill_pod, check=builtin_pods.check_pod,
            field_paths=_POD_FIELDS,
            subresources=("log", "binding", "eviction"),
        ),
        ServedResource(
            "", "v1", "services", "Service", singular="service", short_names=("svc",), categories=("all",),
            has_status=True,
            label_name=True, schema=types["V1Service"], fill=_fill_service, check=_check_service,
            field_paths={"spec.clusterIP": ".spec.clusterIP", "spec.type": ".spec.type"},
            subresources=("proxy",),
        ),
        ServedResource("", "v1", "endpoints", "Endpoints", singular="endpoints", short_names=("ep",),
        schema=types["V1Endpoints"]),
    )  # fmt: skip


def _configuration(types: Types) -> tuple[ServedResource, ...]:
    """The core group: configuration of pods, and events about them."""
    return (
        ServedResource(
            "", "v1", "configmaps", "ConfigMap", singular="configmap", short_names=("cm",),
            schema=types["V1ConfigMap"],
            check=_check_config_map,
        ),
        ServedResource(
            "", "v1", "secrets", "Secret", singular="secret", schema=types["V1Secret"], fill=_fill_secret,
            check=_check_secret,
            field_paths={"type": ".type"},
        ),
        ServedResource(
            "", "v1", "serviceaccounts", "ServiceAccount", singular="serviceaccount", short_names=("sa",),
            schema=types["V1ServiceAccount"], subresources=("token",),
        ),
        ServedResource(
            "", "v1", "events", "Event", singular="event", short_names=("ev",), schema=types["CoreV1Event"],
            fill=_fill_event,
            field_paths=_EVENT_FIELDS,
        ),
    )  # fmt: skip


def _groups(types: Types) -> tuple[ServedResource, ...]:
    """The named groups."""
    return (
        ServedResource(
            "coordination.k8s.io", "v1", "leases", "Lease", singular="lease", schema=types["V1Lease"],
            columns=(TableColumn("Holder", "string", ".spec.holderIdentity"),
            TableColumn("Age", "date", ".metadata.creationTimestamp")),
        ),
        # Stored but not evaluated (see `auth`), so that the controller can create the same objects as on any
        # other cluster.
        ServedResource("rbac.authorization.k8s.io", "v1", "roles", "Role", singular="role",
        schema=types["V1Role"]),
        ServedResource(
            "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", singular="rolebinding",
            schema=types["V1RoleBinding"],
        ),
        ServedResource(
            "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False,
            singular="priorityclass",
            short_names=("pc",), schema=types["V1PriorityClass"], fill=_fill_priority_class,
            check=_check_priority_class,
            columns=(
                TableColumn("Value", "integer", ".value"),
                TableColumn("Global-Default", "boolean", ".globalDefault"),
                TableColumn("Age", "date", ".metadata.creationTimestamp"),
            ),
        ),
        ServedResource(
            "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
            namespaced=False,
            singular="customresourcedefinition", short_names=("crd", "crds"), categories=("api-extensions",),
            has_status=True,
            schema=types["V1CustomResourceDefinition"],
            fill=crds.fill_definition, check=crds.check_definition,
            columns=(TableColumn("Created At", "date", ".metadata.creationTimestamp"),),
        ),
    )  # fmt: skip


def _reviews(types: Types) -> Iterator[ServedResource]:
    """Objects that are posted and answered but not stored: see `reviews`."""
    for group, kinds in {
        "authentication.k8s.io": ("SelfSubjectReview", "TokenReview"),
        "authorization.k8s.io": ("SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"),
    }.items():
        for kind in kinds:
            yield ServedResource(
                group, "v1", f"{kind.lower()}s", kind, namespaced=False, singular=kind.lower(),
                verbs=("create",),
                schema=types[f"V1{kind}"],
            )  # fmt: skip


def zero_status(obj: Object, resource: ServedResource) -> None:
    """Fill in the required fields of ``status`` with zero values, as Kubernetes does: clients reject objects
    without them."""
    schema = (resource.schema.get("properties") or {}).get("status")
    if schema and isinstance(obj.get("status"), dict):
        _zero(obj["status"], schema)


_ZERO: dict[str, Any] = {"string": "", "integer": 0, "number": 0, "boolean": False}


def _zero(value: Any, schema: Schema) -> None:
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        for field in schema.get("required") or ():
            if value.get(field) is None and properties[field].get("type") in _ZERO:
                value[field] = _ZERO[properties[field]["type"]]
    for _, child, below in child_values(value, schema):
        if below:
            _zero(child, below)
