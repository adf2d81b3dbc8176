"""Manifests that start a template automatically: a CronWorkflow, and the EventSource and Sensor of Argo
Events.

They are plain maps, because Hera's models of Sensors drop the resource that a Sensor creates.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.argo.api import GROUP, VERSION

API_VERSION = f"{GROUP}/{VERSION}"
EVENTS_ACCOUNT = "edl-argo-events"
"""Service account of Sensors; `access.for_events` makes it with the right to create workflows."""
ENDPOINT_PORT = "12000"


def cron(template: Mapping[str, Any], schedule: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Run a template on a schedule. A run is skipped while the previous one is still going.

    Args:
        template: WorkflowTemplate or ClusterWorkflowTemplate.
        schedule: in cron syntax.
        arguments: values of the template's parameters.

    Raises:
        InvalidError: a parameter of the template has neither a default nor a value.
    """
    _check_values("CronWorkflow", template, arguments)
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
    """An EventSource that makes an event of each authenticated POST to ``/<template's name>``.

    Argo Events compares the request's bearer token with the Secret of the template's name
    (https://argoproj.github.io/argo-events/eventsources/webhook-authentication/).
    """
    name = template["metadata"]["name"]
    hook = {
        "port": ENDPOINT_PORT,
        "endpoint": f"/{name}",
        "method": "POST",
        "authSecret": {"name": name, "key": "token"},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "EventSource",
        "metadata": {"name": name},
        "spec": {
            "service": {"ports": [{"port": int(ENDPOINT_PORT), "targetPort": int(ENDPOINT_PORT)}]},
            "webhook": {"new-data": hook},
        },
    }


def sensor(
    template: Mapping[str, Any], arguments: Mapping[str, str], from_event: Collection[str] = ()
) -> dict[str, Any]:
    """A Sensor that creates a workflow from the template for each event of `webhook`.

    An event sets only the parameters in `from_event`, each from the key of its JSON body with the same name.
    By default it sets none, because most parameters are code: the job, the image and the commands decide what
    runs in the namespace.

    A Sensor addresses list entries by index, so the workflow that it creates lists all parameters of the
    template in the template's order.

    Args:
        template: WorkflowTemplate or ClusterWorkflowTemplate.
        arguments: values of the template's parameters, instead of its defaults.
        from_event: names of the parameters that an event may set.

    Raises:
        InvalidError: the template has no such parameter, or a parameter has neither a default nor a value and
            is not set by events.
    """
    name = template["metadata"]["name"]
    values = _parameters(template, arguments)
    _check_names(template, from_event)
    _check_values("Sensor", template, arguments, from_event)
    workflow = {
        "apiVersion": API_VERSION,
        "kind": "Workflow",
        "metadata": {"generateName": f"{name}-"},
        "spec": {
            "workflowTemplateRef": _reference(template),
            "arguments": {"parameters": [{"name": key, "value": value or ""} for key, value in values]},
        },
    }
    trigger: dict[str, Any] = {"operation": "create", "source": {"resource": workflow}}
    if from_event:
        trigger["parameters"] = [
            _from_event(index, key, value) for index, (key, value) in enumerate(values) if key in from_event
        ]
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
    # Without a default, an event that lacks the key creates no workflow, and the Sensor's log says why.
    if default is not None:
        source["value"] = default
    return {"src": source, "dest": f"spec.arguments.parameters.{index}.value"}


def _check_names(template: Mapping[str, Any], from_event: Collection[str]) -> None:
    """Raise InvalidError if the template lacks a parameter that events may set."""
    declared = [key for key, _ in _parameters(template, {})]
    unknown = sorted(set(from_event) - set(declared))
    if unknown:
        raise InvalidError(
            f"{template['metadata']['name']} has no parameter {unknown[0]!r} that an event could set; "
            f"parameters are {', '.join(declared)}"
        )


def _check_values(
    kind: str, template: Mapping[str, Any], arguments: Mapping[str, str], but: Collection[str] = ()
) -> None:
    """Raise InvalidError if a parameter other than `but` has neither a default nor a value."""
    missing = sorted(
        name for name, value in _parameters(template, arguments) if value is None and name not in but
    )
    if missing:
        raise InvalidError(
            f"a {kind} of {template['metadata']['name']} needs values for {', '.join(missing)}, "
            "which have no default"
        )


def _parameters(
    template: Mapping[str, Any], arguments: Mapping[str, str]
) -> Sequence[tuple[str, str | None]]:
    declared = template["spec"]["arguments"]["parameters"]
    return [
        (parameter["name"], arguments.get(parameter["name"], parameter.get("value")))
        for parameter in declared
    ]


def _reference(template: Mapping[str, Any]) -> dict[str, Any]:
    scope = {"clusterScope": True} if template["kind"] == "ClusterWorkflowTemplate" else {}
    return {"name": template["metadata"]["name"], **scope}
