"""What a waiting Argo step costs, and how soon the next step starts when its job has ended: three ways to
wait.

*stock* is the resource template that a user writes by hand. No controller looks at the jobs here: the bench
says what becomes of them. Requests are all that concern the namespace, whoever makes them: the steps' pods or
the agent, Argo's controller, the kubelet.
"""

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edl_workflows.pipelines.argo.nodes import nodes_of
from edl_workflows.pipelines.argo.templates.workflows import ACCOUNT
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, NAMESPACES, PODS, SERVICE_ACCOUNTS, Scope
from tests.benchmarks.cluster.audit import AuditLog, by_kind
from tests.cluster.argo_runs import SPEC, Argo, Run, argo
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until

SETTLE = 20.0
"""Seconds after the last step began to wait: starting is over."""
WINDOW = 60.0
"""Seconds of undisturbed waiting that are counted; the executor of a resource step looks every 5 s."""
SAMPLES = 5
"""Jobs whose end is timed."""
PRODUCT = "elastic-train"


@dataclass
class Waiting:
    """What waiting came to.

    Attributes:
        way: stock, resource or plugin.
        jobs: how many waited at the same time.
        pods: that waited with them, a job.
        requests: a minute and job, but for leases.
        leases: requests a minute of the agent's leader election, for all jobs together.
        kinds: the same by verb and resource.
        next_step: seconds from a job's terminal status to the next step's node; median and the longest.
    """

    way: str
    jobs: int
    pods: float
    requests: float
    leases: float
    kinds: dict[str, float]
    next_step: tuple[float, float]


def measure(bed: Bed, way: str, jobs: int, folder: Path) -> Waiting:
    """Let so many workflows wait, count, and let some of the jobs end.

    Args:
        bed: where; nothing else needs to be quiet there.
        way: stock, resource or plugin.
        jobs: how many.
        folder: for logs.
    """
    with fresh_namespace(bed, f"bench-{way}") as cluster, argo(bed, cluster, (PRODUCT,), folder) as running:
        workflows = {name: _start(running, way, name) for name in (f"wait-{index}" for index in range(jobs))}
        until(lambda: _waits(cluster, way, jobs), f"{jobs} steps wait", 300)
        time.sleep(SETTLE)
        log = AuditLog(bed.audit_log)
        time.sleep(WINDOW)
        here = [call for call in log.news() if call.namespace == cluster.namespace]
        calls = [call for call in here if call.resource != "leases"]
        pods = len(_pods(cluster))
        times = [_ended_to_next(running, run, name) for name, run in list(workflows.items())[:SAMPLES]]
    share = jobs * WINDOW / 60
    return Waiting(
        way=way,
        jobs=jobs,
        pods=round(pods / jobs, 2),
        requests=round(len(calls) / share, 2),
        leases=round((len(here) - len(calls)) / (WINDOW / 60), 1),
        kinds=_shares(by_kind(calls), share),
        next_step=(round(statistics.median(times), 2), round(max(times), 2)),
    )


@contextmanager
def fresh_namespace(bed: Bed, prefix: str) -> Iterator[Cluster]:
    """A namespace of the bench's own, with its default account; deleted at the end."""
    top = Cluster.from_kubeconfig(bed.kubeconfig)
    name = f"{prefix}-{time.time_ns() % 10**9}"
    client.create(top, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster = top.in_namespace(name)
    until(lambda: client.find(cluster, SERVICE_ACCOUNTS, "default") is not None, f"account of {name}")
    try:
        yield cluster
    finally:
        client.delete(top, NAMESPACES, name)


def _shares(counts: Counter[str], share: float) -> dict[str, float]:
    found = {kind: round(count / share, 2) for kind, count in counts.most_common()}
    return {kind: each for kind, each in found.items() if each}


def _start(running: Argo, way: str, name: str) -> Run:
    """A workflow whose first step makes the job of this name and waits for it."""
    if way == "stock":
        return running.run(name, _stock(name))
    return running.start(PRODUCT, "plugin" if way == "plugin" else "resource", name=name, spec=SPEC)


def _stock(job: str) -> dict[str, Any]:
    """As users write it."""
    manifest = {
        "apiVersion": ELASTIC_JOBS.api_version,
        "kind": "ElasticJob",
        "metadata": {"name": job},
        "spec": yaml.safe_load(SPEC),
    }
    train = {
        "action": "create",
        "successCondition": "status.phase == Succeeded",
        "failureCondition": "status.phase == Failed",
        "manifest": yaml.safe_dump(manifest),
    }
    steps = [[{"name": "train", "template": "train"}], [{"name": "next", "template": "next"}]]
    templates = [
        {"name": "main", "steps": steps},
        {"name": "train", "resource": train},
        {"name": "next", "suspend": {}},
    ]
    return {"entrypoint": "main", "serviceAccountName": ACCOUNT, "templates": templates}


def _pods(cluster: Cluster) -> list[str]:
    """Pods of steps that run."""
    found = client.list_objects(cluster, Scope(PODS, cluster.namespace)).items
    return [pod["metadata"]["name"] for pod in found if pod["status"].get("phase") == "Running"]


def _waits(cluster: Cluster, way: str, jobs: int) -> bool:
    made = client.list_objects(cluster, Scope(ELASTIC_JOBS, cluster.namespace)).items
    return len(made) == jobs and (way == "plugin" or len(_pods(cluster)) >= jobs)


def _ended_to_next(running: Argo, run: Run, job: str) -> float:
    """End the job of a workflow; seconds until another node is there."""
    before = _nodes(run)
    began = time.perf_counter()
    running.job(job).say("Succeeded")
    until(lambda: bool(_nodes(run) - before), f"the step behind {run.name}", 120)
    return time.perf_counter() - began


def _nodes(run: Run) -> set[str]:
    return set(nodes_of(run.get().get("status") or {}) or {})
