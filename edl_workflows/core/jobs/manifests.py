"""Functions that read and make manifests, for the ``pods`` and ``reconcile`` modules of every kind. Pure."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from edl_workflows.core.jobs.actions import Deletion, Manifest
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import Resource
from edl_workflows.core.protocol.reported_text import inert_text

_MAX_LAST_WORDS = 1024
"""Most characters of `last_words`, which a job's message quotes."""
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
_MISPLACED = ("OutOf", "NodeAffinity", "TopologyAffinityError")
"""Prefixes of the kubelet's reason if it rejects a pod because the node is full, or is not as the scheduler
knew it.
"""


def owner_reference(owner: Resource, *, controller: bool = True) -> dict[str, Any]:
    """The owner reference by which the garbage collector deletes an object once `owner` is gone."""
    reference = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
    }
    return reference | {"controller": True, "blockOwnerDeletion": True} if controller else reference


def owned_manifest(
    api_version: str, kind: str, name: str, owner: Resource, labels: Mapping[str, str]
) -> dict[str, Any]:
    """A child's manifest without spec: in the owner's namespace, with an owner reference."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.metadata.namespace or "default",
            "labels": dict(labels),
            "ownerReferences": [owner_reference(owner)],
        },
    }


def elastic_job_child(
    api_version: str, kind: str, name: str, owner: Resource, labels: Mapping[str, str]
) -> dict[str, Any]:
    """As `owned_manifest`, for an ElasticJob: with labels for the job's name and for upstream's ``app``."""
    own = {names.APP_LABEL: names.APP_VALUE, names.JOB_LABEL: owner.metadata.name}
    return owned_manifest(api_version, kind, name, owner, own | dict(labels))


def pod_from_template(
    name: str, owner: Resource, template: Mapping[str, Any], labels: Mapping[str, str]
) -> dict[str, Any]:
    """A copy of a user's pod template as a pod of `owner`. These labels win over the template's."""
    template = copy.deepcopy(dict(template))
    metadata = template.get("metadata") or {}
    made = owned_manifest("v1", "Pod", name, owner, (metadata.get("labels") or {}) | dict(labels))
    if annotations := metadata.get("annotations"):
        made["metadata"]["annotations"] = annotations
    return made | {"spec": template["spec"]}


def headless_service(
    name: str,
    owner: Resource,
    labels: Mapping[str, str],
    ports: Iterable[tuple[str, int]],
    selector: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The service that gives pods their DNS names, also before they are Ready: replicas wait for each other.

    Args:
        name: the service's.
        owner: the job.
        labels: the service's.
        ports: names and numbers.
        selector: the labels of the pods; None: `labels`.
    """
    made = owned_manifest("v1", "Service", name, owner, labels)
    made["spec"] = {
        "clusterIP": "None",
        "selector": dict(labels if selector is None else selector),
        "ports": [{"name": n, "port": p, "targetPort": p, "protocol": "TCP"} for n, p in ports],
        "publishNotReadyAddresses": True,
    }
    return made


