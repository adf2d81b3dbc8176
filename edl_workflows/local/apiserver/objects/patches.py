"""The three kinds of patches: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch.

The functions are pure: they return a new object. Server-side apply is rejected with 415.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

import jsonpatch

from edl_workflows.core.schemas.structural import Schema
from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.storage.revisions import Object

MAX_OPERATIONS = 10_000
"""Limit of operations in one JSON patch, as in Kubernetes."""
MAX_COPIED_BYTES = 3 * 1024 * 1024
"""Limit of bytes that the copy operations of one JSON patch may copy, as in Kubernetes: thirty of them could
turn a byte into a gigabyte."""


def json_patch(obj: Object, operations: Any) -> Object:
    """Apply an RFC 6902 patch.

    Raises:
        ApiError: 400, it is not a patch; 422, a test failed, a path does not exist, or it copies too much;
            413, it has too many operations.
    """
    if not isinstance(operations, list):
        raise errors.bad_request("a JSON patch is an array of operations")
    if len(operations) > MAX_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise errors.ApiError(413, "RequestEntityTooLarge", message)
    try:
        patched = _applied(obj, operations)
    except jsonpatch.InvalidJsonPatch as error:
        raise errors.bad_request(f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        raise errors.ApiError(
            422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
        ) from error
    return _object(patched)


def _applied(obj: Object, operations: list[Any]) -> Any:
    steps = [(operation, jsonpatch.JsonPatch([operation])) for operation in operations]
    patched: Any = copy.deepcopy(obj)
    copied = 0
    for operation, step in steps:
        if operation["op"] == "copy":
            copied += len(json.dumps(jsonpatch.JsonPointer(operation["from"]).resolve(patched)))
        if copied > MAX_COPIED_BYTES:
            message = f"the allowed maximum of copied bytes in a JSON patch is {MAX_COPIED_BYTES}"
            raise errors.ApiError(422, "Invalid", message)
        patched = step.apply(patched, in_place=True)
    return patched


def merge_patch(obj: Object, patch: Any) -> Object:
    """Apply an RFC 7386 patch: null deletes, objects merge, everything else replaces."""
    return _object(_merge(obj, _object(patch)))


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _object(value: Any) -> Object:
    if not isinstance(value, dict):
        raise errors.bad_request("the patch does not describe an object")
    return value


_KEY = "x-kubernetes-patch-merge-key"
_STRATEGY = "x-kubernetes-patch-strategy"


def strategic_merge_patch(obj: Object, patch: Any, schema: Schema) -> Object:
    """Apply a strategic merge patch: a merge patch in which the lists that `schema` marks are merged by key
    or as sets.

    ``$patch: delete|replace|merge``, ``$deleteFromPrimitiveList/…``, ``$setElementOrder/…`` and
    ``$retainKeys`` are supported, as ``kubectl apply`` writes them.

    Raises:
        ApiError: 400, it is not a valid strategic merge patch.
    """
    try:
        return _object(_strategic(obj, _object(patch), schema))
    except (AttributeError, TypeError) as error:  # for example a list in place of a map
        raise errors.bad_request(f"the strategic merge patch is malformed: {error}") from error


def _below(schema: Schema, field: str) -> Schema:
    child_schema = (schema.get("properties") or {}).get(field) or schema.get("additionalProperties")
    return child_schema if isinstance(child_schema, Mapping) else {}


def _strategic(target: Any, patch: Mapping[str, Any], schema: Schema) -> Any:
    directive = patch.get("$patch")
    body = {key: value for key, value in patch.items() if not key.startswith("$")}
    if directive == "replace":
        return body
    if directive == "delete":
        return {}
    merged = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        merged = {key: value for key, value in merged.items() if key in patch["$retainKeys"]}
    for key, value in body.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _strategic(merged.get(key), value, _below(schema, key))
        elif isinstance(value, list):
            merged[key] = _list(merged.get(key) or [], value, _below(schema, key))
        else:
            merged[key] = value
    _directives(merged, patch, schema)
    return merged


def _directives(merged: dict[str, Any], patch: Mapping[str, Any], schema: Schema) -> None:
    for directive, value in patch.items():
        kind, _, field = directive.partition("/")
        if kind == "$deleteFromPrimitiveList":
            merged[field] = [entry for entry in merged.get(field, []) if entry not in value]
        elif kind == "$setElementOrder" and isinstance(merged.get(field), list):
            merged[field] = _ordered(merged[field], value, _below(schema, field).get(_KEY, ""))


def _list(current: list[Any], patch: list[Any], schema: Schema) -> list[Any]:
    key = schema.get(_KEY, "")
    if schema.get(_STRATEGY) == "merge" and not key:
        return current + [entry for entry in patch if entry not in current]
    replace = any(isinstance(entry, dict) and entry.get("$patch") == "replace" for entry in patch)
    if not key or replace:
        return [
            entry for entry in patch if not (isinstance(entry, dict) and entry.get("$patch") == "replace")
        ]
    merged = list(current)
    for entry in patch:
        if not isinstance(entry, dict) or key not in entry:
            raise errors.bad_request(f"map: {entry} does not contain declared merge key: {key}")
        at = next((index for index, old in enumerate(merged) if old.get(key) == entry[key]), None)
        if entry.get("$patch") == "delete":
            merged = [old for old in merged if old.get(key) != entry[key]]
        elif at is None:
            merged.append(_strategic({}, entry, schema.get("items") or {}))
        else:
            merged[at] = _strategic(merged[at], entry, schema.get("items") or {})
    return merged


def _ordered(entries: list[Any], order: list[Any], key: str) -> list[Any]:
    def identity(entry: Any) -> Any:
        return entry.get(key) if isinstance(entry, dict) else entry

    identities = [identity(entry) for entry in order]
    first = sorted(
        (entry for entry in entries if identity(entry) in identities),
        key=lambda entry: identities.index(identity(entry)),
    )
    return first + [entry for entry in entries if identity(entry) not in identities]
