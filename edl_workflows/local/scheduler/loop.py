"""Carries the plan out: binds the pods that fit, and explains why the others do not."""

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
"""Pods often come in groups; deciding for all of a group at once respects their priorities."""
_REST = 4
"""A decision over 10,000 waiting pods takes 0.2 s of the processor. Resting for so many times what the last
one took leaves it to others."""
_FEW = 200
"""Pods among which it takes milliseconds."""
_PORTION_SECONDS = 0.02
"""For which decisions are carried out before others have a turn."""


class Scheduler:
    """Decides whenever a pod or the node has changed.

    Args:
        client: the API.
        pods: all pods, kept current.
        node: reads the node; None: it is not registered.
        events: recorder.
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
        """Decide again: the node has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Decide and carry out until cancelled."""
        took = 0.0
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(_GATHER_SECONDS, _REST * took))
            self._wake.clear()
            began = time.monotonic()
            await self.step()
            took = time.monotonic() - began

    async def step(self) -> None:
        """One decision for all pods that wait. Of many pods it is made beside the event loop."""
        node = self._node()
        if node is None:
            return  # it registers again, which wakes this loop
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
        # It was deleted or bound by another meanwhile; the watch brings that, and the next decision counts
        # it.
        _log.info("pod changed while it was scheduled", pod=pod.key, error=str(error))
    except Exception:  # noqa: BLE001 - one pod must not end the scheduling of others
        _log.exception("pod not scheduled", pod=pod.key)
