"""Grafana's dashboards: panels with queries over the declared metrics, and their JSON."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.monitoring import controller, master, processes, servers
from edl_workflows.core.monitoring.metric import Metric

Document = dict[str, Any]

SCHEMA_VERSION = 39
"""Of Grafana 10 and 11; newer versions convert it."""
WIDTH, COLUMNS, HEIGHT = 24, 2, 8
"""Grafana's grid has 24 columns; each panel takes one of two columns, and 8 rows."""

_DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """A query of a panel.

    Attributes:
        expression: in PromQL.
        legend: the name of each series, as Grafana's template.
    """

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A panel.

    Attributes:
        title: its title.
        unit: of its values, as Grafana names it.
        queries: its queries.
        stacked: whether the series are parts of a whole.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False


@dataclass(frozen=True)
class Dashboard:
    """A dashboard.

    Attributes:
        name: of its file and object.
        title: its title.
        panels: in reading order.
        variables: labels that a reader chooses, with the metric that has them.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, Metric], ...] = ()


def _rate(metric: Metric, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({metric.name}{where}[$__rate_interval]))"


def _quantile(metric: Metric, share: float, by: str = "", where: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    name = f"{metric.name}_bucket{where}"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({name}[$__rate_interval])))"


def _quantiles(metric: Metric, by: str = "", where: str = "") -> tuple[Query, ...]:
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        Query(_quantile(metric, share, by, where), f"{legend}p{share * 100:g}") for share in (0.5, 0.99)
    )


_NAMESPACE = '{namespace=~"$namespace"}'
_JOB = '{namespace=~"$namespace", job_name=~"$job_name"}'
_HELD = (controller.GPU_HOURS, controller.CPU_HOURS, controller.MEMORY_HOURS)


def _held(metric: Metric, unit: str, by: str, where: str) -> Panel:
    return Panel(
        f"{unit} held by the jobs, by what for" if by == "part" else f"{unit} by {by}",
        "none",
        (Query(f"sum by ({by}) ({metric.name}{where})", f"{{{{{by}}}}}"),),
        stacked=True,
    )


FLEET = Dashboard(
    "edl-fleet",
    "Elastic jobs: fleet",
    (
        Panel(
            "Jobs by phase",
            "none",
            (Query(f"sum by (phase) ({controller.JOBS.name}{_NAMESPACE})", "{{phase}}"),),
            stacked=True,
        ),
        Panel(
            "Longest wait",
            "s",
            (
                Query(
                    f"max by (kind, namespace) ({controller.LONGEST_WAIT.name}{_NAMESPACE})",
                    "{{kind}} {{namespace}}",
                ),
            ),
        ),
        Panel("Time in the queue", "s", _quantiles(controller.QUEUE_SECONDS, "kind", _NAMESPACE)),
        Panel(
            "Restarts by cause",
            "none",
            (
                Query(
                    "sum by (kind, cause) "
                    f"(increase({controller.RESTARTS.name}{_NAMESPACE}[$__rate_interval]))",
                    "{{kind}} {{cause}}",
                ),
            ),
            stacked=True,
        ),
        _held(controller.GPU_HOURS, "GPU-hours", "part", _NAMESPACE),
        _held(controller.GPU_HOURS, "GPU-hours", "namespace", _NAMESPACE),
        _held(controller.CPU_HOURS, "Core-hours", "part", _NAMESPACE),
        _held(controller.CPU_HOURS, "Core-hours", "pipeline", _NAMESPACE),
        _held(controller.MEMORY_HOURS, "GiB-hours", "part", _NAMESPACE),
        Panel(
            "Goodput of ElasticJobs",
            "percentunit",
            (
                Query(
                    f"sum by (namespace) ({master.USEFUL.name}{_NAMESPACE}) / sum by (namespace) "
                    f"({master.ELAPSED.name}{_NAMESPACE})",
                    "{{namespace}}",
                ),
            ),
        ),
    ),
    (("namespace", controller.JOBS),),
)

JOB = Dashboard(
    "edl-job",
    "Elastic jobs: one job",
    (
        Panel("Step", "none", (Query(f"{master.STEP.name}{_JOB}", "{{job_name}}"),)),
        Panel("Steps per second", "none", (Query(f"{master.SPEED.name}{_JOB}", "{{job_name}}"),)),
        Panel("Goodput", "percentunit", (Query(f"{master.GOODPUT.name}{_JOB}", "{{job_name}}"),)),
        Panel(
            "Time by cause",
            "s",
            (Query(f"sum by (cause) ({master.TIME.name}{_JOB})", "{{cause}}"),),
            stacked=True,
        ),
        Panel(
            "Nodes",
            "none",
            (Query(f"sum by (type, status) ({master.NODES.name}{_JOB})", "{{type}} {{status}}"),),
            stacked=True,
        ),
        Panel(
            "Records",
            "none",
            (
                Query(f"{master.DATASET_DONE.name}{_JOB}", "{{dataset}} done"),
                Query(f"{master.DATASET_RECORDS.name}{_JOB}", "{{dataset}} all"),
            ),
        ),
        Panel("Stalls between training groups", "s", _quantiles(master.STALL_SECONDS, where=_JOB)),
        Panel("Restores", "s", _quantiles(master.RESTORE_SECONDS, where=_JOB)),
        Panel("Saves that stop training", "s", _quantiles(master.BLOCKING_SECONDS, where=_JOB)),
        Panel("Detection of faults", "s", _quantiles(master.DETECTION_SECONDS, "fault", _JOB)),
        Panel(
            "Failed saves and hangs",
            "none",
            (
                Query(f"{master.FAILED_SAVES.name}{_JOB}", "{{job_name}} failed saves in a row"),
                Query(f"{master.SAVE_FAILURES.name}{_JOB}", "{{job_name}} failed saves"),
                Query(f"{master.HANGING.name}{_JOB}", "{{job_name}} hangs"),
            ),
        ),
        Panel(
            "Restarts by cause",
            "none",
            (Query(f"sum by (cause) ({master.RESTARTS.name}{_JOB})", "{{cause}}"),),
            stacked=True,
        ),
        Panel("Stragglers", "none", (Query(f"{master.STRAGGLERS.name}{_JOB}", "{{node}}"),)),
        Panel("CPU of nodes", "none", (Query(f"{master.NODE_CPU.name}{_JOB}", "{{node}}"),)),
        Panel("Memory of nodes", "decmbytes", (Query(f"{master.NODE_MEMORY.name}{_JOB}", "{{node}}"),)),
        *(
            _held(metric, unit, "part", _JOB)
            for metric, unit in zip(_HELD, ("GPU-hours", "Core-hours", "GiB-hours"), strict=True)
        ),
    ),
    (("namespace", controller.GPU_HOURS), ("job_name", controller.CPU_HOURS)),
)


def _process_panels(pod: str) -> tuple[Panel, ...]:
    """CPU, memory and requests of the pods whose names begin like this."""
    where = f'{{pod=~"{pod}.*"}}'
    cpu, memory, *_ = processes.PROCESS_METRICS
    return (
        Panel("CPU", "none", (Query(f"rate({cpu.name}{where}[$__rate_interval])", "{{pod}}"),)),
        Panel("Memory", "bytes", (Query(f"{memory.name}{where}", "{{pod}}"),)),
        Panel(
            "Requests to the API server",
            "reqps",
            (
                Query(
                    _rate(processes.API_REQUESTS, "verb, resource, code", where),
                    "{{verb}} {{resource}} {{code}}",
                ),
            ),
        ),
        Panel(
            "Time of requests to the API server",
            "s",
            _quantiles(processes.API_SECONDS, "verb", where),
        ),
    )


CONTROL_PLANE = Dashboard(
    "edl-control-plane",
    "Elastic jobs: control plane",
    (
        Panel("Leading replicas", "none", (Query(f"{controller.LEADING.name}", "{{pod}}"),)),
        Panel("Jobs that wait for a worker thread", "none", (Query(controller.QUEUE_DEPTH.name, "{{pod}}"),)),
        Panel(
            "Reconciliations",
            "ops",
            (Query(_rate(controller.RECONCILIATIONS, "kind, result"), "{{kind}} {{result}}"),),
        ),
        Panel("Time of reconciliations", "s", _quantiles(controller.RECONCILE_SECONDS, "kind")),
        Panel("Retries", "ops", (Query(_rate(controller.RETRIES, "pod"), "{{pod}}"),)),
        Panel(
            "Missing definitions",
            "none",
            (Query(f"max by (kind) ({controller.DEFINITION_MISSING.name})", "{{kind}}"),),
        ),
        Panel("Time of allocations", "s", _quantiles(controller.ALLOCATION_SECONDS, "policy")),
        Panel("Preemptible DIJobs that wait", "none", (Query(controller.UNALLOCATED_JOBS.name, "{{pod}}"),)),
        Panel("Time of the autoscaler's plans", "s", _quantiles(controller.AUTOSCALER_SECONDS)),
        Panel(
            "Jobs in the autoscaler's plan", "none", (Query(controller.AUTOSCALER_JOBS.name, "{{result}}"),)
        ),
        Panel("Period of progress writes", "s", (Query(controller.PROGRESS_PERIOD.name, "{{pod}}"),)),
        *_process_panels("edl-controller"),
    ),
)

BRAIN = Dashboard(
    "edl-brain",
    "Elastic jobs: Brain",
    (
        Panel(
            "Responses",
            "reqps",
            (Query(_rate(servers.BRAIN_ANSWERS, "call, code"), "{{call}} {{code}}"),),
        ),
        Panel("Time of responses", "s", _quantiles(servers.BRAIN_SECONDS, "call")),
        Panel("Writes that wait for the database", "none", (Query(servers.BRAIN_WAITING.name, "{{pod}}"),)),
        *_process_panels("edl-brain"),
    ),
)

ARGO_AGENT = Dashboard(
    "edl-argo-agent",
    "Elastic jobs: Argo agent",
    (
        Panel("Steps that are served", "none", (Query(servers.ARGO_SERVING.name, "{{pod}}"),)),
        Panel("Leading replicas", "none", (Query(servers.ARGO_LEADING.name, "{{pod}}"),)),
        Panel(
            "Results",
            "ops",
            (Query(_rate(servers.ARGO_RESULTS, "stage, phase"), "{{stage}} {{phase}}"),),
        ),
        Panel(
            "Cancelled objects, and workflows after their deadline",
            "ops",
            (
                Query(_rate(servers.ARGO_CANCELLATIONS, "action"), "{{action}}"),
                Query(_rate(servers.ARGO_DEADLINES, "pod"), "deadline {{pod}}"),
            ),
        ),
        *_process_panels("edl-argo-agent"),
    ),
)

DASHBOARDS = (FLEET, JOB, CONTROL_PLANE, BRAIN, ARGO_AGENT)


def render_dashboard(dashboard: Dashboard) -> Document:
    """A dashboard as Grafana's JSON. The reader chooses the data source."""
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "tags": ["edl-workflows"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables(dashboard))},
        "panels": [_render_panel(panel, index) for index, panel in enumerate(dashboard.panels)],
    }


def _variables(dashboard: Dashboard) -> Iterator[Document]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    chosen: list[str] = []
    for label, metric in dashboard.variables:
        where = "{" + ", ".join(f'{name}=~"${name}"' for name in chosen) + "}" if chosen else ""
        chosen.append(label)
        yield {
            "name": label,
            "label": label.replace("_", " "),
            "type": "query",
            "datasource": _DATA_SOURCE,
            "query": {"query": f"label_values({metric.name}{where}, {label})", "refId": label},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "sort": 1,
            "current": {"text": "All", "value": "$__all"},
        }


def _render_panel(panel: Panel, index: int) -> Document:
    width = WIDTH // COLUMNS
    row, column = divmod(index, COLUMNS)
    custom = {"fillOpacity": 30, "stacking": {"mode": "normal"}} if panel.stacked else {"fillOpacity": 5}
    return {
        "id": index + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _DATA_SOURCE,
        "gridPos": {"x": column * width, "y": row * HEIGHT, "w": width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _DATA_SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }
