"""Rules, dashboards and monitors as objects for Prometheus' operator and Grafana's sidecar, or as files."""

import json
from collections.abc import Iterator
from typing import Any

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.install.monitoring.alerts import GROUPS, Alert
from edl_workflows.pipelines.install.monitoring.dashboards import DASHBOARDS, render_dashboard
from edl_workflows.pipelines.install.options import InstallOptions

Manifest = dict[str, Any]

OPERATOR_API = "monitoring.coreos.com/v1"
"""Prometheus' operator, whose definitions the cluster must have."""
DASHBOARD_LABEL = "grafana_dashboard"
"""Label by which Grafana's sidecar finds dashboards, as in its chart's defaults."""
RUNBOOKS = "docs/reference/alerts.md"
"""Page with the runbooks, in the repository."""

_JOB_LABEL = names.JOB_LABEL.translate(str.maketrans("./-", "___"))


def monitoring_manifests(options: InstallOptions) -> Iterator[Manifest]:
    """The objects for Prometheus' operator, and the dashboards."""
    yield _service_monitor(options)
    yield _pod_monitor(options)
    yield _object(OPERATOR_API, "PrometheusRule", "edl-workflows", options.namespace) | {
        "spec": rules(options.namespace)
    }
    for name, text in dashboard_files().items():
        config = _object("v1", "ConfigMap", name.removesuffix(".json"), options.namespace)
        config["metadata"]["labels"] = {DASHBOARD_LABEL: "1"}
        yield config | {"data": {name: text}}


def rules(namespace: str = "") -> Manifest:
    """The rules, as the file and the object have them.

    Args:
        namespace: that of the installation that they are about; "" for all that Prometheus scrapes.
    """
    groups = {
        name: [alert.in_namespace(namespace) if namespace else alert for alert in alerts]
        for name, alerts in GROUPS.items()
    }
    return {
        "groups": [
            {"name": name, "rules": [_rule(alert) for alert in alerts]} for name, alerts in groups.items()
        ]
    }


def dashboard_files() -> dict[str, str]:
    """The dashboards' JSON, by name of file."""
    return {
        f"{dashboard.name}.json": json.dumps(render_dashboard(dashboard), indent=2) + "\n"
        for dashboard in DASHBOARDS
    }


def _rule(alert: Alert) -> Manifest:
    annotations = {
        "summary": alert.summary,
        "description": f"{alert.meaning} Run: {alert.command}",
        "runbook": f"{RUNBOOKS}#{alert.name.lower()}",
    }
    wait = {"for": f"{alert.minutes}m"} if alert.minutes else {}
    return {
        "alert": alert.name,
        "expr": alert.expression,
        **wait,
        "labels": {"severity": str(alert.severity)},
        "annotations": annotations,
    }


def _service_monitor(options: InstallOptions) -> Manifest:
    """The controller and the other components. The label ``namespace`` of a metric is the job's."""
    return _object(OPERATOR_API, "ServiceMonitor", "edl-workflows", options.namespace) | {
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": "edl-workflows"}},
            "endpoints": [{"port": "metrics", "honorLabels": True}],
        }
    }


def _pod_monitor(options: InstallOptions) -> Manifest:
    """The masters of jobs, each with the name of its job."""
    selection = options.jobs_namespaces
    where = {"matchNames": list(selection.names)} if selection.names else {"any": True}
    job = {
        "sourceLabels": [f"__meta_kubernetes_pod_label_{_JOB_LABEL}"],
        "targetLabel": "job_name",
    }
    return _object(OPERATOR_API, "PodMonitor", "edl-masters", options.namespace) | {
        "spec": {
            "namespaceSelector": where,
            "selector": {"matchLabels": {names.REPLICA_TYPE_LABEL: names.MASTER_TYPE}},
            "podMetricsEndpoints": [{"port": "http", "relabelings": [job]}],
        }
    }


def _object(api_version: str, kind: str, name: str, namespace: str) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}
