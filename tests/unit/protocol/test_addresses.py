"""Addresses on both kinds of cluster."""

import json
from pathlib import Path

import pytest

from edl_workflows.exceptions import InvalidError
from edl_workflows.protocol import addresses


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a pod in the embedded cluster."""
    path = tmp_path / "services.json"
    path.write_text(json.dumps({"ps-0.jobs.svc:2222": "127.0.0.1:31000"}))
    monkeypatch.setenv(addresses.SERVICE_MAP_VARIABLE, str(path))
    monkeypatch.setenv(addresses.NAMESPACE_VARIABLE, "jobs")
    monkeypatch.setenv(f"{addresses.PORT_VARIABLE_PREFIX}2222", "31000")
    return path


@pytest.mark.parametrize("address", ["ps-0:2222", "ps-0.default.svc:2222", "http://x/", "", "ps-0"])
def test_a_real_cluster_changes_nothing(address: str) -> None:
    """Without the map, every address stays as it is, and a server listens on its own port on all interfaces."""
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
    """The map is read at each call."""
    embedded.write_text(json.dumps({"ps-0.jobs.svc:2222": "127.0.0.1:31007"}))

    assert addresses.resolve("ps-0:2222") == "127.0.0.1:31007"


@pytest.mark.usefixtures("embedded")
def test_listening() -> None:
    """A server binds the port that it was assigned; one that the pod never declared is an error that says what to do."""
    assert addresses.listen(2222) == ("127.0.0.1", 31000)
    with pytest.raises(InvalidError, match="containerPort"):
        addresses.listen(9)
