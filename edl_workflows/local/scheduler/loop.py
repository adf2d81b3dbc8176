"""Carries out the decision: binds the pods that fit, and reports why the others don't."""

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

import structlog

from edl_workflows.local.apiserver.client import LocalClient
from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.objects.metadata import format_time
from edl_workflows.local.apiserver.storage.revisions import Object
from edl_workflows.local.events import EventRecorder
from edl_workflows.local.mirror import Mirror
from edl_workflows.local.pods import Pod
from edl_workflows.local.scheduler.decision import SchedulerNode, decide_scheduling

_log = structlog.get_logger(__name__)
_GATHER_SECONDS = 0.005
"""How long to wait for more pods before a decision. Pods are often created in groups, and their priorities
only matter in a common decision."""
_REST = 4
"""Time between two decisions, as a multiple of the time that one took. A decision about 10,000 waiting pods
takes 0.2 s of processor time, which other components need too."""
_FEW = 200
"""Number of pods up to which a decision takes only milliseconds, so that it can run on the event loop."""
_PORTION_SECONDS = 0.02
"""How long the loop carries out decisions before it lets other components run."""
_REPORTING_SECONDS = 0.5
"""How long the loop may write the reasons of waiting pods before it decides again. A pod created meanwhile
may fit and must not wait until the reasons of thousands of others are written."""
_GATED = "Scheduling is blocked due to non-empty scheduling gates"
_NO_REASON = ("", "")
_Reason = tuple[Pod, str, str]
"""A pod that is not scheduled, with reason and message for its condition."""


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
        rested = 0.0
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(_GATHER_SECONDS, rested - time.monotonic()))
            self._wake.clear()
            node = self._node()
            if node is None:
                continue  # the node registers again, which wakes this loop
            began = time.monotonic()
            bind, reasons = await self._decide(node)
            rest = _REST * (time.monotonic() - began)
            rested = time.monotonic() + rest
            await _in_portions(functools.partial(self._bind, pod, node.name) for pod in bind)
            writes = (functools.partial(self._refuse, *reason) for reason in reasons)
            if not await _in_portions(writes, max(_REPORTING_SECONDS, rest)):
                self.touch()

    async def _decide(self, node: SchedulerNode) -> tuple[Sequence[Pod], list[_Reason]]:
        """Decide for all waiting pods; in a worker thread if there are many."""
        pods = list(self._pods.objects.values())
        return _decision(node, pods) if len(pods) <= _FEW else await asyncio.to_thread(_decision, node, pods)

    def _bind(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        self._client.bind(meta.name, meta.namespace, node)
        self._pods.record_write(self._client.get("pods", meta.name, meta.namespace))
        self._events.normal(pod, "Scheduled", f"Successfully assigned {pod.key} to {node}")

    def _refuse(self, pod: Pod, reason: str, message: str) -> None:
        conditions = pod.status.get("conditions") or []
        old: Object = next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": old.get("lastTransitionTime") or format_time(datetime.now(UTC)),
        }
        other_conditions = [condition for condition in conditions if condition["type"] != "PodScheduled"]
        meta, patch = pod.metadata, {"status": {"conditions": [*other_conditions, condition]}}
        changed = self._client.patch("pods", meta.name, patch, meta.namespace, subresource="status")
        self._pods.record_write(changed)
        if reason == "Unschedulable":
            self._events.warning(pod, "FailedScheduling", message)


async def _in_portions(steps: Iterable[functools.partial[None]], seconds: float = math.inf) -> bool:
    """Run the steps, and let other components run in between. The first argument of each step is its pod.

    Returns:
        Whether all steps were run before the time was up. At least one is always run.
    """
    first = began = time.monotonic()
    for step in steps:
        with _pod_may_change(step.args[0]):
            step()
        now = time.monotonic()
        if now - first > seconds:
            return False
        if now - began > _PORTION_SECONDS:
            await asyncio.sleep(0)
            began = time.monotonic()
    return True


def _decision(node: SchedulerNode, pods: list[Pod]) -> tuple[Sequence[Pod], list[_Reason]]:
    """The pods to bind, and the reasons to write. Reasons of pods that have none yet come first."""
    decision = decide_scheduling(node, pods)
    reasons: list[_Reason] = [
        *((pod, "Unschedulable", message) for pod, message in decision.refused),
        *((pod, "SchedulingGated", _GATED) for pod in decision.gated),
    ]
    first: list[_Reason] = []
    changed: list[_Reason] = []
    for reason in reasons:
        old = _reason_of(reason[0])
        if old != reason[1:]:
            (first if old == _NO_REASON else changed).append(reason)
    return decision.bind, first + changed


def _reason_of(pod: Pod) -> tuple[str, str]:
    """Reason and message of a pod that was not scheduled."""
    for condition in pod.status.get("conditions") or []:
        if condition["type"] == "PodScheduled":
            return condition.get("reason", ""), condition.get("message", "")
    return _NO_REASON


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
