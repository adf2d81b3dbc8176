"""All servers, started once for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security import servers
from tests.security.servers import Server


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """All servers by name."""
    with servers.every(Path(tmp_path_factory.mktemp("attacked"))) as found:
        yield found
