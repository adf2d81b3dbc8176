"""Pods in the API server: defaults, and the checks that users rely on.

`edl_workflows.local.runner` runs them; `subresources` serves their logs and bindings.
"""

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from edl_workflows.local.apiserver.errors import Cause
from edl_workflows.local.apiserver.objects import quantities
from edl_workflows.local.apiserver.objects.checks import (
    check_port,
    out_of_range,
    required_problem,
    unsupported_problems,
)
from edl_workflows.local.apiserver.objects.metadata import name_problem
from edl_workflows.local.apiserver.storage.revisions import Object

DEFAULT_GRACE_SECONDS = 30
_MAX_SECONDS = 2**31 - 1
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_VARIABLE = re.compile(r"[ -<>-~]+\Z")


def _fill_container(container: dict[str, Any]) -> None:
    image = container.get("image", "")
    latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.setdefault("resources", {})
    for amounts in (resources.get("limits"), resources.get("requests")):
        # Users write `cpu: 0.5`; clients read text.
        for name, amount in (amounts or {}).items():
            amounts[name] = amount if isinstance(amount, bool) else str(amount)
    for name, limit in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, limit)
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for probe in _PROBES:
        if container.get(probe):
            _fill_probe(container[probe])
    for variable in container.get("env") or []:
        if reference := (variable.get("valueFrom") or {}).get("fieldRef"):
            reference.setdefault("apiVersion", "v1")


def _fill_probe(probe: dict[str, Any]) -> None:
    for field, value in {
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }.items():
        probe.setdefault(field, value)
    if probe.get("httpGet"):
        probe["httpGet"].setdefault("scheme", "HTTP")
        probe["httpGet"].setdefault("path", "/")


def fill_pod(obj: Object) -> None:
    """Set the defaults of spec and status."""
    spec = obj.setdefault("spec", {})
    for field, value in {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": DEFAULT_GRACE_SECONDS,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
        "enableServiceLinks": True,
    }.items():
        spec.setdefault(field, value)
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec.setdefault("securityContext", {})
    for container in (spec.get("initContainers") or []) + (spec.get("containers") or []):
        _fill_container(container)
    status = obj.setdefault("status", {})
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", _qos(spec))


def _qos(spec: Object) -> str:
    resources = [container.get("resources") or {} for container in spec.get("containers") or []]
    limited = [
        {"cpu", "memory"} <= (requirements.get("limits") or {}).keys()
        and requirements.get("limits") == requirements.get("requests")
        for requirements in resources
    ]
    if resources and all(limited):
        return "Guaranteed"
    return (
        "Burstable"
        if any(requirements.get("requests") or requirements.get("limits") for requirements in resources)
        else "BestEffort"
    )


_MUTABLE = ("image",)
"""The fields of a container that an update may change; of the pod's spec, only tolerations, deadline and,
once, the node name."""


def _frozen_spec(obj: Object) -> Object:
    spec = {key: value for key, value in obj["spec"].items() if key not in _MUTABLE_SPEC}
    for field in ("containers", "initContainers"):
        spec[field] = [
            {key: value for key, value in container.items() if key not in _MUTABLE}
            for container in spec.get(field) or []
        ]
    return spec


