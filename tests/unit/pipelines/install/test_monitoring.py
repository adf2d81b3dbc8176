"""Rules, dashboards and monitors are made from the declared metrics."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.monitoring.catalog import PROCESSES
from edl_workflows.core.monitoring.metric import Metric
from edl_workflows.pipelines.cli.root import run
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.monitoring.alerts import ALERTS, Alert
from edl_workflows.pipelines.install.monitoring.dashboards import DASHBOARDS, Dashboard, render_dashboard
from edl_workflows.pipelines.install.monitoring.manifests import RUNBOOKS, rules
from edl_workflows.pipelines.install.options import InstallOptions

ROOT = Path(__file__).parents[4]
SERIES: dict[str, Metric] = {
    series: metric for process in PROCESSES for metric in process.all_metrics for series in metric.series
}
TARGET_LABELS = {"pod", "namespace", "job_name", "le"}
"""Labels that the monitors add, or that histograms have."""
INSTALLATION = InstallOptions("registry.example/edl:1", monitoring=True, prometheus_namespace="monitoring")

_SELECTOR = re.compile(r"\b((?:edl|process)_[a-z0-9_]+)(\{[^}]*\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")


def read_selectors(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The series that an expression selects, with the labels that they must have."""
    for name, labels in _SELECTOR.findall(expression):
        yield name, dict(_MATCHER.findall(labels))


def check_expression(expression: str) -> list[str]:
    """What is wrong with an expression."""
    selectors = list(read_selectors(expression))
    problems = [] if selectors else [f"{expression} selects nothing"]
    known: set[str] = set(TARGET_LABELS)
    for name, labels in selectors:
        if name not in SERIES:
            problems.append(f"{name} is not declared")
            continue
        declared = {label.name: label.values for label in SERIES[name].labels}
        known |= declared.keys()
        for label, text in labels.items():
            values = [] if "$" in text or "." in text else text.split("|")
            if label not in {*declared, *TARGET_LABELS}:
                problems.append(f"{name} has no label {label}")
            elif declared.get(label) and not set(values) <= set(declared[label]):
                problems.append(f"{name} never has {label} {text}")
    grouped = {label.strip() for labels in _GROUPING.findall(expression) for label in labels.split(",")}
    return problems + [f"{expression}: no label {label}" for label in grouped - known]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_is_about_declared_metrics(alert: Alert) -> None:
    """Each expression of an alert names metrics that a process exports, with labels that they have; the
    summary uses labels that the result has."""
    assert check_expression(alert.expression) == []
    used = set(re.findall(r"\$labels\.(\w+)", alert.summary))
    grouped = {label.strip() for labels in _GROUPING.findall(alert.expression) for label in labels.split(",")}
    assert used <= grouped


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_a_panel_is_about_declared_metrics(dashboard: Dashboard) -> None:
    """Each query of a panel names metrics that a process exports, with labels that they have, and so do the
    legends and the variables."""
    for panel in dashboard.panels:
        for query in panel.queries:
            assert check_expression(query.expression) == [], panel.title
            grouped = {
                label.strip() for labels in _GROUPING.findall(query.expression) for label in labels.split(",")
            }
            declared = {
                label for name, _ in read_selectors(query.expression) for label in SERIES[name].label_names
            }
            legend = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
            assert legend <= (grouped or declared | TARGET_LABELS), panel.title
    for label, metric in dashboard.variables:
        assert label in metric.label_names


def test_every_metric_is_seen_somewhere() -> None:
    """Each metric of the controller, the Brain, the Argo agent and the masters is in a dashboard or an
    alert, apart from those that say the same as another one."""
    shown = [q.expression for dashboard in DASHBOARDS for panel in dashboard.panels for q in panel.queries]
    text = " ".join([*shown, *(alert.expression for alert in ALERTS)])
    same = {
        "edl_master_step_seconds",
        "edl_master_redone_seconds",
        "edl_master_records_done",
        "edl_master_cluster_version",
        "edl_master_commits",
        "process_virtual_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
        "process_max_fds",
    }
    declared = {metric.name for process in PROCESSES for metric in process.all_metrics}
    assert {name for name in declared if not re.search(rf"\b{name}", text)} == same


def test_a_wrong_expression_is_noticed() -> None:
    """The check finds names, labels and values that do not exist."""
    assert check_expression("sum(edl_controller_reconcile)")
    assert check_expression('edl_jobs{state="Failed"}')
    assert check_expression('edl_jobs{phase="Broken"}')
    assert check_expression("sum by (queue) (edl_jobs)")
    assert check_expression("1 + 1")


