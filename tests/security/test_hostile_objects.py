"""Objects that no honest user writes, on an embedded cluster with its controller and neighbours whose work
goes on."""

import time

import pytest

from tests.security import hostile_objects
from tests.security.servers import Server
from tests.security.tally import Tally

pytestmark = pytest.mark.slow
SEED = 1


def test_an_object_is_nobody_elses_matter(attacked: dict[str, Server]) -> None:
    """A hostile object is rejected, runs, or says why it does not. The cluster survives, another job's master
    keeps running, a new pod runs, and the object can be deleted."""
    server, tally = attacked["embedded"], Tally("objects")

    hostile_objects.attack(server, tally, SEED, until=time.monotonic())

    assert tally.requests >= hostile_objects.BATCH
    assert not tally.errors, "\n".join(tally.errors)
    assert server.lives, server.log.read_text()[-2000:]
