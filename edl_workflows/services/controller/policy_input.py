"""The input of an allocation policy, built from nodes, pods and preemptible DIJobs. Pure.

A node that is not ready gets no new replicas. After five minutes it counts as gone, since Kubernetes then
evicts its pods, too. A pod that runs on a cordoned or tainted node stays. Once such a pod is gone, for
example after a drain, its job loses the place, because a new pod could not be scheduled there.
Only some placement rules are considered: node selectors, required node affinity and taints. The scheduler,
which finally places the pods, applies all rules.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.cache_fields import head_of
from edl_workflows.core.jobs.di_job import elastic, pods
from edl_workflows.core.jobs.di_job.model import DIJob, Task
from edl_workflows.core.kubernetes import demand, names, pod_state
from edl_workflows.core.kubernetes.node_selector import requirement_holds
from edl_workflows.core.scaling.policy import Allocation, JobInfo, NodeInfo, Resources

PATIENCE = timedelta(seconds=300)
"""How long a node may be not ready before it counts as gone: the default ``tolerationSeconds`` of pods."""
PODS = "pods"
NOWHERE = ""
"""In an allocation, in place of a node's name: the replica has lost its place."""
_HEAD = ("name", "namespace", "uid", "resourceVersion", "labels")
_PRIORITIES = {"normal": 0, "high": 1}
_REPELLING = ("NoSchedule", "NoExecute")

Object = Mapping[str, Any]
ByNode = dict[str, dict[str, float]]


def kept_node(node: Object) -> dict[str, Any]:
    """The parts of a node that the cache keeps: its capacity, which pods it accepts, and since when it is not
    ready."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready: Object = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    return head_of(node, _HEAD) | {
        "allocatable": {PODS: math.inf} | demand.parse_amounts(status.get("allocatable") or {}),
        "unschedulable": bool(spec.get("unschedulable")),
        "taints": [taint for taint in spec.get("taints") or () if taint.get("effect") in _REPELLING],
        "notReadySince": None if ready.get("status") == "True" else ready.get("lastTransitionTime") or "",
    }


def kept_pod(pod: Object) -> dict[str, Any]:
    """The parts of a pod that the cache keeps: its requests, its node, and whether it has ended."""
    spec = pod.get("spec") or {}
    return head_of(pod, _HEAD) | {
        "node": spec.get("nodeName") or "",
        "over": pod_state.has_stopped(pod),
        "succeeded": pod_state.pod_phase(pod) == "Succeeded",
        "requests": node_demand(spec),
    }


def node_demand(spec: Object) -> dict[str, float]:
    """The resources that a pod takes of its node, including one of the node's pods."""
    return demand.pod_requests(spec) | {PODS: 1.0}


@dataclass(frozen=True)
class AllocationSnapshot:
    """The input of a policy.

    Attributes:
        jobs: by key.
        nodes: by key; `free` is what the jobs may share: the allocatable resources minus those of other pods.
        previous: what each job holds; `NOWHERE` for a rank that has lost its place.
        taken: node → the resources that the jobs' allocations take there, or those of their pods if these are
            more.
    """

    jobs: dict[str, JobInfo]
    nodes: dict[str, NodeInfo]
    previous: dict[str, Allocation]
    taken: Mapping[str, Resources]

    @property
    def left(self) -> dict[str, NodeInfo]:
        """The nodes with the resources that no job and no pod holds, for a new job."""
        return {
            key: NodeInfo(key, _less(node.free, self.taken.get(key, {})), node.schedulable)
            for key, node in self.nodes.items()
        }

    def given(self, key: str, places: Allocation) -> "AllocationSnapshot":
        """The snapshot after a job has received an allocation."""
        taken = {node: dict(amounts) for node, amounts in self.taken.items()}
        for node, amounts in _promised(self.jobs[key], places).items():
            demand.add_amounts(taken.setdefault(node, {}), amounts)
        return replace(self, previous=self.previous | {key: tuple(places)}, taken=taken)


