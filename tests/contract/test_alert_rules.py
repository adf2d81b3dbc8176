"""Prometheus' own tool accepts the rules, and each alert fires for its fault, and only then.

`make promtool` builds the tool; without it these tests are skipped.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.pipelines.install.monitoring.alerts import ALERTS, Alert
from edl_workflows.pipelines.install.monitoring.manifests import rules
from tests.cases.alert_faults import FAULTS

RULES = "rules.yaml"
BUILT = Path.home() / ".cache/edl-workflows/promtool/promtool"
"""Where `make promtool` builds it."""


@pytest.fixture(scope="module")
def promtool() -> Path:
    """The tool, if it is there."""
    tool = shutil.which("promtool", path=f"{BUILT.parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if tool is None:
        pytest.skip("promtool is needed: build it with `make promtool`")
    return Path(tool)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the rules."""
    (tmp_path / RULES).write_text(yaml.safe_dump(rules()))
    return tmp_path


def run(promtool: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the tool in a folder."""
    return subprocess.run([promtool, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_prometheus_accepts_the_rules(promtool: Path, folder: Path) -> None:
    """The file is valid, and each expression parses."""
    checked = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", RULES],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(ALERTS)} rules found" in checked.stdout


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_for_its_fault(promtool: Path, folder: Path, alert: Alert) -> None:
    """Prometheus evaluates the rule over the series of the fault: the alert fires with its labels and texts
    once the fault has lasted, and not in the first minutes, before there is one."""
    fault = FAULTS[alert.name]
    annotations = next(
        rule["annotations"]
        for group in rules()["groups"]
        for rule in group["rules"]
        if rule["alert"] == alert.name
    )
    fires = {
        "exp_labels": {"severity": str(alert.severity), **fault.labels},
        "exp_annotations": {**annotations, "summary": fault.summary},
    }
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in fault.series.items()],
        "alert_rule_test": [
            {"eval_time": "1m", "alertname": alert.name, "exp_alerts": []},
            {"eval_time": f"{fault.minutes}m", "alertname": alert.name, "exp_alerts": [fires]},
        ],
    }
    document = {"rule_files": [RULES], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yaml").write_text(json.dumps(document))
    tested = run(promtool, folder, "test", "rules", "test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_fault() -> None:
    """No alert is without a fault, and no fault without an alert."""
    assert FAULTS.keys() == {alert.name for alert in ALERTS}
