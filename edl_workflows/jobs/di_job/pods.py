"""A DIJob's replicas, the manifests of their pods, and of the service that names them."""

import base64
import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edl_workflows.jobs import manifests, names
from edl_workflows.jobs.actions import InstallationSettings
from edl_workflows.jobs.di_job import elastic
from edl_workflows.jobs.di_job.model import DIJob, Task, main_container

_PREFIX = "diengine"
JOB_LABEL = f"{_PREFIX}/job"
OPERATOR_LABEL = f"{_PREFIX}/operator"
OPERATOR = "di-operator"
POD_LABEL = f"{_PREFIX}/pod"
TASK_TYPE_LABEL = f"{_PREFIX}/task-type"
TASK_LABEL = f"{_PREFIX}/task-name"
INDEX_LABEL = f"{_PREFIX}/task-rank"
"""An annotation upstream; here a label and an annotation."""
GENERATION_LABEL = f"{_PREFIX}/generation"
"""The job's ``status.generation`` when the pod was made."""
RESTARTS_LABEL = f"{_PREFIX}/restarts"
"""The job's ``status.restarts`` when the pod was made."""
PLACE_LABEL = f"{names.GROUP}/place"
"""`Replica.place` of the replica that the pod was made for."""

RANK = f"{_PREFIX}/rank"
"""Annotation of a pod: its replica's `Replica.rank`."""
TOKEN_DIGEST_LABEL = f"{_PREFIX}/token-digest"
"""Of the token's Secret: `token_digest` of what is in it. The controller keeps no Secret's data."""
TOKEN_VARIABLE = "DI_TOKEN"  # noqa: S105 - the variable's name, not a secret

PORT = 22270
PORT_NAME = "di-port"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LONGEST_VALUE = 128 * 1024 - 64
"""Characters of an environment variable that Linux hands to a program, name included."""


@dataclass(frozen=True)
class DIReplica:
    """One replica of a job.

    Attributes:
        index: in its task, from 0.
        rank: in the job, from 0.
        node: where it is to run, of a preemptible job; else "".
        name: its pod's, and its host's.
        place: hash of what its pod must be made anew for: another rank, node or template, and of a
            preemptible job other replicas.
    """

    task: Task
    index: int
    rank: int
    node: str
    name: str
    place: str


def list_replicas(job: DIJob) -> Iterator[DIReplica]:
    """All replicas that the job is to have now, task by task, the elastic one last."""
    sizes = elastic.task_sizes(job)
    total = sum(count for _, count in sizes)
    ranks = _ranks(job, sizes)
    for task, count in sizes:
        made_of = _digest([task.template, job.spec.volumes, total if job.spec.preemptible else 0])
        for index in range(count):
            rank = ranks[task.title, index]
            node = job.status.allocation[rank] if job.spec.preemptible else ""
            name = f"{job.metadata.name}-{task.title}-{index}"
            yield DIReplica(task, index, rank, node, name, _digest([made_of, rank, node]))


def _ranks(job: DIJob, sizes: Sequence[tuple[Task, int]]) -> dict[tuple[str, int], int]:
    """The rank of each replica, by task and index: the one that it has, if that is not beyond the end, else
    the lowest free one. So other replicas of one task move hardly anybody of another. An allocation gives
    nodes to ranks in the order of tasks, and all of a preemptible job's pods are made anew with it."""
    wanted = [(task.title, index) for task, count in sizes for index in range(count)]
    if job.spec.preemptible:
        return {one: rank for rank, one in enumerate(wanted)}
    known = {
        (title, index): rank
        for title, counts in job.status.replica_statuses.items()
        for index, rank in enumerate(counts.ranks)
    }
    kept = {one: known[one] for one in wanted if known.get(one, len(wanted)) < len(wanted)}
    free = iter(sorted(set(range(len(wanted))) - set(kept.values())))
    return {one: kept[one] if one in kept else next(free) for one in wanted}


def service_name(job: DIJob) -> str:
    """Name of the service below which the pods have their names, as upstream's."""
    return f"di-{job.metadata.name}"


def job_labels(job: DIJob) -> dict[str, str]:
    """What all pods of a job carry, and its service selects."""
    return {JOB_LABEL: job.metadata.name, OPERATOR_LABEL: OPERATOR}


def pod_selector(job: DIJob, task: Task) -> str:
    """Selects the pods of a task."""
    return f"{JOB_LABEL}={job.metadata.name},{TASK_LABEL}={task.title}"


def make_service(job: DIJob) -> dict[str, Any]:
    """The headless service below which the pods have their names."""
    return manifests.headless_service(service_name(job), job, job_labels(job), [(PORT_NAME, PORT)])


def token_secret_name(job: DIJob) -> str:
    """Name of the Secret (key ``token``) with which the job's programs show the DI server whose they are."""
    return f"{job.metadata.name}-di-token"


