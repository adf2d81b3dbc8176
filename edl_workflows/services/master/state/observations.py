"""What the cluster shows, entered into the state: the job's pods and ScalePlans, each time in full.

`edl_workflows.services.master.kubernetes` reads manifests into these values.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.services.master.state.job import JobState, MachineLoss, RolloutRequest
from edl_workflows.services.master.state.nodes import pod_requests, relaunch
from edl_workflows.services.master.state.nodes.fault_steps import end_node
from edl_workflows.services.master.state.nodes.pod_requests import PodRequest
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode, NodeStatus, PodState

UNSEEN_GRACE = 30.0
"""Seconds after a plan was carried out in which its pods may be missing, because pods and plans are watched
separately.
"""


class PodPhase(StrEnum):
    """`status.phase` of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class ObservedPod:
    """A pod of the job.

    Attributes:
        phase, exit_code, reason, message: of its own container; the other containers don't count.
        cause: what ended it, where its exit code and reason alone do not say it.
        outlived: whether its own container has ended, and another one still runs.
        loss: what it shows of the loss of its machine; None if nothing.
    """

    type: str
    id: int
    phase: PodPhase
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    outlived: bool = False
    loss: MachineLoss | None = None
    cause: ExitReason | None = None


def observe_pods(state: JobState, seen: Iterable[ObservedPod], now: float) -> None:
    """Enter all pods of the job."""
    by_ref = {(pod.type, pod.id): pod for pod in seen}
    state.volatile.losses = {
        f"{pod.type}-{pod.id}": pod.loss for pod in by_ref.values() if pod.loss is not None
    }
    for node in state.nodes:
        pod = by_ref.get((node.type, node.id))
        if pod is None:
            _absent(state, node, now)
        else:
            _present(state, node, pod)


def observe_pod_requests(state: JobState, phases: dict[str, ScalePlanPhase | None], now: float) -> None:
    """Enter the phases of the job's auto ScalePlans, by name."""
    for request in state.pod_plans.open:
        name = request.name(state.settings.name)
        phase = phases.get(name)
        if phase is ScalePlanPhase.SUCCEEDED:
            state.pod_plans = pod_requests.close_request(state.pod_plans, request.number)
            for node in state.nodes.find_all(request.create):
                state.nodes.change(node, status=NodeStatus.PENDING, since=now)
        elif phase is ScalePlanPhase.FAILED or (request.seen and name not in phases):
            _withdraw_request(state, request, now)
        elif name in phases and not request.seen:
            state.pod_plans = pod_requests.mark_seen(state.pod_plans, request.number)


def _withdraw_request(state: JobState, request: PodRequest, now: float) -> None:
    """Record that a request failed or was deleted; its pods are requested again later."""
    state.pod_plans = pod_requests.refuse_request(state.pod_plans, request.number, now)
    for node in state.nodes.find_all(request.create):
        state.nodes.change(node, asked=node.status is not NodeStatus.INITIAL)
    for node in state.nodes.find_all(request.remove):
        state.nodes.change(node, removal_asked=False)


def observe_plans(state: JobState, seen: Iterable[RolloutRequest]) -> None:
    """Enter the job's manual ScalePlans, in the order in which they are to be carried out."""
    state.volatile.plans_seen = tuple(seen)


def note_recorded_plan(state: JobState, uid: str, serial: int) -> None:
    """Record that the status of a plan has been written up to `serial`."""
    if state.plan is not None and state.plan.uid == uid:
        state.volatile.recorded_serial = max(state.volatile.recorded_serial, serial)


def _present(state: JobState, node: JobNode, pod: ObservedPod) -> None:
    ended = pod.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
    where = PodState.OUTLIVED if pod.outlived else PodState.ENDED if ended else PodState.THERE
    if node.pod is not where or not node.asked:
        state.nodes.change(node, pod=where, asked=True)
    if pod.phase is PodPhase.SUCCEEDED:
        end_node(state, node, NodeStatus.SUCCEEDED, ExitReason.SUCCEEDED, 0)
    elif pod.phase is PodPhase.FAILED:
        code = pod.exit_code or None  # 0 does not explain a failure
        reason = pod.cause or relaunch.exit_reason(code, pod.reason)
        end_node(state, node, NodeStatus.FAILED, reason, pod.exit_code, pod.message or pod.reason)
    elif pod.phase is PodPhase.RUNNING:
        state.nodes.change(node, status=NodeStatus.RUNNING)
    else:
        state.nodes.change(node, status=NodeStatus.PENDING)


def _absent(state: JobState, node: JobNode, now: float) -> None:
    if node.status is NodeStatus.INITIAL:
        return  # its pod was not created yet
    if node.pod is PodState.UNSEEN and now - node.since < UNSEEN_GRACE:
        return
    if node.pod is not PodState.GONE:
        state.nodes.change(node, pod=PodState.GONE)
    end_node(state, node, NodeStatus.DELETED, ExitReason.KILLED, None, "its pod was deleted")
