"""Bodies that are not JSON, and the schemas of the built-in kinds."""

import contextlib
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.local.apiserver import builtin, protobuf
from edl_workflows.local.apiserver.errors import ApiError


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def _body(kind: str, raw: bytes) -> bytes:
    meta = _field(1, b"v1") + _field(2, kind.encode())
    return protobuf.MAGIC + _field(1, meta) + _field(2, raw)


def test_protobuf_object() -> None:
    """A config map as kubectl sends it is read."""
    metadata = _field(1, b"c") + _field(11, _field(1, b"app") + _field(2, b"x"))
    raw = _field(1, metadata) + _field(2, _field(1, b"k") + _field(2, b"v")) + bytes([4 << 3, 1])

    assert protobuf.decode(_body("ConfigMap", raw)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "labels": {"app": "x"}},
        "data": {"k": "v"},
        "immutable": True,
    }


def test_protobuf_of_an_unknown_kind() -> None:
    """A kind that is not read as protobuf is 415 and says what to send."""
    with pytest.raises(ApiError, match="send application/json") as refused:
        protobuf.decode(_body("Pod", b""))

    assert refused.value.code == 415


@given(st.binary(max_size=60))
def test_protobuf_of_anything(data: bytes) -> None:
    """Any bytes are an object or a refusal, never another error."""
    for body in (data, protobuf.MAGIC + data, _body("Secret", data)):
        with contextlib.suppress(ApiError):
            assert isinstance(protobuf.decode(body), dict)


def test_builtin_schemas_are_those_of_the_client() -> None:
    """The committed schemas are what the generator makes of the installed client."""
    path = Path(__file__).with_name("generate_builtin_schemas.py")
    spec = importlib.util.spec_from_file_location("generate_builtin_schemas", path)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)

    assert generator.TARGET.read_text() == generator.generate()


def test_every_merge_key_is_a_field() -> None:
    """Each list that merges by a key has entries with that field."""
    for name, schema in builtin.type_schemas().items():
        for field, child in schema["properties"].items():
            key = child.get("x-kubernetes-patch-merge-key")
            if key and "properties" in child["items"]:
                assert key in child["items"]["properties"], f"{name}.{field}"