def make_token_secret(job: DIJob, token: str) -> dict[str, Any]:
    """The job's token."""
    labels = job_labels(job) | {TOKEN_DIGEST_LABEL: token_digest(token)}
    return manifests.owned_manifest("v1", "Secret", token_secret_name(job), job, labels) | {
        "type": "Opaque",
        "immutable": True,  # running pods hold the old value for ever
        "data": {names.TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def token_digest(token: str) -> str:
    """What may be known of a token: it can be compared with it, but not used for it. It has a label value's
    length.
    """
    return hashlib.sha224(token.encode()).hexdigest()


class DIPodMaker:
    """Makes the pods of a job.

    Args:
        job: the job.
        settings: the installation's.
    """

    def __init__(self, job: DIJob, settings: InstallationSettings) -> None:
        self._job = job
        self._settings = settings
        self._replicas = list(list_replicas(job))
        self._nodes = self._node_lists()

    def pod(self, replica: DIReplica) -> dict[str, Any]:
        """A replica's pod: its task's template, with its place in the job put over it."""
        job, task = self._job, replica.task
        made = manifests.pod_from_template(replica.name, job, task.template, self._labels(replica))
        made["metadata"].setdefault("annotations", {}).update(self._annotations(replica))
        spec = made["spec"]
        spec |= {
            "restartPolicy": "Never",
            "hostname": replica.name,
            "subdomain": service_name(job),
        }
        if volumes := [*(spec.get("volumes") or ()), *copy.deepcopy(job.spec.volumes)]:
            spec["volumes"] = volumes
        if priority := self._settings.di_priority_classes.get(job.spec.priority):
            spec.setdefault("priorityClassName", priority)
        self._connect(replica, spec)
        if replica.node:
            self._place(replica, spec)
        return made

    def _labels(self, replica: DIReplica) -> dict[str, str]:
        status = self._job.status
        return job_labels(self._job) | {
            POD_LABEL: replica.name,
            TASK_TYPE_LABEL: str(replica.task.type),
            TASK_LABEL: replica.task.title,
            INDEX_LABEL: str(replica.index),
            GENERATION_LABEL: str(status.generation),
            RESTARTS_LABEL: str(status.restarts),
            PLACE_LABEL: replica.place,
        }

    def _annotations(self, replica: DIReplica) -> dict[str, str]:
        return {
            f"{_PREFIX}/replicas": str(len(self._replicas)),
            RANK: str(replica.rank),
            f"{_PREFIX}/task-rank": str(replica.index),
            f"{_PREFIX}/node": replica.node,
        }

    def _connect(self, replica: DIReplica, spec: dict[str, Any]) -> None:
        """The port on which others find it, and who and where the others are, in every container."""
        main = main_container(spec)
        ports = list(main.get("ports") or ())
        if all(port.get("name") != PORT_NAME and port.get("containerPort") != PORT for port in ports):
            main["ports"] = [*ports, {"name": PORT_NAME, "containerPort": PORT}]
        values: list[dict[str, Any]] = [
            {"name": name, "value": value} for name, value in self._variables(replica).items()
        ]
        for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
            container["env"] = manifests.merge_env(container.get("env") or (), [*values, self._token()])

    def _variables(self, replica: DIReplica) -> dict[str, str]:
        job = self._job
        return {
            "DI_JOB_ID": f"{job.metadata.namespace or 'default'}.{job.metadata.name}",
            "DI_JOB_GENERATION": str(job.status.generation),
            "DI_SERVER_URL": self._settings.di_server_url,
            "DI_RANK": str(replica.rank),
            "DI_TASK_RANK": str(replica.index),
            **self._nodes,
        }

    def _token(self) -> dict[str, Any]:
        key = {"name": token_secret_name(self._job), "key": names.TOKEN_KEY}
        return {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": key}}

    def _node_lists(self) -> dict[str, str]:
        """``DI_NODES`` and ``DI_<TASK>_NODES``: names of hosts, without ports, in the order of ``DI_RANK``
        and of ``DI_TASK_RANK``."""
        namespace = self._job.metadata.namespace or "default"
        zone = f"{service_name(self._job)}.{namespace}.{self._settings.di_service_domain}"
        by_rank = sorted(self._replicas, key=lambda replica: replica.rank)
        hosts = {"DI_NODES": [f"{replica.name}.{zone}" for replica in by_rank]}
        for replica in self._replicas:
            task = replica.task.title.upper().replace("-", "_")
            hosts.setdefault(f"DI_{task}_NODES", []).append(f"{replica.name}.{zone}")
        lists = {variable: ",".join(found) for variable, found in hosts.items()}
        # A program could not be started with a longer one; the DI server tells of the others.
        return {name: value for name, value in lists.items() if len(name) + len(value) < LONGEST_VALUE}

    def _place(self, replica: DIReplica, spec: dict[str, Any]) -> None:
        """On the node that the allocation names, and of the size that it was counted with.

        By the scheduler, which keeps taints and resources; ``nodeName``, as upstream sets it, goes round it.
        By the node's name, as a DaemonSet's pods: its label of a hostname may be another.
        """
        spec["affinity"] = _on_node(spec.get("affinity") or {}, replica.node)
        main = main_container(spec)
        resources = main.get("resources") or {}
        if missing := elastic.missing_requests(resources, self._settings.di_job_resources):
            main["resources"] = resources | {"requests": (resources.get("requests") or {}) | missing}


def _on_node(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """A template's affinity, and this node: a pod goes where one of the terms holds, so each asks for it."""
    own = affinity.get("nodeAffinity") or {}
    terms = (own.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    name = {"key": "metadata.name", "operator": "In", "values": [node]}
    asked = [term | {"matchFields": [*(term.get("matchFields") or ()), name]} for term in terms]
    return {**affinity, "nodeAffinity": own | {_REQUIRED: {"nodeSelectorTerms": asked}}}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]
