"""The addresses of a job's replicas, and the patch that scales a job. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.core.jobs.di_job import elastic, pods
from edl_workflows.core.jobs.di_job.model import MAIN_CONTAINER, DIJob
from edl_workflows.core.kubernetes import pod_state

Pod = Mapping[str, Any]


@dataclass(frozen=True)
class ReplicaAddresses:
    """The addresses of a job's replicas.

    Attributes:
        by_rank: ``host:port`` of each desired replica, by global rank; "" if it has no address.
        missing: number of replicas that have not completed and have no address.
    """

    by_rank: tuple[str, ...]
    missing: int


def replica_addresses(job: DIJob, job_pods: Iterable[Pod]) -> ReplicaAddresses:
    """The addresses of a job's replicas.

    Args:
        job: the job.
        job_pods: its pods, as returned by `reduce_pod`.
    """
    address_by_rank = {_rank(pod): _address(pod) for pod in job_pods if _current(pod, job)}
    replicas = sorted(pods.list_replicas(job), key=lambda replica: replica.rank)
    done = {title: counts.completed for title, counts in job.status.replica_statuses.items()}
    to_run = [replica.index not in done.get(replica.task.title, ()) for replica in replicas]
    by_rank = [
        address_by_rank.get(replica.rank, "") if runs else ""
        for replica, runs in zip(replicas, to_run, strict=True)
    ]
    missing = sum(runs and not address for runs, address in zip(to_run, by_rank, strict=True))
    return ReplicaAddresses(tuple(by_rank), 0 if job.finished else missing)


def resize_patch(job: DIJob, name: str | None, delta: int) -> dict[str, Any]:
    """The merge patch of a job's spec that adds replicas to a task, or removes them.

    Args:
        job: its current state.
        name: the task; None: the only one, otherwise the collector.
        delta: replicas to add; negative to remove.

    Raises:
        ConflictError: the job has ended, or its allocator decides on its replicas.
        ManifestError: the job has no such task, or the task's bounds forbid it; the message names them.
    """
    if job.finished:
        raise ConflictError(f"DIJob {job.key} is {job.status.phase}; it does not change any more")
    task = elastic.elastic_task(job.spec, name)
    if job.spec.preemptible and task is elastic.tasks_by_rank(job.spec)[-1] and task.max_replicas is not None:
        low, high = elastic.task_bounds(task)
        raise ConflictError(
            f"DIJob {job.key} is preemptible, and its allocator gives task {task.title!r} between "
            f"minReplicas {low} and "
            f"maxReplicas {high} as there is room; change these"
        )
    spec = elastic.resize_patch(job, task.title, task.replicas + delta)
    changed = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    DIJob.parse(changed | {"spec": changed["spec"] | spec})
    return spec


def reduce_pod(pod: Pod) -> dict[str, Any]:
    """The parts of a pod that the cache keeps: its identity, address, port and phase."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    head = {
        key: metadata[key]
        for key in (
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "labels",
            "annotations",
            "deletionTimestamp",
        )
        if key in metadata
    }
    return {
        "apiVersion": pod.get("apiVersion"),
        "kind": pod.get("kind"),
        "metadata": head,
        "port": _port(spec),
        "ip": status.get("podIP") or "",
        "phase": pod_state.pod_phase(pod),
    }


def job_of(pod: Pod) -> str:
    """The name of the job that a pod belongs to, by its label."""
    return str((pod["metadata"].get("labels") or {}).get(pods.JOB_LABEL, ""))


def _port(spec: Mapping[str, Any]) -> int:
    """The port on which the replica listens: di-port of the container di-container, else of any container,
    else upstream's."""
    containers = sorted(spec.get("containers") or (), key=lambda c: c.get("name") != MAIN_CONTAINER)
    named = [
        port["containerPort"]
        for container in containers
        for port in container.get("ports") or ()
        if port.get("name") == pods.PORT_NAME
    ]
    return int(named[0]) if named else pods.PORT


def _current(pod: Pod, job: DIJob) -> bool:
    """Whether a pod belongs to the job's current generation and may run."""
    labels = pod["metadata"].get("labels") or {}
    return (
        "deletionTimestamp" not in pod["metadata"]
        and labels.get(pods.GENERATION_LABEL) == str(job.status.generation)
        and pod["phase"] in ("Pending", "Running")
    )


def _rank(pod: Pod) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(pods.RANK, "")
    return int(text) if text.isdecimal() else -1


def _address(pod: Pod) -> str:
    ip = pod["ip"]
    if not ip:
        return ""
    return f"[{ip}]:{pod['port']}" if ":" in ip else f"{ip}:{pod['port']}"
