"""What an allocation policy decides from, read from nodes, pods and preemptible DIJobs. Pure.

A node that is not ready takes no new replicas, and counts as gone after five minutes, when Kubernetes gives
its pods up, too. A pod that runs on a cordoned or tainted node stays; once it is gone, as after a drain, its
job no longer holds that place: a new pod could never get there.
Of placement rules node selectors, required node affinity and taints are regarded; the scheduler, which places
the pods in the end, knows all of them.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from edl_workflows.jobs import demand, manifests, names
from edl_workflows.jobs.di_job import elastic, pods
from edl_workflows.jobs.di_job.model import DIJob, Task
from edl_workflows.jobs.node_selector import requirement_holds
from edl_workflows.scaling.policy import Allocation, JobInfo, NodeInfo, Resources

PATIENCE = timedelta(seconds=300)
"""For a node that is not ready: as ``tolerationSeconds`` of pods by default."""
PODS = "pods"
NOWHERE = ""
"""In place of a node: where a replica has lost its place. No node is named so."""
_HEAD = ("name", "namespace", "uid", "resourceVersion", "labels")
_PRIORITIES = {"normal": 0, "high": 1}
_REPELLING = ("NoSchedule", "NoExecute")

Object = Mapping[str, Any]
ByNode = dict[str, dict[str, float]]


def kept_node(node: Object) -> dict[str, Any]:
    """What a cache keeps of a node: what it offers, to whom, and since when it is not ready."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready: Object = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    return _head(node) | {
        "allocatable": {PODS: math.inf} | demand.parse_amounts(status.get("allocatable") or {}),
        "unschedulable": bool(spec.get("unschedulable")),
        "taints": [taint for taint in spec.get("taints") or () if taint.get("effect") in _REPELLING],
        "notReadySince": None if ready.get("status") == "True" else ready.get("lastTransitionTime") or "",
    }


def kept_pod(pod: Object) -> dict[str, Any]:
    """What a cache keeps of a pod: what it takes, and where."""
    spec = pod.get("spec") or {}
    return _head(pod) | {
        "node": spec.get("nodeName") or "",
        "over": manifests.has_ended(pod),
        "succeeded": manifests.pod_phase(pod) == "Succeeded",
        "requests": node_demand(spec),
    }


def node_demand(spec: Object) -> dict[str, float]:
    """What a pod takes of its node, itself included."""
    return demand.pod_requests(spec) | {PODS: 1.0}


@dataclass(frozen=True)
class AllocationSnapshot:
    """The request to a policy.

    Attributes:
        jobs: by key.
        nodes: free is what the jobs may share: allocatable without what other pods take.
        previous: what each job holds; `NOWHERE` for a rank that has lost its place.
        taken: node → what the jobs' allocations take of it, or their pods where that is more.
    """

    jobs: dict[str, JobInfo]
    nodes: dict[str, NodeInfo]
    previous: dict[str, Allocation]
    taken: Mapping[str, Resources]

    @property
    def left(self) -> dict[str, NodeInfo]:
        """The nodes with what nobody has, for a new job."""
        return {
            key: NodeInfo(key, _less(node.free, self.taken.get(key, {})), node.schedulable)
            for key, node in self.nodes.items()
        }

    def given(self, key: str, places: Allocation) -> "AllocationSnapshot":
        """The same after a job has got an allocation."""
        taken = {node: dict(amounts) for node, amounts in self.taken.items()}
        for node, amounts in _promised(self.jobs[key], places).items():
            demand.add_amounts(taken.setdefault(node, {}), amounts)
        return replace(self, previous=self.previous | {key: tuple(places)}, taken=taken)


def take_snapshot(
    jobs: Iterable[DIJob],
    nodes: Iterable[Object],
    placed: Iterable[Object],
    defaults: Mapping[str, str],
    now: datetime,
    reported: Mapping[str, Sequence[Object]],
) -> AllocationSnapshot:
    """Read the request to a policy from nodes, pods and jobs.

    Args:
        jobs: the preemptible ones that are to have replicas.
        nodes: as `kept_node` leaves them.
        placed: all pods, as `kept_pod` leaves them.
        defaults: what a replica asks for where its template does not say (`Settings.di_job_resources`).
        now: the time.
        reported: what the jobs of each scenario reported, see `group_by_scenario`.
    """
    there = {node["metadata"]["name"]: node for node in nodes if not is_node_gone(node, now)}
    ours = {job.key: job for job in jobs}
    infos = {key: _info(job, there, defaults, now, reported) for key, job in ours.items()}
    free = {key: dict(node["allocatable"]) for key, node in there.items()}
    running: dict[str, ByNode] = {key: {} for key in ours}
    staying: dict[str, set[tuple[str, str]]] = {key: set() for key in ours}
    for pod in placed:
        node = pod["node"]
        if node not in there:
            continue
        if (not pod["over"] or pod["succeeded"]) and _job_key(pod) in ours:
            staying[_job_key(pod)].add((pod["metadata"]["name"], node))
        if pod["over"]:
            continue
        if (owner := _job_key(pod)) in ours:
            demand.add_amounts(running[owner].setdefault(node, {}), pod["requests"])
        else:
            free[node] = _less(free[node], pod["requests"])
    closed = {key for key, node in there.items() if not accepts_pods(node)}
    held = {key: _held(job, closed | infos[key].excluded, staying[key]) for key, job in ours.items()}
    return AllocationSnapshot(
        infos,
        {key: NodeInfo(key, amounts, accepts_pods(there[key])) for key, amounts in free.items()},
        held,
        _taken([(_promised(infos[key], held[key]), running[key]) for key in ours]),
    )


