"""Decodes protobuf request bodies of built-in kinds, as Go clients send them. Responses are always JSON.

The field numbers are those of k8s.io/api and k8s.io/apimachinery, which never change
(``protobuf_fields.json``, written by ``tests/clients/go/protobuf_fields``). Kinds that are not in the table
are rejected with 415.
"""

import base64
import functools
import importlib.resources
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.storage.revisions import Object

MAGIC = b"k8s\x00"
"""The beginning of every Kubernetes protobuf body."""


Message = Mapping[str, Sequence[Any]]
"""For each field number: the JSON name, the type, and whether JSON also contains zero values. The program
that writes the table explains the types."""
_ENVELOPE: Message = {"1": ("typeMeta", "TypeMeta"), "2": ("raw", "raw")}
_TYPE_META: Message = {"1": ("apiVersion", "string"), "2": ("kind", "string")}


@functools.cache
def message_fields() -> Mapping[str, Message]:
    """The fields of all known messages, by the name of their Go type."""
    text = (importlib.resources.files("edl_workflows.local.apiserver") / "protobuf_fields.json").read_text()
    return {"TypeMeta": _TYPE_META, **json.loads(text)}


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
                raise ValueError("a varint has more than 64 bits")

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
                raise ValueError("a field ends after the end of the message")
            self.at += length
            yield number, self.data[self.at - length : self.at]


def decode(body: bytes) -> Object:
    """Decode the object in a protobuf body.

    Raises:
        ApiError: 415, an unknown kind; 400, malformed.
    """
    try:
        return _decode(body)
    except (ValueError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise errors.bad_request(
            f"the object provided is unrecognized: not a Kubernetes protobuf: {error}"
        ) from error


def _decode(body: bytes) -> Object:
    if not body.startswith(MAGIC):
        raise ValueError("it does not begin with k8s\\x00")
    envelope = _message(body[len(MAGIC) :], _ENVELOPE)
    meta = envelope.get("typeMeta") or {}
    fields = message_fields().get(meta.get("kind", ""))
    if fields is None:
        kind = meta.get("kind", "an object")
        raise errors.unsupported_media_type(f"{kind} is not accepted as protobuf here; send application/json")
    return {**meta, **_message(envelope.get("raw", b""), fields)}


def _message(data: bytes, fields: Message) -> Object:
    message: Object = {}
    for number, raw in _Reader(data).fields():
        name, kind, *zero_counts = fields.get(str(number), ("", ""))
        if not kind:
            continue
        bare = kind[2:] if kind[:2] in _CONTAINERS else kind
        if kind.startswith("{}"):
            entry = dict(_Reader(raw).fields())
            key = entry.get(_MAP_KEY, b"").decode()
            message.setdefault(name, {})[key] = _value(entry.get(_MAP_VALUE, b""), bare)
        elif kind.startswith("[]"):
            message.setdefault(name, []).append(_value(raw, bare))
        elif (value := _value(raw, bare)) or (zero_counts and value is not None):
            message |= {name: value} if name else value
    return message


def _value(raw: Any, kind: str) -> Any:
    if convert := _CONVERSIONS.get(kind):
        return convert(raw)
    return _message(raw, message_fields()[kind])


def _int(raw: int) -> int:
    return raw - (1 << 64) if raw >> 63 else raw


def _time(raw: bytes, digits: str = "seconds") -> str | None:
    parts = dict(_Reader(raw).fields())
    if not parts:
        return None  # the zero time
    moment = datetime.fromtimestamp(_int(parts.get(1, 0)), UTC) + timedelta(
        microseconds=parts.get(2, 0) // 1000
    )
    return moment.isoformat(timespec=digits).replace("+00:00", "Z")


def _int_or_string(raw: bytes) -> int | str:
    parts = dict(_Reader(raw).fields())
    return str(parts.get(3, b"").decode()) if parts.get(1) else _int(parts.get(2, 0))


def _quantity(raw: bytes) -> str:
    return str(dict(_Reader(raw).fields()).get(1, b"0").decode())


_CONTAINERS = ("[]", "{}")
_MAP_KEY, _MAP_VALUE = 1, 2
_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "string": bytes.decode,
    "bytes": lambda raw: base64.b64encode(raw).decode(),
    "int": _int,
    "bool": bool,
    "time": _time,
    "micro-time": functools.partial(_time, digits="microseconds"),
    "int-or-string": _int_or_string,
    "quantity": _quantity,
    "raw": bytes,
}