def build_snapshot(
    jobs: Iterable[DIJob],
    nodes: Iterable[Object],
    placed: Iterable[Object],
    defaults: Mapping[str, str],
    now: datetime,
    reported: Mapping[str, Sequence[Object]],
) -> AllocationSnapshot:
    """Build the input of a policy from nodes, pods and jobs.

    Args:
        jobs: the preemptible jobs that are not suspended and have not ended.
        nodes: as returned by `kept_node`.
        placed: all pods, as returned by `kept_pod`.
        defaults: requests of a replica for resources that its template does not name
            (`InstallationSettings.di_job_resources`).
        now: the time.
        reported: what the jobs of each scenario reported, see `group_by_scenario`.
    """
    live_nodes = {node["metadata"]["name"]: node for node in nodes if not is_node_gone(node, now)}
    ours = {job.key: job for job in jobs}
    infos = {key: _info(job, live_nodes, defaults, now, reported) for key, job in ours.items()}
    free = {key: dict(node["allocatable"]) for key, node in live_nodes.items()}
    running: dict[str, ByNode] = {key: {} for key in ours}
    staying: dict[str, set[tuple[str, str]]] = {key: set() for key in ours}
    for pod in placed:
        node = pod["node"]
        if node not in live_nodes:
            continue
        if (not pod["over"] or pod["succeeded"]) and _job_key(pod) in ours:
            staying[_job_key(pod)].add((pod["metadata"]["name"], node))
        if pod["over"]:
            continue
        if (owner := _job_key(pod)) in ours:
            demand.add_amounts(running[owner].setdefault(node, {}), pod["requests"])
        else:
            free[node] = _less(free[node], pod["requests"])
    closed = {key for key, node in live_nodes.items() if not accepts_pods(node)}
    held = {key: _held(job, closed | infos[key].excluded, staying[key]) for key, job in ours.items()}
    return AllocationSnapshot(
        infos,
        {key: NodeInfo(key, amounts, accepts_pods(live_nodes[key])) for key, amounts in free.items()},
        held,
        _taken([(_promised(infos[key], held[key]), running[key]) for key in ours]),
    )


def _held(job: DIJob, closed: Collection[str], staying: Collection[tuple[str, str]]) -> Allocation:
    """A job's allocation, with `NOWHERE` for places on closed nodes where the replica's pod no longer is.

    Args:
        job: the job.
        closed: nodes that accept no new pods of the job.
        staying: name and node of its pods that run or have succeeded.
    """
    allocation = tuple(job.status.allocation)
    if not any(node in closed for node in allocation):
        return allocation
    kept = {
        replica.rank
        for replica in pods.list_replicas(job)
        if (replica.name, replica.node) in staying or replica.index in _completed(job, replica.task)
    }
    return tuple(
        node if node not in closed or rank in kept else NOWHERE for rank, node in enumerate(allocation)
    )


def _completed(job: DIJob, task: Task) -> Collection[int]:
    """Indices of the replicas that have succeeded. They keep their places, since they need no new pod
    there."""
    counts = job.status.replica_statuses.get(task.title)
    return counts.completed if counts else ()


def _taken(jobs: Iterable[tuple[ByNode, ByNode]]) -> ByNode:
    """By node, the resources that all jobs take. For each job this is what its allocation takes, or what its
    pods request if that is more.
    """
    taken: ByNode = {}
    for promised, running in jobs:
        for node in {*promised, *running}:
            demand.add_amounts(
                taken.setdefault(node, {}),
                demand.larger_amounts(promised.get(node, {}), running.get(node, {})),
            )
    return taken


def accepts_pods(node: Object) -> bool:
    """Whether a node takes new pods."""
    return not node["unschedulable"] and node["notReadySince"] is None


