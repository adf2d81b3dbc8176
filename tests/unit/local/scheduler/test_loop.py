"""The scheduler leaves the event loop to others."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.local.apiserver.server import ApiServer, open_server
from edl_workflows.local.events import EventRecorder
from edl_workflows.local.mirror import Mirror
from edl_workflows.local.pods import Pod
from edl_workflows.local.scheduler import loop
from edl_workflows.local.scheduler.loop import Scheduler
from tests.unit.local.scheduler.test_decision import make_node, make_pod

WAITING = 10_000
WAITING_WITH_REASON = 30
YOUNGER = 10**9
"""Seconds, than the two that exist."""
MOST_CPU_SECONDS = 0.1
"""Of one callback."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server without HTTP."""
    made = open_server(tmp_path, {})
    yield made
    made.close()


@pytest.mark.slow
def test_a_decision_over_thousands_of_pods(server: ApiServer, longest: list[float]) -> None:
    """The scheduler binds the pods that fit without blocking the event loop for more than a tenth of a
    second. Pods that were deleted in the meantime are skipped."""
    pods = Mirror(server.client, "pods", Pod.model_validate)
    pods.objects.update({f"/w{one}": make_pod(f"w{one}", "1", age=-YOUNGER - one) for one in range(WAITING)})
    for name in ("w0", "w1"):
        manifest = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "m", "image": "x"}]},
        }
        server.client.create("pods", manifest)
        pods.objects[f"default/{name}"] = Pod.model_validate(server.client.get("pods", name, "default"))
        del pods.objects[f"/{name}"]
    scheduler = Scheduler(
        server.client, pods, lambda: make_node("64", pods=64), EventRecorder(server.client, "s", "")
    )

    async def whole() -> None:
        task = asyncio.create_task(scheduler.run())
        scheduler.touch()
        async for _, pod in server.client.watch("pods", since=server.client.revision):
            if pod["spec"].get("nodeName"):
                break
        task.cancel()

    longest.clear()
    asyncio.run(whole())
    assert longest[0] < MOST_CPU_SECONDS


def create(server: ApiServer, pods: Mirror[Pod], name: str, cpu: str) -> None:
    """A pod that the scheduler learns of."""
    main = {"name": "m", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    manifest = {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [main]}}
    pods.record_write(server.client.create("pods", manifest))


def test_a_pod_that_fits_does_not_wait_for_the_reasons_of_others(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is created while many others get their reasons is bound before all of them have one. In the
    end all have one."""
    monkeypatch.setattr(loop, "_REPORTING_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_REST", 0)
    pods = Mirror(server.client, "pods", Pod.model_validate)
    for number in range(WAITING_WITH_REASON):
        create(server, pods, f"large-{number}", "3")
    scheduler = Scheduler(server.client, pods, lambda: make_node("2"), EventRecorder(server.client, "s", ""))
    told: set[str] = set()
    told_before = WAITING_WITH_REASON

    async def whole() -> None:
        nonlocal told_before
        task = asyncio.create_task(scheduler.run())
        scheduler.touch()
        async for _, pod in server.client.watch("pods", since=server.client.revision):
            if pod["status"].get("conditions"):
                told.add(pod["metadata"]["name"])
            if "default/small" not in pods.objects:
                create(server, pods, "small", "1")
            if pod["metadata"]["name"] == "small" and pod["spec"].get("nodeName"):
                told_before = min(told_before, len(told))
            if len(told - {"small"}) == WAITING_WITH_REASON:
                break
        task.cancel()

    asyncio.run(asyncio.wait_for(whole(), 240))
    assert told_before < WAITING_WITH_REASON
