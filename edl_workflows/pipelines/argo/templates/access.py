"""Service accounts and RBAC rules for what Argo starts from our templates: the pods of steps, and Sensors."""

from typing import Any

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.argo.api import GROUP
from edl_workflows.pipelines.argo.templates.schedules import EVENTS_ACCOUNT
from edl_workflows.pipelines.argo.templates.step import WaitMode
from edl_workflows.pipelines.argo.templates.workflows import ACCOUNT

RBAC = "rbac.authorization.k8s.io"

EXECUTOR: list[dict[str, Any]] = [
    # A step's pod reports its outputs in these objects.
    {"apiGroups": [GROUP], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]},
]
RESOURCE_STEPS: list[dict[str, Any]] = [
    # kubectl apply needs get, create and patch; kubectl delete needs list and watch to wait for the deletion.
    {
        "apiGroups": [names.GROUP],
        "resources": ["elasticjobs"],
        "verbs": ["create", "delete", "get", "list", "patch", "watch"],
    },
    {"apiGroups": [names.GROUP], "resources": ["scaleplans"], "verbs": ["create", "get", "patch"]},
]


def for_steps(waiting: WaitMode, namespace: str) -> list[dict[str, Any]]:
    """The account of a workflow's pods. With resource templates, the pods may also create and change jobs.
    With plugin templates the agent does that, and the pods only report their outputs."""
    rules = EXECUTOR + (RESOURCE_STEPS if waiting == "resource" else [])
    return _account(ACCOUNT, namespace, rules)


def for_events(namespace: str) -> list[dict[str, Any]]:
    """The account of a Sensor, which may create workflows."""
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
