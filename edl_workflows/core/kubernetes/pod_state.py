"""How a pod of a job is, according to the container that runs the job's program. Pure.

Other containers of the pod (a proxy that an injector added, a log shipper) neither keep a job running nor
lend it their exit codes. So everything that asks whether a pod runs, has ended or has failed asks here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Pod = Mapping[str, Any]
Status = Mapping[str, Any]

OWN_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation with the name of the container that runs the job's program. Each pod that a job gets has it,
since injectors add containers before and behind it; ``kubectl logs`` reads it, too."""
_UPSTREAM_NAMES = ("tensorflow", "pytorch", "di-container")
"""What the kinds' own operators call the container. Pods that they made have no annotation."""
_FINAL = ("Succeeded", "Failed")
_DISRUPTIONS = frozenset(
    {
        "Evicted",
        "NodeLost",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "Preempting",
        "UnexpectedAdmissionError",
    }
)
"""``status.reason`` of pods whose end had an external cause."""


def mark_own_container(pod: dict[str, Any], container: str) -> None:
    """Write into a new pod's manifest which container is the job's own."""
    metadata = pod["metadata"]
    metadata["annotations"] = (metadata.get("annotations") or {}) | {OWN_CONTAINER: container}


def own_container(pod: Pod) -> str:
    """Name of the container that runs the job's program; "" for a pod without containers."""
    containers = [str(c.get("name")) for c in (pod.get("spec") or {}).get("containers") or ()]
    marked = ((pod.get("metadata") or {}).get("annotations") or {}).get(OWN_CONTAINER)
    known = next((name for name in (marked, *_UPSTREAM_NAMES) if name in containers), None)
    return known or next(iter(containers), "")


def own_status(pod: Pod) -> Status:
    """The status of the job's own container; empty before the kubelet has reported it."""
    name = own_container(pod)
    return next((status for status in container_statuses(pod) if status.get("name") == name), {})


def own_end(pod: Pod) -> Status:
    """``state.terminated`` of the job's own container; empty if it does not stand still or never ran."""
    return terminated_state(own_status(pod))


def pod_phase(pod: Pod) -> str:
    """The phase that the pod would have without its other containers; Pending for a pod without a status.

    The end of the job's own container is the pod's, unless the kubelet starts the container again. Its exit
    code decides, unless the pod was ended from outside.
    """
    phase = _reported_phase(pod)
    if not any(map(terminated_state, container_statuses(pod))):
        return phase
    code = own_end(pod).get("exitCode")
    if code is None or (phase not in _FINAL and _starts_again(pod, int(code))):
        return phase
    if phase == "Failed" and ((pod.get("status") or {}).get("reason") or marked_disrupted(pod)):
        return phase
    return "Failed" if code else "Succeeded"


def has_ended(pod: Pod) -> bool:
    """Whether the job's own container has ended for good, or the whole pod has."""
    return pod_phase(pod) in _FINAL


def has_stopped(pod: Pod) -> bool:
    """Whether all containers of the pod have ended for good, so that it holds no resources."""
    return _reported_phase(pod) in _FINAL


def outliving_containers(pod: Pod) -> list[str]:
    """The containers that still run although the job's own has ended for good: only the pod's deletion ends
    them. Sidecars among the init containers are not listed, since the kubelet ends them."""
    if has_stopped(pod) or not has_ended(pod):
        return []
    return [str(status.get("name")) for status in container_statuses(pod) if not terminated_state(status)]


def must_be_stopped(pod: Pod) -> bool:
    """Whether only its deletion ends a pod: its program, or another container, still runs."""
    return not has_ended(pod) or bool(outliving_containers(pod))


def describe_outliving(pod: Pod) -> str:
    """Why a pod whose program has ended is deleted; "" if no other container of it runs."""
    running = outliving_containers(pod)
    if not running:
        return ""
    code, names = own_end(pod).get("exitCode"), " and ".join(running)
    verb = "still runs" if len(running) == 1 else "still run"
    return (
        f"pod {pod['metadata']['name']} is deleted: its container {own_container(pod)}, which runs the job's "
        f"program, has ended with exit code {code}, and {names} {verb}"
    )


def is_ready(pod: Pod) -> bool:
    """Whether it runs and its Ready condition holds."""
    return pod_phase(pod) == "Running" and condition_of(pod, "Ready").get("status") == "True"


def condition_of(pod: Pod, condition_type: str) -> Status:
    """The pod's condition of this type; empty without it."""
    return next((c for c in conditions(pod) if c.get("type") == condition_type), {})


def conditions(pod: Pod) -> Iterable[Status]:
    """``status.conditions``."""
    return (pod.get("status") or {}).get("conditions") or ()


def container_statuses(pod: Pod) -> Sequence[Status]:
    """``status.containerStatuses``."""
    statuses: Sequence[Status] = (pod.get("status") or {}).get("containerStatuses") or ()
    return statuses


def init_statuses(pod: Pod) -> list[Status]:
    """``status.initContainerStatuses`` without sidecars: of those that end before the others start."""
    inits = (pod.get("spec") or {}).get("initContainers") or ()
    sidecars = {container.get("name") for container in inits if container.get("restartPolicy") == "Always"}
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return [status for status in statuses if status.get("name") not in sidecars]


def terminated_state(status: Status) -> Status:
    """``state.terminated`` of a container's status; empty if the container has not ended."""
    state: Status = (status.get("state") or {}).get("terminated") or {}
    return state


def marked_disrupted(pod: Pod) -> bool:
    """Whether a failed pod's status shows an external cause: it was evicted or preempted, or its machine was
    lost.
    """
    if (pod.get("status") or {}).get("reason") in _DISRUPTIONS:
        return True
    return condition_of(pod, "DisruptionTarget").get("status") == "True"


def _reported_phase(pod: Pod) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _starts_again(pod: Pod, code: int) -> bool:
    """Whether the kubelet starts the job's own container again after this exit code."""
    spec, name = pod["spec"], own_container(pod)  # has containers, since one of them has a status
    container: Mapping[str, Any] = next((c for c in spec["containers"] if c.get("name") == name), {})
    if container.get("restartPolicyRules"):
        return True  # they may; the kubelet gives up the pod where they don't
    policy = container.get("restartPolicy") or spec.get("restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and code != 0)
