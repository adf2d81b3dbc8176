"""Protobuf request bodies of the few kinds that ``kubectl create`` sends so; answers are always JSON.

The field numbers are those of the ``generated.proto`` files of k8s.io/api and k8s.io/apimachinery, which never change.
Kinds that are not in the table are refused with 415.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from edl_workflows.local.apiserver import errors, metadata
from edl_workflows.local.apiserver.store import Object

MAGIC = b"k8s\x00"
"""Begins every Kubernetes protobuf body."""


@dataclass(frozen=True)
class Field:
    """One field of a message: its JSON name, what it holds, and whether it repeats."""

    name: str
    kind: "str | Mapping[int, Field]" = "string"
    repeated: bool = False


Message = Mapping[int, Field]


def _strings(name: str) -> Field:
    return Field(name, repeated=True)


_OWNER: Message = {
    1: Field("kind"), 3: Field("name"), 4: Field("uid"), 5: Field("apiVersion"), 6: Field("controller", "bool"),
    7: Field("blockOwnerDeletion", "bool"),
}  # fmt: skip
_METADATA: Message = {
    1: Field("name"), 2: Field("generateName"), 3: Field("namespace"), 5: Field("uid"), 6: Field("resourceVersion"),
    7: Field("generation", "int"), 8: Field("creationTimestamp", "time"), 9: Field("deletionTimestamp", "time"),
    10: Field("deletionGracePeriodSeconds", "int"), 11: Field("labels", "map"), 12: Field("annotations", "map"),
    13: Field("ownerReferences", _OWNER, repeated=True), 14: _strings("finalizers"),
}  # fmt: skip
_SERVICE_PORT: Message = {
    1: Field("name"), 2: Field("protocol"), 3: Field("port", "int"), 4: Field("targetPort", "int-or-string"),
    5: Field("nodePort", "int"), 6: Field("appProtocol"),
}  # fmt: skip
_SERVICE_SPEC: Message = {
    1: Field("ports", _SERVICE_PORT, repeated=True), 2: Field("selector", "map"), 3: Field("clusterIP"), 4: Field("type"),
    7: Field("sessionAffinity"), 10: Field("externalName"),
}  # fmt: skip
_REFERENCE: Message = {1: Field("kind"), 2: Field("namespace"), 3: Field("name")}
_LOCAL_REFERENCE: Message = {1: Field("name")}
_PRECONDITIONS: Message = {1: Field("uid"), 2: Field("resourceVersion")}
_DELETE_OPTIONS: Message = {
    1: Field("gracePeriodSeconds", "int"), 2: Field("preconditions", _PRECONDITIONS), 3: Field("orphanDependents", "bool"),
    4: Field("propagationPolicy"), 5: _strings("dryRun"),
}  # fmt: skip
_TOKEN_SPEC: Message = {1: _strings("audiences"), 4: Field("expirationSeconds", "int")}
_OBJECT = Field("metadata", _METADATA)
_MESSAGES: Mapping[str, Message] = {
    "Namespace": {1: _OBJECT, 2: Field("spec", {1: _strings("finalizers")}), 3: Field("status", {1: Field("phase")})},
    "ConfigMap": {1: _OBJECT, 2: Field("data", "map"), 3: Field("binaryData", "bytes-map"), 4: Field("immutable", "bool")},
    "Secret": {
        1: _OBJECT, 2: Field("data", "bytes-map"), 3: Field("type"), 4: Field("stringData", "map"), 5: Field("immutable", "bool"),
    },
    "ServiceAccount": {
        1: _OBJECT, 2: Field("secrets", _REFERENCE, repeated=True), 3: Field("imagePullSecrets", _LOCAL_REFERENCE, repeated=True),
        4: Field("automountServiceAccountToken", "bool"),
    },
    "Service": {1: _OBJECT, 2: Field("spec", _SERVICE_SPEC), 3: Field("status", {})},
    "PriorityClass": {
        1: _OBJECT, 2: Field("value", "int"), 3: Field("globalDefault", "bool"), 4: Field("description"),
        5: Field("preemptionPolicy"),
    },
    "TokenRequest": {1: _OBJECT, 2: Field("spec", _TOKEN_SPEC), 3: Field("status", {})},
    "Eviction": {1: _OBJECT, 2: Field("deleteOptions", _DELETE_OPTIONS)},
    "DeleteOptions": _DELETE_OPTIONS,
}  # fmt: skip
_ENVELOPE: Message = {
    1: Field("typeMeta", {1: Field("apiVersion"), 2: Field("kind")}),
    2: Field("raw", "bytes"),
}


@dataclass
class _Reader:
    """Wire format: tags, varints, lengths."""

    data: bytes
    at: int = field(default=0)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a varint of more than 64 bits")

    def fields(self) -> Iterator[tuple[int, Any]]:
        """(number, value) of each field: an integer or bytes."""
        while self.at < len(self.data):
            tag = self.varint()
            number, wire = tag >> 3, tag & 7
            if wire == 0:
                yield number, self.varint()
                continue
            length = {1: 8, 5: 4}.get(wire)
            if length is None and wire != 2:
                raise ValueError(f"wire type {wire}")
            length = self.varint() if length is None else length
            if self.at + length > len(self.data):
                raise ValueError("a field ends beyond the message")
            self.at += length
            yield number, self.data[self.at - length : self.at]


def decode(body: bytes) -> Object:
    """The object in a protobuf body.

    Raises:
        ApiError: 415, a kind that is not known here; 400, malformed.
    """
    try:
        return _decode(body)
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise errors.bad_request(
            f"the object provided is unrecognized: no Kubernetes protobuf: {error}"
        ) from error


def _decode(body: bytes) -> Object:
    if not body.startswith(MAGIC):
        raise ValueError("it does not begin with k8s\\x00")
    envelope = _message(body[len(MAGIC) :], _ENVELOPE)
    meta = envelope.get("typeMeta") or {}
    fields = _MESSAGES.get(meta.get("kind", ""))
    if fields is None:
        kind = meta.get("kind", "an object")
        raise errors.unsupported_media_type(f"{kind} is not read as protobuf here; send application/json")
    return {**meta, **_message(base64.b64decode(envelope.get("raw", "")), fields)}


def _message(data: bytes, fields: Message) -> Object:
    found: Object = {}
    for number, raw in _Reader(data).fields():
        known = fields.get(number)
        if known is None:
            continue
        value = _value(raw, known)
        if known.kind in ("map", "bytes-map"):
            found.setdefault(known.name, {}).update(value)
        elif known.repeated:
            found.setdefault(known.name, []).append(value)
        else:
            found[known.name] = value
    return {name: value for name, value in found.items() if value not in ("", None, {})}


def _value(raw: Any, known: Field) -> Any:
    kind = known.kind
    if isinstance(kind, Mapping):
        return _message(raw, kind)
    if kind == "int":
        return raw - (1 << 64) if raw >> 63 else raw
    if kind == "bool":
        return bool(raw)
    if kind == "bytes":
        return base64.b64encode(raw).decode()
    if kind == "time":
        seconds = dict(_Reader(raw).fields()).get(1, 0)
        return metadata.timestamp(datetime.fromtimestamp(seconds, UTC))
    if kind == "int-or-string":
        parts = dict(_Reader(raw).fields())
        return parts.get(3, b"").decode() if parts.get(1) else parts.get(2, 0)
    if kind in ("map", "bytes-map"):
        entry = dict(_Reader(raw).fields())
        value = entry.get(2, b"")
        return {
            entry.get(1, b"").decode(): value.decode() if kind == "map" else base64.b64encode(value).decode()
        }
    return raw.decode()
