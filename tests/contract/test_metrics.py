"""Each process exports the metrics that are declared for it, and no others."""

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.monitoring.catalog import PROCESSES
from edl_workflows.core.monitoring.metric import Metric, MetricType, MonitoredProcess
from edl_workflows.pipelines.argo.agent.metrics import ArgoAgentMetrics
from edl_workflows.services.brain.metrics import BrainMetrics
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.di_server.server import DiServerMetrics
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.metrics import render_metrics
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings
from tests.unit.services.master.served_master import GatedStore
from tests.unit.services.master.simulated_job import SimulatedJob

PACKAGE = Path(__file__).parents[2] / "edl_workflows"
BUILDERS = PACKAGE / "runtime" / "process" / "metrics.py"


def render_master() -> bytes:
    """The metrics of the master of a job that trains."""
    job = SimulatedJob(JobSettings("digits", "default", parse_nodes("ps=1,worker=2")), shards=100)
    job.calm()
    return render_metrics(Master(job.state, GatedStore(), lambda: job.now))


EXPORTED: dict[str, Callable[[], bytes]] = {
    "controller": lambda: generate_latest(ControllerMetrics().registry),
    "di-server": lambda: generate_latest(DiServerMetrics().registry),
    "brain": lambda: generate_latest(BrainMetrics().registry),
    "argo-agent": lambda: generate_latest(ArgoAgentMetrics().registry),
    "master": render_master,
}


def exported_types(text: str) -> dict[str, str]:
    """The types of the exported metrics, by the name that Prometheus stores."""
    families = text_string_to_metric_families(text)
    ending = {"counter": "_total"}
    # Beside each counter and histogram the client library exports when it was made.
    return {
        family.name + ending.get(family.type, ""): family.type
        for family in families
        if not family.name.endswith("_created")
    }


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.name)
def test_a_process_exports_what_is_declared_for_it(process: MonitoredProcess) -> None:
    """The exported metrics are the declared ones, with their types and texts, and there are no others."""
    text = EXPORTED[process.name]().decode()

    assert exported_types(text) == {metric.name: metric.type for metric in process.all_metrics}
    helps = dict(line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# HELP edl_"))
    own = [metric for metric in process.all_metrics if metric.name.startswith("edl_")]
    assert {metric.name: helps[metric.name] for metric in own} == {m.name: m.text for m in own}


def test_samples_have_the_declared_labels() -> None:
    """The series of a master's metrics have the labels that are declared for them."""
    labels = {
        name: {*metric.label_names, *(["le"] if name.endswith("_bucket") else [])}
        for metric in PROCESSES[-1].metrics
        for name in metric.series
    }
    samples = [s for f in text_string_to_metric_families(render_master().decode()) for s in f.samples]

    assert samples
    assert [sample for sample in samples if set(sample.labels) != labels[sample.name]] == []


def test_metrics_are_made_from_declarations_only() -> None:
    """No module but that of the builders takes a class of metrics from the client library."""
    makers = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}

    def imported(path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prometheus_client"):
                yield from (alias.name for alias in node.names)

    modules = [path for path in PACKAGE.rglob("*.py") if path != BUILDERS]
    assert len(modules) > 500
    users = {str(path): set(imported(path)) for path in modules}
    families = {name for names in users.values() for name in names if name.endswith("MetricFamily")}
    assert not families
    assert {path: names & makers for path, names in users.items() if names & makers} == {}


def test_a_name_is_declared_once() -> None:
    """No two declarations have one name, and the name of a metric with a base unit ends in the unit."""
    metrics = {metric for process in PROCESSES for metric in process.all_metrics}
    names = sorted(metric.name for metric in metrics)

    assert [first for first, second in pairwise(names) if first == second] == []
    for metric in metrics:
        base = metric.name.removesuffix("_total")
        assert " " in metric.unit or base.endswith(metric.unit), metric.name


@pytest.mark.parametrize(
    ("name", "kind", "buckets"),
    [
        ("edl_jobs", MetricType.COUNTER, ()),
        ("edl_jobs_total", MetricType.GAUGE, ()),
        ("edl_wait_seconds", MetricType.HISTOGRAM, ()),
        ("edl_jobs", MetricType.GAUGE, (1.0,)),
        ("Jobs", MetricType.GAUGE, ()),
    ],
)
def test_a_wrong_declaration_is_refused(name: str, kind: MetricType, buckets: tuple[float, ...]) -> None:
    """Names that Prometheus' conventions forbid, and histograms without buckets, are errors."""
    with pytest.raises(InvalidError, match=name):
        Metric(name, kind, "A text.", buckets=buckets)
