"""What starts a template by itself: a CronWorkflow, and the EventSource and Sensor of Argo Events.

Plain maps: Hera's models of Sensors lose the resource that a Sensor creates.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edl_workflows.argo.api import GROUP, VERSION
from edl_workflows.exceptions import InvalidError

API_VERSION = f"{GROUP}/{VERSION}"
EVENTS_ACCOUNT = "edl-argo-events"
"""Service account of Sensors; `access.for_events` makes it with the right to create workflows."""
ENDPOINT_PORT = "12000"


def cron(template: Mapping[str, Any], schedule: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Run a template by the clock; a run that still goes on makes the next one be left out.

    Args:
        template: WorkflowTemplate or ClusterWorkflowTemplate.
        schedule: as cron writes it.
        arguments: values of the template's parameters.

    Raises:
        InvalidError: a parameter of the template has neither a default nor a value.
    """
    missing = sorted(name for name, value in _parameters(template, arguments) if value is None)
    if missing:
        raise InvalidError(
            f"a CronWorkflow of {template['metadata']['name']} needs values for {', '.join(missing)}, "
            "which have no default"
        )
    return {
        "apiVersion": API_VERSION,
        "kind": "CronWorkflow",
        "metadata": {"name": f"{template['metadata']['name']}-cron"},
        "spec": {
            "schedules": [schedule],
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 600,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 3,
            "workflowSpec": {
                "workflowTemplateRef": _reference(template),
                "arguments": {
                    "parameters": [{"name": key, "value": value} for key, value in sorted(arguments.items())]
                },
            },
        },
    }


def webhook(template: Mapping[str, Any]) -> dict[str, Any]:
    """An EventSource: a POST to ``/<template's name>`` is an event."""
    name = template["metadata"]["name"]
    return {
        "apiVersion": API_VERSION,
        "kind": "EventSource",
        "metadata": {"name": name},
        "spec": {
            "service": {"ports": [{"port": int(ENDPOINT_PORT), "targetPort": int(ENDPOINT_PORT)}]},
            "webhook": {"new-data": {"port": ENDPOINT_PORT, "endpoint": f"/{name}", "method": "POST"}},
        },
    }


def sensor(template: Mapping[str, Any], arguments: Mapping[str, str]) -> dict[str, Any]:
    """A Sensor: each event of `webhook` makes a workflow of the template.

    A key of the event's JSON body that is named as a parameter gives its value. A Sensor writes to a place in
    a list: the workflow it creates names all parameters of the template in the template's order, and so each
    has its place.

    Args:
        template: WorkflowTemplate or ClusterWorkflowTemplate.
        arguments: values for what an event does not say, instead of the template's defaults.
    """
    name = template["metadata"]["name"]
    values = _parameters(template, arguments)
    workflow = {
        "apiVersion": API_VERSION,
        "kind": "Workflow",
        "metadata": {"generateName": f"{name}-"},
        "spec": {
            "workflowTemplateRef": _reference(template),
            "arguments": {"parameters": [{"name": key, "value": value or ""} for key, value in values]},
        },
    }
    trigger = {
        "operation": "create",
        "source": {"resource": workflow},
        "parameters": [_from_event(index, key, value) for index, (key, value) in enumerate(values)],
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "Sensor",
        "metadata": {"name": name},
        "spec": {
            "template": {"serviceAccountName": EVENTS_ACCOUNT},
            "dependencies": [{"name": "new-data", "eventSourceName": name, "eventName": "new-data"}],
            "triggers": [{"template": {"name": name, "k8s": trigger}}],
        },
    }


def _from_event(index: int, name: str, default: str | None) -> dict[str, Any]:
    source = {"dependencyName": "new-data", "dataKey": f"body.{name}"}
    # Without a default an event that lacks the key triggers nothing, and the Sensor's log says why.
    if default is not None:
        source["value"] = default
    return {"src": source, "dest": f"spec.arguments.parameters.{index}.value"}


def _parameters(
    template: Mapping[str, Any], arguments: Mapping[str, str]
) -> Sequence[tuple[str, str | None]]:
    declared = template["spec"]["arguments"]["parameters"]
    return [(one["name"], arguments.get(one["name"], one.get("value"))) for one in declared]


def _reference(template: Mapping[str, Any]) -> dict[str, Any]:
    scope = {"clusterScope": True} if template["kind"] == "ClusterWorkflowTemplate" else {}
    return {"name": template["metadata"]["name"], **scope}
