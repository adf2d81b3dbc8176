"""Functions that read and make manifests, for the ``pods`` and ``reconcile`` modules of every kind. Pure."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from edl_workflows.core.jobs.actions import Deletion, Manifest
from edl_workflows.core.kubernetes import names, pod_state
from edl_workflows.core.kubernetes.objects import Resource
from edl_workflows.core.protocol.reported_text import find_cause, inert_text

_DEFAULT_SCHEDULER = "default-scheduler"
_MAX_LAST_WORDS = 1024
"""Most characters of `last_words`, which a job's message quotes."""
_MISPLACED = (
    "OutOf", "NodeAffinity", "NodeName", "NodePorts", "NodeUnschedulable", "TaintToleration",
    "TopologyAffinityError", "SMTAlignmentError", "InvalidNodeInfo",
)  # fmt: skip
"""Prefixes of the kubelet's reason if it rejects a pod because the node is full, is not as the scheduler knew
it, or does not know itself yet.
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
    report_init_output(template["spec"])
    return made | {"spec": template["spec"]}


def report_init_output(pod_spec: Manifest) -> None:
    """Let Kubernetes report the end of an init container's output, whose last line the job's message quotes
    if the init container fails."""
    for container in pod_spec.get("initContainers") or ():
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


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


def put_below_pod(template: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod with an installation's template below it, as `overlay_template`, and with the volumes and mounts
    of both."""
    if not template:
        return dict(pod)
    metadata = pod["metadata"]
    above = {
        "metadata": {key: metadata[key] for key in ("labels", "annotations") if key in metadata},
        "spec": pod["spec"],
    }
    merged = overlay_template(template, above)
    spec, lower = merged["spec"], template.get("spec") or {}
    _add_missing(spec, lower, "volumes", "name")
    if boxes := lower.get("containers"):
        spec["containers"][0] = dict(spec["containers"][0])
        _add_missing(spec["containers"][0], boxes[0], "volumeMounts", "mountPath")
    return {**pod, "metadata": {**metadata, **merged["metadata"]}, "spec": spec}


def _add_missing(target: dict[str, Any], source: Mapping[str, Any], field: str, key: str) -> None:
    """Add the entries of a list that the target's list does not have by their key."""
    own = list(target.get(field) or ())
    present = {entry[key] for entry in own}
    if entries := [*own, *(entry for entry in source.get(field) or () if entry[key] not in present)]:
        target[field] = entries


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


def waits_for_finalizer(pod: Manifest) -> bool:
    """Whether a deleted pod is kept by nothing but a finalizer: no kubelet has to confirm its end."""
    return is_terminating(pod) and pod["metadata"].get("deletionGracePeriodSeconds") == 0


def delete_object(manifest: Manifest) -> Deletion:
    """Delete exactly this object."""
    return Deletion(
        manifest["apiVersion"], manifest["kind"], name_of(manifest), str(manifest["metadata"].get("uid", ""))
    )


def delete_by_force(pod: Manifest) -> Deletion:
    """Delete exactly this pod without waiting for its kubelet."""
    return replace(delete_object(pod), grace_seconds=0)


def failed_init_container(pod: Manifest) -> dict[str, Any]:
    """``state.terminated`` of the init container whose failure ended a pod, with its ``name``; empty if none
    did: then the pod's containers have started, or it was ended otherwise.
    """
    begun = [status.get("state") or {} for status in pod_state.container_statuses(pod)]
    if pod_state.pod_phase(pod) != "Failed" or any("terminated" in s or "running" in s for s in begun):
        return {}
    for status in pod_state.init_statuses(pod):
        ended = pod_state.terminated_state(status)
        if ended.get("exitCode"):
            return {**ended, "name": status.get("name")}
    return {}


def init_container_at_work(pod: Manifest) -> str:
    """The init container that runs or has failed, while the job's own container has yet to start; "" if there
    is none."""
    own = pod_state.own_status(pod)
    if not {"running", "terminated"}.isdisjoint(own.get("state") or {}) or own.get("restartCount"):
        return ""
    for status in pod_state.init_statuses(pod):
        begun = "running" in (status.get("state") or {}) or status.get("lastState")
        if begun or pod_state.terminated_state(status).get("exitCode"):
            return str(status.get("name"))
    return ""


def was_disrupted(pod: Manifest) -> bool:
    """As `marked_disrupted`, or it ended without any exit code."""
    return pod_state.marked_disrupted(pod) or not (
        "exitCode" in pod_state.own_end(pod) or failed_init_container(pod)
    )


def refused_by_node(pod: Manifest) -> bool:
    """Whether a pod failed before any of its containers started, with a message that says why: the node can't
    run it, and neither could another. False if only the choice of the node was wrong (`_MISPLACED`).
    """
    status = pod.get("status") or {}
    if str(status.get("reason") or "").startswith(_MISPLACED):
        return False
    started = status.get("containerStatuses") or status.get("initContainerStatuses")
    return bool(status.get("message")) and not started and not pod_state.marked_disrupted(pod)


def last_words(pod: Manifest) -> str:
    """Why a pod ended, to be appended to a sentence: which init container failed, or the cause in its
    own container's termination message, or the last line of the pod's own message if there is none; "" if
    all are missing."""
    if init := failed_init_container(pod):
        how = f"init container {init['name']} ended with exit code {init['exitCode']}"
        return f": {how}{_cause(init.get('message'), init['exitCode'])}"
    end, status = pod_state.own_end(pod), pod.get("status") or {}
    return _cause(end.get("message"), end.get("exitCode")) or _cause(status.get("message"), None)


def _cause(message: object, code: int | None) -> str:
    cause = find_cause(str(message or ""), code)
    return f": {inert_text(cause[:_MAX_LAST_WORDS])[:_MAX_LAST_WORDS]}" if cause else ""


def why_pending(pod: Manifest) -> str:
    """What keeps a pod from running, according to the scheduler or the node; "" if neither gives a reason.

    A pod with a container in CrashLoopBackOff may be Running.
    """
    scheduled = pod_state.condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', 'Unschedulable')}: {scheduled.get('message', '')}"
    inits = (pod.get("status") or {}).get("initContainerStatuses") or ()  # a sidecar keeps a pod waiting, too
    named = [(f"init container {s.get('name')}: ", s) for s in inits]
    for where, status in (*named, *(("", status) for status in pod_state.container_statuses(pod))):
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{where}{waiting['reason']}: {waiting.get('message', '')}"
    scheduler = str((pod.get("spec") or {}).get("schedulerName") or _DEFAULT_SCHEDULER)
    if not scheduled and pod_state.pod_phase(pod) == "Pending" and scheduler != _DEFAULT_SCHEDULER:
        return f"no scheduler has looked at it yet; does {scheduler} run (schedulerName)?"
    return ""


def parse_time(text: str | None) -> datetime | None:
    """A time as the API writes it."""
    return datetime.fromisoformat(text) if text else None
