"""The metrics of the DI server, of Brain and of the Argo agent."""

from edl_workflows.core.monitoring.metric import Label, MonitoredProcess, counter, gauge, histogram
from edl_workflows.core.monitoring.processes import SERVER_METRICS

DI_ANSWERS = counter(
    "edl_di_server_answers_total",
    "Responses by method, call and status code.",
    Label("method"),
    Label("call", ("replicas", "profilings", "other")),
    Label("code"),
)

BRAIN_CALLS = ("metrics", "optimize", "states", "jobs", "plans", "cluster")
_BRAIN_CALL = Label("call", (*BRAIN_CALLS, "other"))
BRAIN_ANSWERS = counter(
    "edl_brain_answers_total",
    "Responses by method, call and status code.",
    Label("method"),
    _BRAIN_CALL,
    Label("code"),
)
BRAIN_SECONDS = histogram(
    "edl_brain_answer_seconds",
    "Time until a response began; for reports, until they were durable.",
    _BRAIN_CALL,
)
BRAIN_WAITING = gauge("edl_brain_store_waiting", "Writes that wait for the database.")

ARGO_SERVING = gauge("edl_argo_agent_serving", "Steps that have begun and have no result yet.")
ARGO_RESULTS = counter(
    "edl_argo_agent_results_total",
    "Steps with a result, by stage and phase.",
    Label("stage"),
    Label("phase", ("Succeeded", "Failed", "Error")),
)
ARGO_CANCELLATIONS = counter(
    "edl_argo_agent_cancellations_total",
    "Objects cancelled because their step was removed, by action.",
    Label("action", ("delete", "suspend")),
)
ARGO_DEADLINES = counter(
    "edl_argo_agent_deadlines_total", "Workflows that were annotated because their deadline had passed."
)
ARGO_LEADING = gauge("edl_argo_agent_leading", "1 while this process is the leader, else 0.")

DI_SERVER = MonitoredProcess(
    "di-server",
    "DI server",
    "`GET /metrics` of `edl di-server run` (`--metrics-port`).",
    (DI_ANSWERS,),
    SERVER_METRICS,
)
BRAIN = MonitoredProcess(
    "brain",
    "Brain",
    "`GET /metrics` of `edl brain run`, on its own port (`--metrics-host`, `--metrics-port`).",
    (BRAIN_ANSWERS, BRAIN_SECONDS, BRAIN_WAITING),
    SERVER_METRICS,
)
ARGO_AGENT = MonitoredProcess(
    "argo-agent",
    "Argo agent",
    "`GET /metrics` of `edl argo agent` (`--metrics-port`).",
    (ARGO_SERVING, ARGO_RESULTS, ARGO_CANCELLATIONS, ARGO_DEADLINES, ARGO_LEADING),
    SERVER_METRICS,
)
