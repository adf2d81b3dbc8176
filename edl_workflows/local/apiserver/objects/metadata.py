"""The fields that all objects have: ``metadata`` with names, times and their validation."""

import random
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from edl_workflows.local.apiserver.errors import Cause
from edl_workflows.local.apiserver.storage.revisions import Object

Now = Callable[[], datetime]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(rf"^{_LABEL}\Z")
_DNS_SUBDOMAIN = re.compile(rf"^{_LABEL}(\.{_LABEL})*\Z")
_QUALIFIED = re.compile(r"^(?:([^/]+)/)?([A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)\Z")
_LABEL_VALUE = re.compile(r"^(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?\Z")
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATED = 58
"""Longest base of a generated name: 63 minus the suffix of 5 characters, as in Kubernetes."""
_MAX_ANNOTATIONS = 256 * 1024

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
    "must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start "
    "and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def format_time(moment: datetime) -> str:
    """A time as Kubernetes writes it, in whole seconds: ``2026-01-31T12:00:00Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def generate_name(base: str) -> str:
    """`base` and five random characters, cut to fit a DNS label."""
    return base[:_MAX_GENERATED] + "".join(random.choices(_SUFFIX_ALPHABET, k=5))  # noqa: S311 - not a secret


def name_problem(name: str, *, label: bool = False) -> str:
    """Why `name` is not a valid object name (RFC 1123 subdomain, or label); empty if it is."""
    if len(name) > (63 if label else 253):
        return f"must be no more than {63 if label else 253} characters"
    if not (_DNS_LABEL if label else _DNS_SUBDOMAIN).match(name):
        return _LABEL_RULE if label else _SUBDOMAIN_RULE
    return ""


def _qualified_problem(key: str) -> str:
    match = _QUALIFIED.match(key)
    if match is None or len(match[2]) > 63:
        return (
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
            "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc')"
        )
    if match[1] is not None and name_problem(match[1]):
        return f"prefix part {_SUBDOMAIN_RULE}"
    return ""


def check_metadata(obj: Object, *, label_name: bool = False) -> list[Cause]:
    """The problems of ``metadata``."""
    metadata = obj["metadata"]
    causes: list[Cause] = []
    name = metadata.get("name") or ""
    if not name:
        causes.append(
            Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")
        )
    elif problem := name_problem(name, label=label_name):
        causes.append(Cause("FieldValueInvalid", f'Invalid value: "{name}": {problem}', "metadata.name"))
    causes += _validate_labels(metadata.get("labels") or {})
    causes += _validate_annotations(metadata.get("annotations") or {})
    causes += _validate_owners(metadata.get("ownerReferences") or [])
    for finalizer in metadata.get("finalizers") or []:
        if problem := _qualified_problem(finalizer):
            causes.append(
                Cause("FieldValueInvalid", f'Invalid value: "{finalizer}": {problem}', "metadata.finalizers")
            )
    return causes


def _validate_labels(labels: Mapping[str, str]) -> list[Cause]:
    causes: list[Cause] = []
    for key, value in labels.items():
        if problem := _qualified_problem(key):
            causes.append(Cause("FieldValueInvalid", f'Invalid value: "{key}": {problem}', "metadata.labels"))
        if len(value) > 63 or not _LABEL_VALUE.match(value):
            rule = (
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
                "'.', and must start and end with an alphanumeric character, with at most 63 characters"
            )
            causes.append(Cause("FieldValueInvalid", f'Invalid value: "{value}": {rule}', "metadata.labels"))
    return causes


def _validate_annotations(annotations: Mapping[str, str]) -> list[Cause]:
    if sum(len(key) + len(value) for key, value in annotations.items()) > _MAX_ANNOTATIONS:
        return [
            Cause(
                "FieldValueTooLong",
                f"Too long: may not be more than {_MAX_ANNOTATIONS} bytes",
                "metadata.annotations",
            )
        ]
    return [
        Cause("FieldValueInvalid", f'Invalid value: "{key}": {problem}', "metadata.annotations")
        for key in annotations
        if (problem := _qualified_problem(key.lower()))
    ]


def _validate_owners(owners: list[Mapping[str, Any]]) -> list[Cause]:
    causes = [
        Cause("FieldValueRequired", "Required value", f"metadata.ownerReferences[{index}].{field}")
        for index, owner in enumerate(owners)
        for field in ("apiVersion", "kind", "name", "uid")
        if not owner.get(field)
    ]
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        message = "Invalid value: Only one reference can have Controller set to true"
        causes.append(Cause("FieldValueInvalid", message, "metadata.ownerReferences"))
    return causes


_STRING = str
_SHAPE: Mapping[str, type] = {
    "name": _STRING, "generateName": _STRING, "namespace": _STRING, "uid": _STRING,
    "resourceVersion": _STRING,
    "creationTimestamp": _STRING, "deletionTimestamp": _STRING, "selfLink": _STRING,
    "generation": int, "deletionGracePeriodSeconds": int,
    "labels": dict, "annotations": dict, "finalizers": list, "ownerReferences": list, "managedFields": list,
}  # fmt: skip


def shape_problem(metadata: Any) -> str:
    """The first field of ``metadata`` that has a wrong type, as a message; empty if there is none."""
    if not isinstance(metadata, dict):
        return "metadata: must be an object"
    for field, kind in _SHAPE.items():
        value = metadata.get(field)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            return f"metadata.{field}: must be {kind.__name__}, not {type(value).__name__}"
    for field in ("labels", "annotations"):
        for key, value in (metadata.get(field) or {}).items():
            if not isinstance(value, str):
                return f"metadata.{field}.{key}: must be a string, not {type(value).__name__}"
    if not all(isinstance(entry, str) for entry in metadata.get("finalizers") or []):
        return "metadata.finalizers: must be strings"
    if not all(isinstance(entry, dict) for entry in metadata.get("ownerReferences") or []):
        return "metadata.ownerReferences: must be objects"
    return ""


def unknown_fields(metadata: Mapping[str, Any]) -> list[str]:
    """Fields of ``metadata`` that Kubernetes does not have."""
    return [f"metadata.{field}" for field in metadata if field not in _SHAPE]


def without_nulls(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """``metadata`` without unknown, null and server-side-apply fields."""
    return {
        field: value
        for field, value in metadata.items()
        if value is not None and field in _SHAPE and field != "managedFields"
    }
