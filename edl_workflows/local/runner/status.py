"""Computes a pod's ``status`` as kubelet writes it: a pure function of the pod and its containers' states."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from edl_workflows.local.apiserver.objects.metadata import format_time
from edl_workflows.local.pods import Container, Pod
from edl_workflows.local.runner.attempts import AttemptEnd
from edl_workflows.local.runner.lifecycle import ContainerState, PodFailure, PodSituation, back_off_of

MAX_MESSAGES_BYTES = 12 * 1024
"""Total length of the termination messages in a status, as in kubelet, which divides it equally among all
containers of the pod."""
OWN_CONDITIONS = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
Status = dict[str, Any]


@dataclass(frozen=True)
class PodAddresses:
    """IP addresses of the pod and of the node, and the prefix of ``containerID``."""

    pod_ip: str
    host_ip: str


@dataclass(frozen=True)
class PodVerdict:
    """The decision about the whole pod: why it fails, and whether none of its containers will run again."""

    failure: PodFailure | None = None
    finished: bool = False


def build_status(
    situation: PodSituation, place: PodAddresses, verdict: PodVerdict, before: Mapping[str, Any]
) -> Status:
    """The complete status.

    Args:
        situation: pod, container states, time.
        place: addresses and prefix.
        verdict: the decision about the whole pod.
        before: the status in the API. Conditions of other components and transition times are kept.
    """
    pod = situation.pod
    phase = _phase(situation, verdict)
    status: Status = {
        **before,
        "phase": phase,
        "startTime": format_time(situation.started_at),
        "hostIP": place.host_ip,
        "hostIPs": [{"ip": place.host_ip}],
        "podIP": place.pod_ip,
        "podIPs": [{"ip": place.pod_ip}],
    }
    if verdict.failure is not None and not any(state.starts for state in situation.states.values()):
        # The pod was rejected before any container started. As in kubelet, its status has only the reason.
        return status | _doomed(verdict.failure) | {"conditions": _conditions(situation, phase, before)}
    status["containerStatuses"] = [_container(container, situation) for container in pod.spec.containers]
    if pod.spec.init_containers:
        status["initContainerStatuses"] = [
            _container(container, situation, init=True) for container in pod.spec.init_containers
        ]
    if verdict.failure is not None:
        status |= _doomed(verdict.failure)
    status["conditions"] = _conditions(situation, phase, before)
    return status


def _doomed(failure: PodFailure) -> Status:
    return {"reason": failure.reason, "message": failure.message}


def _phase(situation: PodSituation, verdict: PodVerdict) -> str:
    spec = situation.pod.spec
    if situation.pod.finished:
        return situation.pod.phase
    states = [situation.state(container) for container in spec.containers]
    if verdict.finished and verdict.failure is not None:
        return "Failed"
    deleted_early = situation.pod.metadata.deletion_timestamp is not None and not all(
        state.ended for state in states
    )
    if verdict.finished and not deleted_early:
        return (
            "Succeeded"
            if all(state.ended is not None and state.ended.code == 0 for state in states)
            else "Failed"
        )
    return "Running" if any(state.starts for state in states) else "Pending"


def _container(container: Container, situation: PodSituation, *, init: bool = False) -> Status:
    state = situation.state(container)
    status: Status = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "restartCount": state.restarts,
        "ready": (state.ended is not None and state.ended.code == 0)
        if init
        else state.running and state.ready,
        "started": state.running and (init or state.started),
        "state": _state(container, state, situation),
        "lastState": {},
    }
    # If the container is shown as waiting, its last state is the latest end, otherwise the end before that.
    last = state.ended if "waiting" in status["state"] else state.previous
    if last is not None:
        status["lastState"] = {"terminated": _terminated_state(last, situation.pod)}
    if state.starts:
        status["containerID"] = f"edl://{situation.pod.metadata.uid}/{container.name}/{state.starts - 1}"
    return status


def _state(container: Container, state: ContainerState, situation: PodSituation) -> Status:
    if state.running and state.running_since is not None:
        return {"running": {"startedAt": format_time(state.running_since)}}
    if state.waiting is not None:
        return {"waiting": _reason(state.waiting.reason, state.waiting.message)}
    waits = dict(back_off_of(situation))
    if container.name in waits and not situation.pod.finished:
        pause = waits[container.name] - (state.ended.finished_at if state.ended else situation.now)
        return {"waiting": _reason("CrashLoopBackOff", _back_off(pause, container.name, situation.pod))}
    if state.ended is not None:
        return {"terminated": _terminated_state(state.ended, situation.pod)}
    ready = all(
        _succeeded(situation.state(init_container)) for init_container in situation.pod.spec.init_containers
    )
    return {"waiting": _reason("ContainerCreating" if ready else "PodInitializing", "")}


def _back_off(pause: timedelta, container: str, pod: Pod) -> str:
    seconds = round(pause.total_seconds())
    return f"back-off {seconds}s restarting failed container={container} pod={pod.metadata.name}"


def _reason(reason: str, message: str) -> Status:
    return {"reason": reason, "message": message} if message else {"reason": reason}


def _terminated_state(ended: AttemptEnd, pod: Pod) -> Status:
    most = MAX_MESSAGES_BYTES // (len(pod.spec.containers) + len(pod.spec.init_containers))
    message = ended.message.encode()[:most].decode(errors="ignore")
    return {
        "exitCode": ended.code,
        **_reason(ended.reason, message),
        "startedAt": format_time(ended.started_at),
        "finishedAt": format_time(ended.finished_at),
    }


def _succeeded(state: ContainerState) -> bool:
    return not state.running and state.ended is not None and state.ended.code == 0


def _conditions(situation: PodSituation, phase: str, before: Mapping[str, Any]) -> list[Status]:
    old = {condition["type"]: condition for condition in before.get("conditions") or []}
    verdicts = _verdicts(situation, phase, old)
    conditions = [condition for kind, condition in old.items() if kind not in OWN_CONDITIONS]
    for kind in OWN_CONDITIONS:
        condition = {"type": kind, "lastProbeTime": None, **verdicts[kind]}
        kept = old.get(kind, {})
        same = kept.get("status") == condition["status"]
        condition["lastTransitionTime"] = (kept.get("lastTransitionTime") if same else None) or format_time(
            situation.now
        )
        conditions.append(condition)
    return conditions


def _verdicts(situation: PodSituation, phase: str, old: Mapping[str, Status]) -> dict[str, Status]:
    spec = situation.pod.spec
    uninitialized = [
        container.name for container in spec.init_containers if not _succeeded(situation.state(container))
    ]
    unready = [container.name for container in spec.containers if not _is_ready(situation.state(container))]
    gates = [
        gate.condition_type
        for gate in spec.readiness_gates
        if old.get(gate.condition_type, {}).get("status") != "True"
    ]
    ended = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "")
    true: Status = {"status": "True"}
    containers_ready = _unready("ContainersNotReady", "containers with unready status", unready) or true
    ready = (
        containers_ready
        if unready
        else _unready("ReadinessGatesNotReady", "readiness gates not True", gates) or true
    )
    if ended:
        containers_ready = ready = {"status": "False", "reason": ended}
    initialized = (
        _unready("ContainersNotInitialized", "containers with incomplete status", uninitialized) or true
    )
    if phase == "Succeeded":
        initialized = {**true, "reason": "PodCompleted"}
    return {
        "PodScheduled": true,
        "PodReadyToStartContainers": {"status": "False" if ended else "True"},
        "Initialized": initialized,
        "ContainersReady": containers_ready,
        "Ready": ready,
    }


def _unready(reason: str, description: str, names: list[str]) -> Status | None:
    return (
        {"status": "False", "reason": reason, "message": f"{description}: [{' '.join(names)}]"}
        if names
        else None
    )


def _is_ready(state: ContainerState) -> bool:
    return state.running and state.ready