_MUTABLE_SPEC = frozenset(
    {"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "nodeName", "priority"}
)


def check_pod(obj: Object, old: Object | None) -> list[Cause]:
    """The problems of a pod, whose fields have already been checked for the right types."""
    spec = obj["spec"]
    if old is not None and spec == old["spec"]:
        return []
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(required_problem("spec.containers"))
    for index, volume in enumerate(spec.get("volumes") or []):
        causes += _check_volume(volume, f"spec.volumes[{index}]")
    names: list[str] = []
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            causes += _check_container(container, f"spec.{field}[{index}]", names)
    causes += unsupported_problems(
        "spec.restartPolicy", spec["restartPolicy"], ("Always", "OnFailure", "Never")
    )
    grace = spec["terminationGracePeriodSeconds"]
    causes += out_of_range(grace, 0, _MAX_SECONDS, "spec.terminationGracePeriodSeconds")
    deadline = spec.get("activeDeadlineSeconds", 1)
    causes += out_of_range(deadline, 1, _MAX_SECONDS, "spec.activeDeadlineSeconds")
    if old is not None and _frozen_spec(obj) != _frozen_spec(old):
        message = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations`,"
            "`spec.terminationGracePeriodSeconds`"
        )
        causes.append(Cause("FieldValueForbidden", message, "spec"))
    return causes


def _check_container(container: dict[str, Any], path: str, names: list[str]) -> list[Cause]:
    causes: list[Cause] = []
    name = container.get("name")
    if name in names:
        causes.append(Cause("FieldValueDuplicate", f"Duplicate value: {json.dumps(name)}", f"{path}.name"))
    names.append(name or "")
    causes += _check_label(name or "", f"{path}.name")
    causes += _check_variables(container, path)
    for index, port in enumerate(container.get("ports") or []):
        causes += check_port(port["containerPort"], f"{path}.ports[{index}].containerPort", named=False)
    if not container.get("image"):
        causes.append(required_problem(f"{path}.image"))
    causes += quantities.check_requests(container.get("resources") or {}, f"{path}.resources")
    causes += _check_handlers(container, path)
    mounts = [mount.get("mountPath") for mount in container.get("volumeMounts") or []]
    seen: set[str] = set()
    for index, mount in enumerate(mounts):
        if mount in seen:
            causes.append(
                Cause(
                    "FieldValueInvalid",
                    f"Invalid value: {json.dumps(mount)}: must be unique",
                    f"{path}.volumeMounts[{index}].mountPath",
                )
            )
        seen.add(mount)
    return causes


def _check_label(name: str, path: str) -> Iterator[Cause]:
    """The names of containers and volumes become folder names, so this check is a matter of safety."""
    if problem := name_problem(name, label=True):
        yield Cause("FieldValueInvalid", f"Invalid value: {json.dumps(name)}: {problem}", path)


def _check_variables(container: dict[str, Any], path: str) -> Iterator[Cause]:
    for index, variable in enumerate(container.get("env") or []):
        if not _VARIABLE.match(variable["name"]):
            message = (
                f"Invalid value: {json.dumps(variable['name'])}: a valid environment variable name must "
                "consist only of printable ASCII characters other than '='"
            )
            yield Cause("FieldValueInvalid", message, f"{path}.env[{index}].name")
        if reference := (variable.get("valueFrom") or {}).get("resourceFieldRef"):
            at = f"{path}.env[{index}].valueFrom.resourceFieldRef"
            yield from quantities.check_divisor(reference, at)


def _check_handlers(container: dict[str, Any], path: str) -> Iterator[Cause]:
    """Check probes and hooks: times that fit a clock, and ports."""
    lifecycle = container.get("lifecycle") or {}
    places = {f"{path}.{name}": container.get(name) or {} for name in _PROBES}
    places |= {f"{path}.lifecycle.{name}": hook or {} for name, hook in lifecycle.items()}
    for at, handler in places.items():
        for field, value in handler.items():
            if isinstance(value, int):
                least = 0 if field == "initialDelaySeconds" else 1
                yield from out_of_range(value, least, _MAX_SECONDS, f"{at}.{field}")
        for action in ("httpGet", "tcpSocket"):
            if target := handler.get(action):
                yield from check_port(target["port"], f"{at}.{action}.port")


def _check_volume(volume: dict[str, Any], path: str) -> Iterator[Cause]:
    yield from _check_label(volume["name"], f"{path}.name")
    sources = [(path, volume)]
    sources += [
        (f"{path}.projected.sources[{index}]", projection)
        for index, projection in enumerate((volume.get("projected") or {}).get("sources") or [])
    ]
    for where, source in sources:
        for kind in ("configMap", "secret", "downwardAPI"):
            for index, item in enumerate((source.get(kind) or {}).get("items") or []):
                at = f"{where}.{kind}.items[{index}]"
                yield from _check_inner_path(item["path"], f"{at}.path")
                yield from quantities.check_divisor(
                    item.get("resourceFieldRef") or {}, f"{at}.resourceFieldRef"
                )


def _check_inner_path(text: str, path: str) -> Iterator[Cause]:
    inner = PurePosixPath(text)
    if not inner.parts or inner.is_absolute() or ".." in inner.parts or text.startswith(".."):
        message = f"Invalid value: {json.dumps(text)}: must be a relative path without '..'"
        yield Cause("FieldValueInvalid", message, path)