def test_alerts_have_runbooks() -> None:
    """Each rule names a section of the page, which exists, and whose command is the first thing to run."""
    page = (ROOT / RUNBOOKS).read_text(encoding="utf-8")
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for group in rules()["groups"]:
        for rule in group["rules"]:
            path, _, anchor = rule["annotations"]["runbook"].partition("#")
            assert path == RUNBOOKS
            assert f"\n## {rule['alert']}\n" in page
            assert anchor == rule["alert"].lower()
    assert all(f"```bash\n{alert.command}\n```" in page for alert in ALERTS)


def test_panels_lie_side_by_side() -> None:
    """The panels of a dashboard do not overlap, and have numbers of their own."""
    for dashboard in DASHBOARDS:
        panels = render_dashboard(dashboard)["panels"]
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
        assert len(places) == len(panels) == len({panel["id"] for panel in panels})
        assert all(panel["targets"] for panel in panels)


def test_the_installation_has_the_monitors() -> None:
    """`--monitoring` adds rules, monitors and dashboards to the same objects; the PodMonitor selects the
    masters' port in the namespaces with jobs."""
    objects = {(m["kind"], m["metadata"]["name"]): m for m in installation_manifests(INSTALLATION)}
    plain = {
        (m["kind"], m["metadata"]["name"])
        for m in installation_manifests(InstallOptions("registry.example/edl:1"))
    }
    added = objects.keys() - plain
    assert plain <= objects.keys()
    assert {kind for kind, _ in added} == {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"}
    assert len([name for kind, name in added if kind == "ConfigMap"]) == len(DASHBOARDS)
    monitor = objects["PodMonitor", "edl-masters"]["spec"]
    assert monitor["namespaceSelector"] == {"any": True}
    assert monitor["podMetricsEndpoints"][0]["port"] == "http"
    (command,) = (
        container["command"]
        for container in objects["Deployment", "edl-controller"]["spec"]["template"]["spec"]["containers"]
    )
    assert command[command.index("--prometheus-namespace") + 1] == "monitoring"


def test_rules_are_about_their_installation() -> None:
    """The controller of another installation does not hide that none leads here, and the commands are for the
    installation's namespace. Other expressions stay: the metrics of jobs have the jobs' namespaces."""
    options = InstallOptions("i", namespace="team", monitoring=True)
    (manifest,) = (m for m in installation_manifests(options) if m["kind"] == "PrometheusRule")
    own = {rule["alert"]: rule for group in manifest["spec"]["groups"] for rule in group["rules"]}
    leading = own["EdlNoLeadingController"]
    assert leading["expr"] == '(sum(edl_controller_leading{namespace="team"}) or vector(0)) == 0'
    assert check_expression(leading["expr"]) == []
    assert "kubectl -n team get pods" in leading["annotations"]["description"]
    assert not any("edl-system" in str(rule) for rule in own.values())
    expressions = {alert.name: alert.expression for alert in ALERTS}

    assert {name for name, rule in own.items() if rule["expr"] != expressions[name]} == {leading["alert"]}


def test_the_monitor_is_limited_to_the_namespaces_with_jobs() -> None:
    """An installation for two namespaces looks for masters only there."""
    options = InstallOptions("i", monitoring=True, jobs_namespaces=NamespaceSelection(("a", "b")))
    (monitor,) = (m for m in installation_manifests(options) if m["kind"] == "PodMonitor")
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}
    assert monitor["spec"]["selector"]["matchLabels"] == {names.REPLICA_TYPE_LABEL: names.MASTER_TYPE}


def test_files_for_other_installations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`edl monitoring` writes the same rules and dashboards as files, and says which; a folder that can't be
    written to is an error that names it."""
    folder = tmp_path / "new"
    assert run(["monitoring", str(folder)]) == 0
    written = capsys.readouterr().out.split()
    assert sorted(written) == sorted(str(path) for path in folder.iterdir())
    assert yaml.safe_load((folder / "rules.yaml").read_text()) == rules()
    assert json.loads((folder / "edl-fleet.json").read_text())["uid"] == "edl-fleet"
    (tmp_path / "file").touch()
    assert run(["monitoring", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("namespace", "labels", "message"),
    [
        ("Monitoring", {}, "not a valid namespace"),
        ("", {"app": "prometheus"}, "but no namespace"),
        ("monitoring", {"app": "a b"}, "can't be the value of a label"),
        ("monitoring", {"a/b/c": "x"}, "is not a label"),
    ],
)
def test_a_wrong_prometheus_is_refused(namespace: str, labels: dict[str, str], message: str) -> None:
    """The API server would refuse the policies of all jobs, and the jobs would wait for them."""
    with pytest.raises(InvalidError, match=message):
        InstallOptions("i", prometheus_namespace=namespace, prometheus_labels=labels)