def _held(job: DIJob, closed: Collection[str], staying: Collection[tuple[str, str]]) -> Allocation:
    """A job's allocation without the places on closed nodes that nobody is at any more.

    Args:
        job: the job.
        closed: nodes that take no new pods of it.
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
    """Replicas that have succeeded: they stay where they were, since they need nothing there any more."""
    counts = job.status.replica_statuses.get(task.title)
    return counts.completed if counts else ()


def _taken(jobs: Iterable[tuple[ByNode, ByNode]]) -> ByNode:
    """By node, what jobs take together; of each what it was promised, or what its pods have where that is
    more.
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
        # Who names no maximum asks for as many as `replicas` says; first-fit would fill the cluster with any
        # other.
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
    """Scenario → what its jobs reported, the newest first.

    Args:
        jobs: all DIJobs that there are, also those that are over, as manifests.
    """
    found: dict[str, list[Object]] = {}
    for job in sorted(jobs, key=_created, reverse=True):
        metadata, profilings = job["metadata"], (job.get("status") or {}).get("profilings")
        scenario = _scenario(metadata.get("namespace", ""), metadata.get("annotations") or {})
        if scenario and profilings:
            found.setdefault(scenario, []).append(profilings)
    return found


def _created(job: Object) -> tuple[str, str]:
    """Several jobs are created within a second; by their names their order is always the same."""
    return job["metadata"].get("creationTimestamp") or "", job["metadata"]["name"]


def _scenario(namespace: str, annotations: Mapping[str, str]) -> str:
    name = annotations.get(names.SCENARIO_ANNOTATION)
    return f"{namespace}/{name}" if name else ""


def _demand(task: Task, defaults: Mapping[str, str]) -> Resources:
    return elastic.replica_requests(task, defaults) | {PODS: 1.0}


def node_admits(node: Object, spec: Object) -> bool:
    """Whether a node's labels, name and taints let pods of such a spec in."""
    labels = node["metadata"].get("labels") or {}
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms and not any(_matches(term, node) for term in terms):
        return False
    tolerations = spec.get("tolerations") or ()
    return all(any(_tolerates(one, taint) for one in tolerations) for taint in node["taints"])


def _matches(term: Object, node: Object) -> bool:
    """Whether a node is one that a term of a node affinity means: all that it says holds.

    One that says nothing means no node; in the pods of a placed job each names the node (see
    `pods.DIPodMaker`), so here it means any.
    """
    labels, fields = node["metadata"].get("labels") or {}, {"metadata.name": node["metadata"]["name"]}
    return all(requirement_holds(one, labels) for one in term.get("matchExpressions") or ()) and all(
        requirement_holds(one, fields) for one in term.get("matchFields") or ()
    )


def _tolerates(toleration: Object, taint: Object) -> bool:
    """Kubernetes' rule."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (
        taint.get("value") or ""
    )


def is_node_gone(node: Object, now: datetime) -> bool:
    """Whether a node has not been ready for too long. One that never said so is new."""
    since = manifests.parse_time(node["notReadySince"])
    return since is not None and now - since > PATIENCE


def _promised(info: JobInfo, allocation: Allocation) -> ByNode:
    found: ByNode = {}
    for rank, node in enumerate(allocation):
        demand.add_amounts(found.setdefault(node, {}), info.demand(rank))
    return found


def _job_key(pod: Object) -> str:
    labels = pod["metadata"].get("labels") or {}
    name = labels.get(pods.JOB_LABEL) if labels.get(pods.OPERATOR_LABEL) == pods.OPERATOR else None
    return f"{pod['metadata'].get('namespace')}/{name}" if name else ""


def _head(obj: Object) -> dict[str, Any]:
    metadata = {key: obj["metadata"][key] for key in _HEAD if key in obj["metadata"]}
    return {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": metadata}


def _less(amounts: Resources, taken: Resources) -> dict[str, float]:
    return {name: amounts.get(name, 0.0) - taken.get(name, 0.0) for name in {*amounts, *taken}}
