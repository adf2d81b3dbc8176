"""Shell completion of kinds, and of names, roles and nodes of the cluster's jobs.

Completion never fails and never takes long: without a cluster it completes nothing.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edl_workflows.core.exceptions import EdlError

if TYPE_CHECKING:
    from edl_workflows.core.jobs.kind import Kind
    from edl_workflows.pipelines.cli.jobs.listing import ListedJob
    from edl_workflows.runtime.kube.connect import Cluster

COMPLETION_SECONDS = 2.0
"""Timeout of requests to the API server."""


def complete_kind(incomplete: str) -> list[str]:
    """The kinds of jobs."""
    return [kind.name for kind in _kinds(None) if kind.name.startswith(incomplete)]


def complete_job(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the jobs in the cluster and namespace of the command line."""
    return [job.view.name for job in _jobs(context, "") if job.view.name.startswith(incomplete)]


def complete_role(context: typer.Context, incomplete: str) -> list[str]:
    """Roles of the job on the command line, as ``worker=``."""
    jobs = _jobs(context, str(context.params.get("name") or ""))
    roles = sorted({role for job in jobs for role in job.view.replicas})
    return [f"{role}=" for role in roles if f"{role}=".startswith(incomplete)]


def complete_node(context: typer.Context, incomplete: str) -> list[str]:
    """Nodes of the job on the command line, as ``worker-0``."""
    try:
        cluster, name = _cluster(context.params), str(context.params.get("name") or "")
        nodes = [node for kind in _kinds(context.params.get("kind")) for node in _nodes(cluster, kind, name)]
    except EdlError:
        return []
    return sorted({node for node in nodes if node.startswith(incomplete)})


def _kinds(name: str | None) -> "Sequence[Kind]":
    from edl_workflows.pipelines.cli.jobs.listing import job_kinds  # here, since --help needs no kinds

    return job_kinds(name)


def _jobs(context: typer.Context, name: str) -> "list[ListedJob]":
    """The jobs with a name, or all; none if they can't be listed."""
    from edl_workflows.pipelines.cli.jobs.listing import list_jobs

    try:
        cluster = _cluster(context.params)
        return list_jobs(cluster, _kinds(context.params.get("kind")), cluster.namespace, name)
    except EdlError:
        return []


def _nodes(cluster: "Cluster", kind: "Kind", job: str) -> Iterator[str]:
    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.resources import PODS, Scope

    pods = Scope(PODS, cluster.namespace, label_selector=kind.pods_of(job))
    return (kind.node_of(pod) for pod in client.list_objects(cluster, pods).items)


def _cluster(params: dict[str, Any]) -> "Cluster":
    from edl_workflows.pipelines.cli.options import connect_cluster
    from edl_workflows.runtime.kube.connect import CallPolicy

    kubeconfig = params.get("kubeconfig")
    cluster = connect_cluster(
        Path(kubeconfig) if kubeconfig else None, params.get("context"), params.get("namespace")
    )
    return cluster.with_policy(CallPolicy(attempts=1, read_seconds=COMPLETION_SECONDS))