def merge_env(
    template: Iterable[Mapping[str, Any]], over: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A container's variables: those of `over` first, then the template's others. A ``$(VAR)`` expands only
    variables defined before it, so a user's variable may refer to any of ours."""
    merged = {variable["name"]: dict(variable) for variable in over}
    own = [dict(variable) for variable in template if variable["name"] not in merged]
    return [*merged.values(), *own]


def overlay_template(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """One pod template merged over another: fields of `above` win, labels and annotations of both stay, and
    the first containers of both are merged."""
    metadata = dict(below.get("metadata") or {})
    for key, values in (above.get("metadata") or {}).items():
        metadata[key] = {**(metadata.get(key) or {}), **values} if isinstance(values, Mapping) else values
    lower, upper = below.get("spec") or {}, above.get("spec") or {}
    spec = {**lower, **upper}
    if containers := (upper.get("containers") or lower.get("containers")):
        first, *remaining_containers = containers
        inherited: Mapping[str, Any] = next(iter(lower.get("containers") or ()), {})
        env = merge_env(inherited.get("env") or (), first.get("env") or ())
        spec["containers"] = [{**inherited, **first} | ({"env": env} if env else {}), *remaining_containers]
    return {"metadata": metadata, "spec": spec}


def name_of(manifest: Manifest) -> str:
    """``metadata.name``."""
    return str(manifest["metadata"]["name"])


def get_label(manifest: Manifest, key: str) -> str:
    """Value of a label; "" without it."""
    return str((manifest["metadata"].get("labels") or {}).get(key, ""))


def index_of(manifest: Manifest) -> int:
    """The index in the labels of a node's or master's pod; -1 if there is none."""
    text = get_label(manifest, names.REPLICA_INDEX_LABEL)
    return int(text) if text.isdecimal() else -1


def owner_of(manifest: Manifest) -> Mapping[str, Any]:
    """The controlling owner; empty without one."""
    references: Iterable[Mapping[str, Any]] = manifest["metadata"].get("ownerReferences") or ()
    return next((r for r in references if r.get("controller")), {})


def owned_by(manifest: Manifest, owner: Resource) -> bool:
    """Whether `owner` itself, and not an earlier object of the same name, controls this object."""
    return owner_of(manifest).get("uid") == owner.metadata.uid


def belongs_to_earlier(manifest: Manifest, owner: Resource) -> bool:
    """Whether an object belongs to an earlier owner of the same kind and name, so that the garbage collector
    will delete it soon.
    """
    controller = owner_of(manifest)
    same = (controller.get("kind"), controller.get("name")) == (owner.kind, owner.metadata.name)
    return same and controller.get("uid") != owner.metadata.uid


def describe_conflict(manifest: Manifest, owner: Resource) -> str:
    """The message about a foreign object that has a name `owner` needs."""
    controller = owner_of(manifest)
    whose = f"{controller.get('kind')} {controller.get('name')}" if controller else "no controller"
    kind, namespace = manifest["kind"], owner.metadata.namespace or "default"
    return (
        f"{kind} {namespace}/{name_of(manifest)} exists and belongs to {whose}, but {owner.kind} {owner.key} "
        f"needs the name: delete or rename that {kind}, or give the {owner.kind} another name"
    )


def is_terminating(manifest: Manifest) -> bool:
    """Whether its deletion was asked for."""
    return bool(manifest["metadata"].get("deletionTimestamp"))


def delete_object(manifest: Manifest) -> Deletion:
    """Delete exactly this object."""
    return Deletion(
        manifest["apiVersion"], manifest["kind"], name_of(manifest), str(manifest["metadata"].get("uid", ""))
    )


def pod_phase(pod: Manifest) -> str:
    """``status.phase``; Pending for a pod without a status."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def has_ended(pod: Manifest) -> bool:
    """Whether all its containers ended for good."""
    return pod_phase(pod) in ("Succeeded", "Failed")


def is_ready(pod: Manifest) -> bool:
    """Whether it runs and its Ready condition holds."""
    return pod_phase(pod) == "Running" and any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in _conditions(pod)
    )


def container_statuses(pod: Manifest) -> Sequence[Mapping[str, Any]]:
    """``status.containerStatuses``."""
    statuses: Sequence[Mapping[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or ()
    return statuses


def terminated_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """``state.terminated`` of a container's status; empty if the container has not ended."""
    state: Mapping[str, Any] = (status.get("state") or {}).get("terminated") or {}
    return state


def exit_of_first_container(pod: Manifest) -> Mapping[str, Any]:
    """``state.terminated`` of the pod's first container; empty if it did not end or never ran."""
    containers = pod["spec"].get("containers") or [{}]
    for status in container_statuses(pod):
        if status.get("name") == containers[0].get("name"):
            return terminated_state(status)
    return {}


def marked_disrupted(pod: Manifest) -> bool:
    """Whether a failed pod's status shows an external cause: it was evicted or preempted, or its machine was
    lost.
    """
    if (pod.get("status") or {}).get("reason") in _DISRUPTIONS:
        return True
    return any(c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in _conditions(pod))


def was_disrupted(pod: Manifest) -> bool:
    """As `marked_disrupted`, or it ended without any exit code."""
    return marked_disrupted(pod) or "exitCode" not in exit_of_first_container(pod)


def refused_by_node(pod: Manifest) -> bool:
    """Whether a pod failed before any of its containers started, with a message that says why: the node can't
    run it, and neither could another. False if only the choice of the node was wrong (`_MISPLACED`).
    """
    status = pod.get("status") or {}
    if str(status.get("reason") or "").startswith(_MISPLACED):
        return False
    started = status.get("containerStatuses") or status.get("initContainerStatuses")
    return bool(status.get("message")) and not started and not marked_disrupted(pod)


def last_words(pod: Manifest) -> str:
    """Why a pod ended, to be appended to a sentence: the last line of its first container's termination
    message, or of the pod's own message if there is none; "" if both are missing."""
    message = exit_of_first_container(pod).get("message") or (pod.get("status") or {}).get("message") or ""
    lines = str(message).strip().splitlines()
    return f": {inert_text(lines[-1][:_MAX_LAST_WORDS])[:_MAX_LAST_WORDS]}" if lines else ""


def why_pending(pod: Manifest) -> str:
    """What keeps a pending pod from running, according to the scheduler or the node; "" if neither gives a
    reason."""
    for condition in _conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason', 'Unschedulable')}: {condition.get('message', '')}"
    for status in container_statuses(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}"
    return ""


def parse_time(text: str | None) -> datetime | None:
    """A time as the API writes it."""
    return datetime.fromisoformat(text) if text else None


def _conditions(pod: Manifest) -> Iterable[Mapping[str, Any]]:
    return (pod.get("status") or {}).get("conditions") or ()
