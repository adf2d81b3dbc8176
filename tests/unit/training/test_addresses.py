"""Addresses on both kinds of cluster."""

import json
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.addresses import (
    NAMESPACE_VARIABLE,
    PORT_VARIABLE_PREFIX,
    SERVICE_MAP_VARIABLE,
)
from edl_workflows.training import addresses


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a pod in the embedded cluster."""
    path = tmp_path / "services.json"
    path.write_text(json.dumps({"ps-0.jobs.svc:2222": "127.0.0.1:31000"}))
    monkeypatch.setenv(SERVICE_MAP_VARIABLE, str(path))
    monkeypatch.setenv(NAMESPACE_VARIABLE, "jobs")
    monkeypatch.setenv(f"{PORT_VARIABLE_PREFIX}2222", "31000")
    return path


@pytest.mark.usefixtures("embedded")
def test_many_addresses_cost_one_read_of_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """The members of a large job resolve the addresses of all others; each reads and checks the map once."""
    reads: list[Path] = []
    read = Path.read_bytes

    def note_read(path: Path) -> bytes:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", note_read)
    resolved = addresses.resolve_all(["ps-0:2222", "http://ps-0:2222/v1", "ps-1:2222", "ps-0"] * 32)
    assert resolved == ["127.0.0.1:31000", "http://127.0.0.1:31000/v1", "ps-1:2222", "ps-0"] * 32
    assert len(reads) == 1


@pytest.mark.parametrize("address", ["ps-0:2222", "ps-0.default.svc:2222", "http://x/", "", "ps-0"])
def test_a_real_cluster_changes_nothing(address: str) -> None:
    """Without the map of services, addresses do not change, and a server listens on its own port on all
    interfaces."""
    assert addresses.resolve(address) == address
    assert addresses.listen(2222) == ("0.0.0.0", 2222)


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ps-0:2222", "127.0.0.1:31000"),
        ("ps-0.jobs:2222", "127.0.0.1:31000"),
        ("ps-0.jobs.svc:2222", "127.0.0.1:31000"),
        ("http://ps-0.jobs.svc.cluster.local:2222/v1", "http://127.0.0.1:31000/v1"),
        ("ps-0.other.svc:2222", "ps-0.other.svc:2222"),
        ("ps-0:2223", "ps-0:2223"),
        ("10.0.0.1:2222", "10.0.0.1:2222"),
    ],
)
def test_the_embedded_cluster_resolves_by_its_map(address: str, expected: str) -> None:
    """Every spelling of a known name resolves; unknown ones stay."""
    assert addresses.resolve(address) == expected


def test_a_change_of_the_map_is_seen(embedded: Path) -> None:
    """The map of services is read at each call, so that changes are seen."""
    embedded.write_text(json.dumps({"ps-0.jobs.svc:2222": "127.0.0.1:31007"}))

    assert addresses.resolve("ps-0:2222") == "127.0.0.1:31007"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not a map of addresses (the document: Invalid JSON"),
        (b"{", "not a map of addresses (the document: Invalid JSON"),
        (b"\xff", "not a map of addresses (the document: Invalid JSON"),
        (b"[]", "not a map of addresses (the document: Input should be an object"),
        (b'{"ps-0.jobs.svc:2222": 31000}', "(ps-0.jobs.svc:2222: Input should be a valid string"),
        (None, "can't be read: Is a directory"),
    ],
)
def test_a_broken_map_is_named(embedded: Path, text: bytes | None, says: str) -> None:
    """A broken map of services is one error that names the variable, the file and what is wrong."""
    embedded.unlink()
    if text is None:
        embedded.mkdir()
    else:
        embedded.write_bytes(text)
    with pytest.raises(InvalidError) as refused:
        addresses.resolve("ps-0:2222")
    assert str(refused.value).startswith(f"{SERVICE_MAP_VARIABLE}={embedded}: ")
    assert says in str(refused.value)


@pytest.mark.usefixtures("embedded")
def test_a_broken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for an invalid port names the variable and its value."""
    monkeypatch.setenv(f"{PORT_VARIABLE_PREFIX}2222", "many")
    with pytest.raises(InvalidError, match="EDL_PORT_2222=many: not a port"):
        addresses.listen(2222)


@pytest.mark.usefixtures("embedded")
def test_listening() -> None:
    """A server binds the host port assigned to its port. A port that the pod does not declare is an error
    that says what to do."""
    assert addresses.listen(2222) == ("127.0.0.1", 31000)
    with pytest.raises(InvalidError, match="containerPort"):
        addresses.listen(9)
