"""A DIJob's replicas, the manifests of their pods, and of the service that gives them DNS names."""

import base64
import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.di_job import elastic
from edl_workflows.core.jobs.di_job.model import DIJob, Task, main_container
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.pod_state import mark_own_container

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
"""`DIReplica.place` of the replica that the pod was made for."""

RANK = f"{_PREFIX}/rank"
"""Annotation of a pod: its replica's `DIReplica.rank`."""
TOKEN_DIGEST_LABEL = f"{_PREFIX}/token-digest"
"""Label of the token's Secret: the `token_digest` of its token. The controller's cache holds no Secret's
data."""
TOKEN_VARIABLE = "DI_TOKEN"  # noqa: S105 - the variable's name, not a secret

PORT = 22270
PORT_NAME = "di-port"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LONGEST_VALUE = 128 * 1024 - 64
"""Most characters of an environment variable, name included, that Linux passes to a program."""


@dataclass(frozen=True)
class DIReplica:
    """One replica of a job.

    Attributes:
        index: in its task, from 0.
        rank: in the job, from 0.
        node: the allocated node in a preemptible job; else "".
        name: its pod's, and its host's.
        place: hash of what its pod depends on: rank, node and template, and in a preemptible job the number
            of replicas. If it changes, the pod is replaced.
    """

    task: Task
    index: int
    rank: int
    node: str
    name: str
    place: str


def list_replicas(job: DIJob) -> Iterator[DIReplica]:
    """All replicas that the job wants now, task by task, the elastic task last."""
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
    """The rank of each replica, by task and index: its present rank if that is below the number of replicas,
    else the lowest free one. So resizing one task changes few ranks of the others. In a preemptible job the
    ranks follow the order of tasks, as the nodes of its allocation do; all pods are replaced with each
    allocation anyway."""
    replicas = [(task.title, index) for task, count in sizes for index in range(count)]
    if job.spec.preemptible:
        return {replica: rank for rank, replica in enumerate(replicas)}
    present_ranks = {
        (title, index): rank
        for title, counts in job.status.replica_statuses.items()
        for index, rank in enumerate(counts.ranks)
    }
    kept = {
        replica: present_ranks[replica]
        for replica in replicas
        if present_ranks.get(replica, len(replicas)) < len(replicas)
    }
    free = iter(sorted(set(range(len(replicas))) - set(kept.values())))
    return {replica: kept[replica] if replica in kept else next(free) for replica in replicas}


def service_name(job: DIJob) -> str:
    """Name of the service that gives the pods their DNS names; as upstream's."""
    return f"di-{job.metadata.name}"


def job_labels(job: DIJob) -> dict[str, str]:
    """Labels that all pods of a job carry, and by which its service selects them."""
    return {JOB_LABEL: job.metadata.name, OPERATOR_LABEL: OPERATOR}


def pod_selector(job: DIJob, task: Task) -> str:
    """Select the pods of a task."""
    return f"{JOB_LABEL}={job.metadata.name},{TASK_LABEL}={task.title}"


def make_service(job: DIJob) -> dict[str, Any]:
    """The headless service that gives the pods their DNS names."""
    return manifests.headless_service(service_name(job), job, job_labels(job), [(PORT_NAME, PORT)])


def token_secret_name(job: DIJob) -> str:
    """Name of the Secret (key ``token``) with which the job's programs prove to the DI server which job they
    belong to."""
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
    """The digest of a token, which may be public: it can be compared with the token's, but does not replace
    it. It fits into a label value.
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
        """A replica's pod: its task's template, overridden by what its place in the job requires."""
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
        mark_own_container(made, main_container(spec)["name"])
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
        """Add the port on which other replicas reach this one and, to every container, variables that tell
        its place in the job and the others' addresses."""
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
        lists = {variable: ",".join(host_names) for variable, host_names in hosts.items()}
        # A program could not be started with a longer variable; it can ask the DI server for its peers.
        return {name: value for name, value in lists.items() if len(name) + len(value) < LONGEST_VALUE}

    def _place(self, replica: DIReplica, spec: dict[str, Any]) -> None:
        """Place the pod on the node of the allocation, with the resources that the allocator counted.

        The pod goes through the scheduler, which respects taints and resources; ``nodeName``, which upstream
        sets, would bypass it. The affinity matches the node's name, as for a DaemonSet's pods, since its
        hostname label may differ.
        """
        spec["affinity"] = _on_node(spec.get("affinity") or {}, replica.node)
        main = main_container(spec)
        resources = main.get("resources") or {}
        if missing := elastic.missing_requests(resources, self._settings.di_job_resources):
            main["resources"] = resources | {"requests": (resources.get("requests") or {}) | missing}


def _on_node(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """A template's affinity, restricted to this node. A pod may go wherever any of the terms holds, so each
    term gets the restriction."""
    own = affinity.get("nodeAffinity") or {}
    terms = (own.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    name = {"key": "metadata.name", "operator": "In", "values": [node]}
    asked = [term | {"matchFields": [*(term.get("matchFields") or ()), name]} for term in terms]
    return {**affinity, "nodeAffinity": own | {_REQUIRED: {"nodeSelectorTerms": asked}}}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]
