"""One watch for all waiters."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.exceptions import EdlError, NotFoundError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource, RequestRecord
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, ELASTIC_JOBS, Scope
from edl_workflows.runtime.kube.shared import LoopWaiting, SharedWatches, States, ThreadWaiting, run_blocking
from edl_workflows.testing import ApiServerProcess
from tests.unit.runtime.kube.support import Answer, ScriptedApi, eventually
from tests.unit.runtime.kube.test_client import config_map

pytestmark = pytest.mark.slow


def _value(state: dict[str, Any] | None) -> str | None:
    return None if state is None else state["data"]["x"]


async def _next(states: States) -> str | None:
    return _value(await states.next(10))


def test_state_at_once_then_changes(cluster: Cluster) -> None:
    """A waiter gets the object as it is, then each change, and None when it is deleted."""
    watches = SharedWatches()
    client.create(cluster, config_map("a", x="1"))

    async def wait() -> list[str | None]:
        source, scope = ClusterSource.of(cluster), Scope(CONFIG_MAPS, cluster.namespace)
        with watches.states(source, scope, "a", LoopWaiting()) as states:
            seen = [await _next(states)]
            await asyncio.to_thread(client.patch, cluster, CONFIG_MAPS, "a", {"data": {"x": "2"}})
            seen.append(await _next(states))
            await asyncio.to_thread(client.delete, cluster, CONFIG_MAPS, "a")
            return [*seen, await _next(states)]

    assert asyncio.run(wait()) == ["1", "2", None]


def test_absent_object_is_none_first(cluster: Cluster) -> None:
    """A waiter for an object that does not exist yet gets None first, and the object when it is created."""
    watches = SharedWatches()

    with watches.states(
        ClusterSource.of(cluster), Scope(CONFIG_MAPS, cluster.namespace), "a", ThreadWaiting()
    ) as states:
        assert run_blocking(states.next(10)) is None
        client.create(cluster, config_map("a", x="1"))
        assert _value(run_blocking(states.next(10))) == "1"
        with pytest.raises(TimeoutError):
            run_blocking(states.next(0.05))


def test_a_thousand_waiters_cost_one(cluster: Cluster) -> None:
    """A thousand waiters make one list and one watch; the last to go ends it."""
    watches = SharedWatches()
    requests: list[RequestRecord] = []
    source = ClusterSource.of(cluster.observed_by(requests.append))
    scope = Scope(CONFIG_MAPS, cluster.namespace)

    async def wait(index: int, ready: asyncio.Semaphore) -> str | None:
        with watches.states(source, scope, f"a-{index % 10}", LoopWaiting()) as states:
            state = await _next(states)
            ready.release()
            while state is None:
                state = await _next(states)
            return state

    async def run() -> list[str | None]:
        ready = asyncio.Semaphore(0)
        waiters = [asyncio.create_task(wait(index, ready)) for index in range(1000)]
        for _ in waiters:
            await ready.acquire()
        for index in range(10):
            await asyncio.to_thread(client.create, cluster, config_map(f"a-{index}", x=str(index)))
        return await asyncio.gather(*waiters)

    results = asyncio.run(run())

    assert [str(index % 10) for index in range(1000)] == results
    assert [r.verb for r in requests] == ["list", "watch"]
    assert len(watches) == 0


def test_clusters_and_namespaces_are_apart(cluster: Cluster) -> None:
    """Waiters share a watch only if cluster key, kind and namespace are equal."""
    watches = SharedWatches()
    here = Scope(CONFIG_MAPS, cluster.namespace)
    one, same, other = (ClusterSource(key, lambda: cluster) for key in ("k", "k", "j"))

    with (
        watches.states(one, here, "a", ThreadWaiting()),
        watches.states(same, here, "b", ThreadWaiting()),
        watches.states(one, Scope(CONFIG_MAPS, "default"), "a", ThreadWaiting()),
        watches.states(other, here, "a", ThreadWaiting()),
    ):
        assert len(watches) == 3
    assert len(watches) == 0


def test_refusal_reaches_the_waiters(cluster: Cluster) -> None:
    """If the server does not have the kind, the wait ends with an error."""
    watches = SharedWatches()

    with (
        watches.states(
            ClusterSource.of(cluster), Scope(ELASTIC_JOBS, cluster.namespace), "a", ThreadWaiting()
        ) as states,
        pytest.raises(NotFoundError, match="elasticjobs"),
    ):
        run_blocking(states.next(20))


def test_a_moment_of_refusals_is_waited_through(scripted: ScriptedApi) -> None:
    """If a role is replaced while somebody waits, the wait does not fail, provided that its watch had
    begun."""
    refused = Answer(
        code=403, body={"kind": "Status", "code": 403, "message": "no role", "reason": "Forbidden"}
    )
    listed = Answer(body={"metadata": {"resourceVersion": "1"}, "items": []})
    made = config_map("a") | {
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "2"}
    }
    event = Answer(body={"type": "ADDED", "object": made})
    scripted.answers = [listed, *[refused] * 4, event]
    watches = SharedWatches()
    source = ClusterSource.of(scripted.cluster())

    with watches.states(source, Scope(CONFIG_MAPS, "ns"), "a", ThreadWaiting()) as states:
        assert run_blocking(states.next(20)) is None
        assert run_blocking(states.next(20)) == made


def test_failed_connect_reaches_the_waiters(cluster: Cluster) -> None:
    """Any exception of the source's `connect` ends the wait with an error that contains it."""

    def connect() -> Cluster:
        raise LookupError("the connection id 'k8s' isn't defined")

    watches = SharedWatches()
    with (
        watches.states(
            ClusterSource("key", connect), Scope(CONFIG_MAPS, "ns"), "a", ThreadWaiting()
        ) as states,
        pytest.raises(EdlError, match="'k8s' isn't defined"),
    ):
        run_blocking(states.next(20))


@pytest.mark.slow
def test_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    """While the server is down, waiters continue to wait and can tell why; afterwards they get what has
    changed."""
    server = ApiServerProcess(tmp_path)
    server.start()
    watches = SharedWatches()
    try:
        cluster = server.cluster()
        client.create(cluster, config_map("a", x="1"))
        with watches.states(
            ClusterSource.of(cluster), Scope(CONFIG_MAPS, "default"), "a", ThreadWaiting()
        ) as states:
            assert _value(run_blocking(states.next(10))) == "1"
            server.kill()
            eventually(lambda: states.last_error is not None)
            server.start()
            client.patch(cluster, CONFIG_MAPS, "a", {"data": {"x": "2"}})

            assert _value(run_blocking(states.next(20))) == "2"
            assert states.last_error is None
    finally:
        server.kill()
