"""One embedded cluster for all tests of pods, and a measure of what blocks an event loop."""

import gc
import time
from asyncio import Handle
from collections.abc import Iterator

import pytest

from tests.local_cluster import LocalCluster, cluster
from tests.unit.local.support import Pods


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The cluster."""
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def pods(local: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """Pods of a namespace of the test's own."""
    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.resources import NAMESPACES

    name = f"test-{abs(hash(request.node.nodeid)) % 10**10}"
    admin = local.client()
    client.create(admin, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield Pods(admin.in_namespace(name))
    client.delete(admin, NAMESPACES, name)


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The processor time of the longest callback of event loops since the list was last emptied. Only the
    loop's own thread counts, not what other processes take.

    Nor do passes of the garbage collector count. They happen in whatever callback or thread is the next to
    allocate: on a busy machine, one over a large definition takes a tenth of a second.
    """
    seen: list[float] = []
    run = Handle._run

    def timed(handle: Handle) -> None:
        began = time.thread_time()
        run(handle)
        seen[:] = [max([*seen, time.thread_time() - began])]

    monkeypatch.setattr(Handle, "_run", timed)
    gc.disable()
    yield seen
    gc.enable()
