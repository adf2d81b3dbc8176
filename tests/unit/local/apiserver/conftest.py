"""A store, a registry and a server in a temporary folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.local.apiserver.server import ApiServer, open_server
from edl_workflows.local.apiserver.storage.store import ObjectStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    """A store with a short history."""
    made = ObjectStore(tmp_path / "state.db", history=8)
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """A server with one administrator, whose token is ``secret``."""
    made = open_server(tmp_path / "server", {"secret": "admin"})
    yield made
    made.close()
