"""The ring of the tests' collective programs forms, whoever is started again meanwhile."""

import random
import socket
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.testing import free_port
from edl_workflows.training.collective.regrouping import Place
from tests.e2e.ring import LOOK_SECONDS, Ring

pytestmark = pytest.mark.timeout(600)


def _joined(places: Sequence[Place]) -> list[float]:
    """What the members agree on when all are there; 0.0 of one whose ring was broken, which tries again."""
    sums = [0.0] * len(places)
    formed: list[Ring] = []
    chance = random.Random(1)

    def join(rank: int) -> None:
        while not sums[rank]:
            ring = Ring(places[rank])
            formed.append(ring)
            try:
                sums[rank] = float(ring.all_reduce(np.array([float(rank + 1)]))[0])
            except UnavailableError:
                ring.close()  # so that its neighbours hear of it
                # In step they would break each other's rings for ever.
                time.sleep(chance.uniform(0, 2 * LOOK_SECONDS))

    threads = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in range(1, len(places))]
    for thread in threads:
        thread.start()
    host, _, port = places[0].addresses[0].rpartition(":")
    # The first process of rank 0 dies before it joins.
    with socket.create_server((host, int(port))) as server:
        server.accept()[0].close()
    join(0)
    for thread in threads:
        thread.join(240)
    for ring in formed:
        ring.close()
    return sums


@pytest.mark.parametrize("size", [2, 3])
def test_a_member_that_is_started_again_is_found(size: int) -> None:
    """The others connect to the second process of a member without waiting for the first one."""
    addresses = tuple(f"127.0.0.1:{free_port()}" for _ in range(size))
    expected = size * (size + 1) / 2
    assert _joined([Place(1, rank, addresses) for rank in range(size)]) == [expected] * size
