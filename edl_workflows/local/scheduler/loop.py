"""Carries out the plan: binds the pods that fit, and reports why the others don't."""

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import structlog

from edl_workflows.local.apiserver.client import LocalClient
from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.metadata import timestamp
from edl_workflows.local.apiserver.store import Object
from edl_workflows.local.events import EventRecorder
from edl_workflows.local.mirror import Mirror
from edl_workflows.local.pods import Pod
from edl_workflows.local.scheduler.plan import SchedulerNode, plan

_log = structlog.get_logger(__name__)
_GATHER_SECONDS = 0.005
"""How long to wait for more pods before a decision. Pods are often created in groups, and their priorities
only matter in a common decision."""
_REST = 4
"""Pause after a decision, as a multiple of its duration. A decision about 10,000 waiting pods takes 0.2 s of
processor time, which other components need too."""
_FEW = 200
"""Number of pods up to which a decision takes only milliseconds, so that it can run on the event loop."""
_PORTION_SECONDS = 0.02
"""How long decisions are carried out before other components get a turn."""


class Scheduler:
    """Decides whenever a pod or the node has changed.

    Args:
        client: the API.
        pods: all pods, kept current.
        node: returns the node; None if it is not registered.
        events: records events.
    """

    def __init__(
        self,
        client: LocalClient,
        pods: Mirror[Pod],
        node: Callable[[], SchedulerNode | None],
        events: EventRecorder,
    ) -> None:
        self._client = client
        self._pods = pods
        self._node = node
        self._events = events
        self._wake = asyncio.Event()
        pods.listen(lambda _key: self._wake.set())

    def touch(self) -> None:
        """Decide again, because the node has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Decide and carry out decisions until cancelled."""
        took = 0.0
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(_GATHER_SECONDS, _REST * took))
            self._wake.clear()
            began = time.monotonic()
            await self.step()
            took = time.monotonic() - began

    async def step(self) -> None:
        """Decide for all waiting pods and carry the decision out. If there are many, the decision is made in
        a worker thread."""
        node = self._node()
        if node is None:
            return  # the node registers again, which wakes this loop
        pods = list(self._pods.objects.values())
        decision = plan(node, pods) if len(pods) <= _FEW else await asyncio.to_thread(plan, node, pods)
        gates = "Scheduling is blocked due to non-empty scheduling gates"
        steps = itertools.chain(
            (functools.partial(self._bind, pod, node.name) for pod in decision.bind),
            (functools.partial(self._refuse, pod, "Unschedulable", why) for pod, why in decision.refused),
            (functools.partial(self._refuse, pod, "SchedulingGated", gates) for pod in decision.gated),
        )
        began = time.monotonic()
        for step in steps:
            with _pod_may_change(step.args[0]):
                step()
            if time.monotonic() - began > _PORTION_SECONDS:
                await asyncio.sleep(0)
                began = time.monotonic()

    def _bind(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        self._client.bind(meta.name, meta.namespace, node)
        self._pods.take(self._client.get("pods", meta.name, meta.namespace))
        self._events.normal(pod, "Scheduled", f"Successfully assigned {pod.key} to {node}")

    def _refuse(self, pod: Pod, reason: str, message: str) -> None:
        conditions = pod.status.get("conditions") or []
        old: Object = next((one for one in conditions if one["type"] == "PodScheduled"), {})
        if (old.get("reason"), old.get("message")) == (reason, message):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": old.get("lastTransitionTime") or timestamp(datetime.now(UTC)),
        }
        others = [one for one in conditions if one["type"] != "PodScheduled"]
        meta, patch = pod.metadata, {"status": {"conditions": [*others, condition]}}
        changed = self._client.patch("pods", meta.name, patch, meta.namespace, subresource="status")
        self._pods.take(changed)
        if reason == "Unschedulable":
            self._events.warning(pod, "FailedScheduling", message)


@contextlib.contextmanager
def _pod_may_change(pod: Pod) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        # The pod was deleted or bound meanwhile. The watch reports that, and the next decision takes it into
        # account.
        _log.info("pod changed while it was scheduled", pod=pod.key, error=str(error))
    except Exception:  # noqa: BLE001 - an error of one pod must not stop the scheduling of others
        _log.exception("pod not scheduled", pod=pod.key)
