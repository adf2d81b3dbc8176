"""Manifests of what a job has besides pods and services: its token, its state, and the master's rights."""

import base64
from typing import Any

from edl_workflows.jobs import names
from edl_workflows.jobs.elastic_job.model import PLURAL, ElasticJob
from edl_workflows.jobs.manifests import elastic_job_child
from edl_workflows.jobs.scale_plan.model import PLURAL as SCALE_PLANS

_RBAC = "rbac.authorization.k8s.io"


def token_secret(job: ElasticJob, token: str) -> dict[str, Any]:
    """The token that the job's agents and its master share."""
    secret = elastic_job_child("v1", "Secret", names.token_secret_name(job.metadata.name), job, {})
    return secret | {
        "type": "Opaque",
        "immutable": True,  # running pods hold the old value for ever
        "data": {names.TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def state_config_map(job: ElasticJob) -> dict[str, Any]:
    """Where the master keeps its durable state. Made empty here; the master alone writes to it."""
    return elastic_job_child("v1", "ConfigMap", names.state_config_map_name(job.metadata.name), job, {})


def master_account(job: ElasticJob) -> dict[str, Any]:
    """Who the master is to the Kubernetes API."""
    return elastic_job_child("v1", "ServiceAccount", names.master_account_name(job.metadata.name), job, {})


def master_role(job: ElasticJob) -> dict[str, Any]:
    """What the master may do: read its job and the pods, report on the job, ask for changes, keep its state,
    make Events.
    """
    role = elastic_job_child(f"{_RBAC}/v1", "Role", names.master_account_name(job.metadata.name), job, {})
    return role | {"rules": master_rules(job.metadata.name)}


def master_rules(job: str) -> list[dict[str, Any]]:
    """The rules of the master's role. Who makes the role must hold each of these rights, too.

    Args:
        job: the job's name; its master reaches only what has this name, where the API can tell.
    """
    return [
        _rule("", ["pods"], ["list", "watch"]),
        _rule("", ["configmaps"], ["get", "patch"], [names.state_config_map_name(job)]),
        _rule(names.GROUP, [PLURAL], ["get", "list", "watch"], [job]),
        _rule(names.GROUP, [f"{PLURAL}/status"], ["patch"], [job]),
        _rule(names.GROUP, [SCALE_PLANS], ["list", "watch", "create"]),
        _rule(names.GROUP, [f"{SCALE_PLANS}/status"], ["patch"]),
        _rule("", ["events"], ["create"]),
    ]


def master_role_binding(job: ElasticJob) -> dict[str, Any]:
    """Gives the master's account its role."""
    name = names.master_account_name(job.metadata.name)
    binding = elastic_job_child(f"{_RBAC}/v1", "RoleBinding", name, job, {})
    account = {"kind": "ServiceAccount", "name": name, "namespace": job.metadata.namespace or "default"}
    return binding | {
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [account],
    }


def _rule(
    group: str, resources: list[str], verbs: list[str], only: list[str] | None = None
) -> dict[str, Any]:
    rule: dict[str, Any] = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return rule | {"resourceNames": only} if only else rule