def _info(
    job: DIJob,
    nodes: Mapping[str, Object],
    defaults: Mapping[str, str],
    now: datetime,
    reported: Mapping[str, Sequence[Object]],
) -> JobInfo:
    *fixed, last = elastic.tasks_by_rank(job.spec)
    low, high = elastic.replica_bounds(job)
    total = sum(task.replicas for task in job.spec.tasks)
    created = job.metadata.creation_timestamp or now
    scenario = _scenario(job.metadata.namespace or "", job.metadata.annotations)
    return JobInfo(
        key=job.key,
        resources=_demand(last, defaults),
        fixed=tuple(_demand(task, defaults) for task in fixed for _ in range(task.replicas)),
        min_replicas=low,
        # Without a maximum the job wants the number in `replicas`; with the default maximum, first-fit would
        # fill the cluster with it.
        max_replicas=high if last.max_replicas is not None else total,
        priority=_PRIORITIES[job.spec.priority],
        age=max(0.0, (now - created).total_seconds()),
        excluded=frozenset(
            key
            for key, node in nodes.items()
            if not all(node_admits(node, task.template["spec"]) for task in job.spec.tasks)
        ),
        profilings=job.status.profilings,
        scenario=scenario,
        reported=reported.get(scenario, ()),
    )


def group_by_scenario(jobs: Iterable[Object]) -> dict[str, list[Object]]:
    """Scenario → the reports of its jobs, the newest job's first.

    Args:
        jobs: the manifests of all DIJobs, including those that have ended.
    """
    reports: dict[str, list[Object]] = {}
    for job in sorted(jobs, key=_created, reverse=True):
        metadata, profilings = job["metadata"], (job.get("status") or {}).get("profilings")
        scenario = _scenario(metadata.get("namespace", ""), metadata.get("annotations") or {})
        if scenario and profilings:
            reports.setdefault(scenario, []).append(profilings)
    return reports


def _created(job: Object) -> tuple[str, str]:
    """Sort key by age. Several jobs may be created within the same second, so the name makes the order
    unique."""
    return job["metadata"].get("creationTimestamp") or "", job["metadata"]["name"]


def _scenario(namespace: str, annotations: Mapping[str, str]) -> str:
    name = annotations.get(names.SCENARIO_ANNOTATION)
    return f"{namespace}/{name}" if name else ""


def _demand(task: Task, defaults: Mapping[str, str]) -> Resources:
    return elastic.replica_requests(task, defaults) | {PODS: 1.0}


def node_admits(node: Object, spec: Object) -> bool:
    """Whether a node accepts pods with this spec, by its labels, name and taints."""
    labels = node["metadata"].get("labels") or {}
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms and not any(_matches(term, node) for term in terms):
        return False
    tolerations = spec.get("tolerations") or ()
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in node["taints"])


def _matches(term: Object, node: Object) -> bool:
    """Whether a node fulfils all requirements of a node affinity term.

    To Kubernetes, an empty term matches no node. Here it matches every node, because `pods.DIPodMaker` adds
    the allocated node to each term of a pod.
    """
    labels, fields = node["metadata"].get("labels") or {}, {"metadata.name": node["metadata"]["name"]}
    expressions, field_requirements = term.get("matchExpressions") or (), term.get("matchFields") or ()
    return all(requirement_holds(requirement, labels) for requirement in expressions) and all(
        requirement_holds(requirement, fields) for requirement in field_requirements
    )


def _tolerates(toleration: Object, taint: Object) -> bool:
    """Whether a toleration matches a taint, by Kubernetes' rule."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (
        taint.get("value") or ""
    )


def is_node_gone(node: Object, now: datetime) -> bool:
    """Whether a node has not been ready for too long. A node without a Ready condition is new, and not
    gone."""
    since = manifests.parse_time(node["notReadySince"])
    return since is not None and now - since > PATIENCE


def _promised(info: JobInfo, allocation: Allocation) -> ByNode:
    requests: ByNode = {}
    for rank, node in enumerate(allocation):
        demand.add_amounts(requests.setdefault(node, {}), info.demand(rank))
    return requests


def _job_key(pod: Object) -> str:
    labels = pod["metadata"].get("labels") or {}
    name = labels.get(pods.JOB_LABEL) if labels.get(pods.OPERATOR_LABEL) == pods.OPERATOR else None
    return f"{pod['metadata'].get('namespace')}/{name}" if name else ""


def _less(amounts: Resources, taken: Resources) -> dict[str, float]:
    return {name: amounts.get(name, 0.0) - taken.get(name, 0.0) for name in {*amounts, *taken}}
