"""Bodies that are not JSON, and the schemas of the built-in kinds."""

import contextlib
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.local.apiserver import protobuf
from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.objects import builtin


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


def _number(number: int, value: int) -> bytes:
    return bytes([number << 3, value])


def test_protobuf_zero_values() -> None:
    """Go sends zeros of plain fields and of set pointers. Only the set pointers appear in JSON."""
    probe = _field(1, _field(1, _field(1, b"true"))) + _number(2, 0) + _number(3, 0) + _number(6, 5)
    security = _number(4, 0) + _number(5, 0)
    container = (
        _field(1, b"a") + _field(10, probe) + _field(15, security) + bytes([0x80, 0x01, 0]) + _field(5, b"")
    )
    volume = _field(1, b"v") + _field(2, _field(2, b""))
    spec = _field(1, volume) + _field(2, container) + _field(3, b"") + _number(4, 0) + _number(11, 0)
    decoded = protobuf.decode(_body("Pod", _field(1, _field(8, b"")) + _field(2, spec)))

    assert decoded["spec"] == {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [
            {
                "name": "a",
                "livenessProbe": {"exec": {"command": ["true"]}, "failureThreshold": 5},
                "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
            }
        ],
        "terminationGracePeriodSeconds": 0,
    }
    assert "metadata" not in decoded


def test_protobuf_times_and_quantities() -> None:
    """A Lease keeps microseconds and a count of zero, and a resource request is read as a quantity."""
    spec = _field(1, b"me") + _field(4, _number(1, 100) + bytes([2 << 3, 0x88, 0x27])) + _number(5, 0)
    lease = protobuf.decode(_body("Lease", _field(2, spec)))
    requests = _field(2, _field(1, b"cpu") + _field(2, _field(1, b"100m")))
    pod = protobuf.decode(_body("Pod", _field(2, _field(2, _field(8, requests)))))

    assert lease["spec"] == {
        "holderIdentity": "me",
        "renewTime": "1970-01-01T00:01:40.000005Z",
        "leaseTransitions": 0,
    }
    assert pod["spec"]["containers"] == [{"resources": {"requests": {"cpu": "100m"}}}]


def test_protobuf_of_an_unknown_kind() -> None:
    """A protobuf body of an unsupported kind gets 415, which says what to send."""
    with pytest.raises(ApiError, match="send application/json") as refused:
        protobuf.decode(_body("Deployment", b""))

    assert refused.value.code == 415


@given(st.binary(max_size=60))
def test_protobuf_of_anything(data: bytes) -> None:
    """Any bytes are decoded to an object or rejected, and raise no other error."""
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
