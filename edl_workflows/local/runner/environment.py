"""Computes a container's variables and arguments, as kubelet does. This module is pure."""

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.local.pods import (
    ConfigObjectRef,
    Container,
    ContainerVariable,
    KeyRef,
    Pod,
    ResourceFieldRef,
)
from edl_workflows.local.scheduler.resources import to_units

_REFERENCE = re.compile(r"\$(?:\$|\(([^()$\s]+)\))")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")

Data = Mapping[str, str]


class ContainerConfigError(InvalidError):
    """A container cannot be configured now, because an object or field that it refers to is missing or
    invalid."""


@dataclass(frozen=True)
class ValueSources:
    """The sources of a container's variables and arguments.

    Attributes:
        pod: the pod.
        ip: IP address of the pod.
        node_ip: IP address of the node.
        config_map: returns the data of a ConfigMap by name, None if it does not exist.
        secret: returns the decoded data of a Secret by name, None if it does not exist.
        allocatable: resources of the node in `units`, used where a container has no limit.
        base: variables that every container gets.
    """

    pod: Pod
    ip: str
    node_ip: str
    config_map: Callable[[str], Data | None]
    secret: Callable[[str], Data | None]
    allocatable: Mapping[str, int]
    base: Data


def container_variables(container: Container, sources: ValueSources) -> dict[str, str]:
    """The container's environment: base, ``envFrom`` and ``env``, with increasing precedence.

    Raises:
        ContainerConfigError: a required object or key does not exist, or a field is unknown.
    """
    variables = dict(sources.base)
    for source in container.env_from:
        for kind, reference in (("configmap", source.config_map_ref), ("secret", source.secret_ref)):
            if reference is not None:
                data = _whole(kind, reference, sources)
                variables |= {source.prefix + key: value for key, value in data.items()}
    for variable in container.env:
        value = _value(variable, container, sources, variables)
        if value is not None:
            variables[variable.name] = value
    return variables


def expand_variables(text: str, values: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` if there is a variable of that name. ``$$(NAME)`` is a literal ``$(NAME)``."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[1] is None else values.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def decode_secret(data: Mapping[str, str]) -> dict[str, bytes]:
    """A Secret's ``data``, decoded."""
    return {key: base64.b64decode(value) for key, value in data.items()}


def field_value(path: str, sources: ValueSources) -> str:
    """The value of a pod's field for the downward API.

    Raises:
        ContainerConfigError: the downward API has no such field.
    """
    meta, spec = sources.pod.metadata, sources.pod.spec
    subscript = _SUBSCRIPT.match(path)
    if subscript:
        table = meta.labels if subscript[1] == "labels" else meta.annotations
        return table.get(subscript[2], "")
    fields = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "metadata.labels": _lines(meta.labels),
        "metadata.annotations": _lines(meta.annotations),
        "spec.nodeName": spec.node_name,
        "spec.serviceAccountName": spec.service_account_name,
        "status.hostIP": sources.node_ip,
        "status.hostIPs": sources.node_ip,
        "status.podIP": sources.ip,
        "status.podIPs": sources.ip,
    }
    if path not in fields:
        raise ContainerConfigError(
            f"fieldPath {path!r} is not supported; supported are {', '.join(sorted(fields))}"
        )
    return fields[path]


def resource_value(reference: ResourceFieldRef, container: Container, sources: ValueSources) -> str:
    """A container's request or limit divided by the divisor, rounded up.

    Raises:
        ContainerConfigError: no such resource or container.
    """
    kind, _, resource = reference.resource.partition(".")
    name = reference.container_name or container.name
    named = next((candidate for candidate in sources.pod.spec.all_containers if candidate.name == name), None)
    if named is None or kind not in ("limits", "requests"):
        raise ContainerConfigError(
            f"resourceFieldRef {reference.resource!r} of container {name!r} is unknown"
        )
    if kind == "requests":
        amount = named.resources.request(resource)
    else:
        limit = named.resources.limit(resource)
        per_unit = 1000 if resource == "cpu" else 1
        amount = limit if limit is not None else sources.allocatable.get(resource, 0) / per_unit
    divisor = parse_quantity(reference.divisor if reference.divisor not in ("", "0") else "1")
    return str(math.ceil(to_units("cpu", amount) / to_units("cpu", divisor)))


def _lines(table: Mapping[str, str]) -> str:
    return "\n".join(f'{key}="{value}"' for key, value in sorted(table.items()))


def _value(
    variable: ContainerVariable, container: Container, sources: ValueSources, so_far: Data
) -> str | None:
    source = variable.value_from
    if source is None:
        return expand_variables(variable.value, so_far)
    if source.field_ref is not None:
        return field_value(source.field_ref.field_path, sources)
    if source.resource_field_ref is not None:
        return resource_value(source.resource_field_ref, container, sources)
    if source.config_map_key_ref is not None:
        return _key("configmap", source.config_map_key_ref, sources)
    if source.secret_key_ref is not None:
        return _key("secret", source.secret_key_ref, sources)
    return ""


def _key(kind: str, reference: KeyRef, sources: ValueSources) -> str | None:
    data = _whole(kind, ConfigObjectRef(name=reference.name, optional=reference.optional), sources)
    if reference.key not in data and not reference.optional:
        where = f"{sources.pod.metadata.namespace}/{reference.name}"
        raise ContainerConfigError(f"couldn't find key {reference.key} in {kind} {where}")
    return data.get(reference.key)


def _whole(kind: str, reference: ConfigObjectRef, sources: ValueSources) -> Data:
    data = (sources.config_map if kind == "configmap" else sources.secret)(reference.name)
    if data is None and not reference.optional:
        raise ContainerConfigError(f'{kind} "{reference.name}" not found')
    return data or {}
