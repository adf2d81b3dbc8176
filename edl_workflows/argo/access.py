"""Service accounts and rights of what our templates make Argo start: pods of steps, and Sensors."""

from typing import Any

from edl_workflows.argo.api import GROUP
from edl_workflows.argo.schedules import EVENTS_ACCOUNT
from edl_workflows.argo.step import WaitMode
from edl_workflows.argo.workflows import ACCOUNT
from edl_workflows.jobs import names

RBAC = "rbac.authorization.k8s.io"

EXECUTOR: list[dict[str, Any]] = [
    # What a pod of Argo reports its outputs by.
    {"apiGroups": [GROUP], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]},
]
RESOURCE_STEPS: list[dict[str, Any]] = [
    # apply is get, create and patch; a delete that waits lists and watches.
    {
        "apiGroups": [names.GROUP],
        "resources": ["elasticjobs"],
        "verbs": ["create", "delete", "get", "list", "patch", "watch"],
    },
    {"apiGroups": [names.GROUP], "resources": ["scaleplans"], "verbs": ["create", "get", "patch"]},
]


def for_steps(waiting: WaitMode, namespace: str) -> list[dict[str, Any]]:
    """What a workflow's pods may do: with resource templates, what a job's changes need; with plugin
    templates that is the agent's, and the pods only report."""
    rules = EXECUTOR + (RESOURCE_STEPS if waiting == "resource" else [])
    return _account(ACCOUNT, namespace, rules)


def for_events(namespace: str) -> list[dict[str, Any]]:
    """What a Sensor may do: create workflows."""
    return _account(
        EVENTS_ACCOUNT, namespace, [{"apiGroups": [GROUP], "resources": ["workflows"], "verbs": ["create"]}]
    )


def _account(name: str, namespace: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    metadata = {"name": name, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]
