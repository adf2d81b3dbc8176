"""The controller's metrics."""

from edl_workflows.core.jobs.usage.model import UsagePart
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.monitoring.metric import (
    WAITS,
    Label,
    MonitoredProcess,
    counter,
    gauge,
    histogram,
)
from edl_workflows.core.monitoring.processes import KIND, NAMESPACE, SERVER_METRICS

RECONCILIATIONS = counter(
    "edl_controller_reconcile_total",
    "Reconciliations by kind and result.",
    KIND,
    Label("result", ("success", "conflict", "unavailable", "error", "defect")),
)
RECONCILE_SECONDS = histogram(
    "edl_controller_reconcile_seconds", "Duration of one object's reconciliation, with its writes.", KIND
)
QUEUE_DEPTH = gauge("edl_controller_queue_depth", "Jobs that wait for a worker thread.")
RETRIES = counter("edl_controller_retries_total", "Jobs re-queued with a back-off.")
ALLOCATION_SECONDS = histogram(
    "edl_controller_allocation_seconds",
    "Duration of one allocation of preemptible DIJobs.",
    Label("policy"),
)
UNALLOCATED_JOBS = gauge(
    "edl_controller_unallocated_jobs",
    "Preemptible DIJobs that wait for resources, from the first decision on; only of the replica that places "
    "jobs.",
)
AUTOSCALER_SECONDS = histogram("edl_controller_autoscaler_seconds", "Duration of one plan of the autoscaler.")
AUTOSCALER_JOBS = gauge(
    "edl_controller_autoscaler_jobs",
    "Jobs that the autoscaler's last plan changes, and jobs that it holds back below their maximum; only of "
    "the replica that autoscales.",
    Label("result", ("changed", "held back")),
)
PROGRESS_PERIOD = gauge(
    "edl_controller_progress_period_seconds",
    "Least time between two writes of mere progress by a job's master, from the number of running jobs.",
    unit="seconds",
    page="../explanation/running-jobs.md#one-budget-for-all-jobs",
)
DEFINITION_MISSING = gauge(
    "edl_controller_definition_missing",
    "1 while the API server lacks the kind's definition, so that the kind is not reconciled.",
    KIND,
)
LEADING = gauge(
    "edl_controller_leading", "1 while this process is the leader, or owns a partition of the jobs, else 0."
)

_JOB = (KIND, NAMESPACE, Label("job_name"), Label("pipeline"), Label("part", tuple(map(str, UsagePart))))
_USAGE_PAGE = "../how-to/see-what-jobs-cost.md"

JOBS = gauge(
    "edl_jobs",
    "Jobs by phase, in the phases that all kinds have in common.",
    KIND,
    NAMESPACE,
    Label("phase", tuple(map(str, JobPhase))),
)
LONGEST_WAIT = gauge(
    "edl_jobs_longest_wait_seconds",
    "For how long the job that waits longest has been Pending, or has waited for its first training pod to "
    "run; no series if none waits.",
    KIND,
    NAMESPACE,
    unit="seconds",
)
ENDED = counter(
    "edl_jobs_ended_total",
    "Jobs that have ended since the controller started, by how they ended.",
    KIND,
    NAMESPACE,
    Label("phase", (str(JobPhase.SUCCEEDED), str(JobPhase.FAILED))),
)
QUEUE_SECONDS = histogram(
    "edl_job_queue_seconds",
    "Time from a job's creation until its first training pod ran.",
    KIND,
    NAMESPACE,
    buckets=WAITS,
)
RESTARTS = counter(
    "edl_job_restarts_total",
    "Restarts of jobs by cause: of ElasticJobs as their masters count them, of other kinds the pods that "
    "failed (Disrupted, OOMKilled, Killed, Error). Other: a cause that the controller does not know.",
    KIND,
    NAMESPACE,
    Label("cause"),
    page="relaunch.md",
)
CPU_HOURS = gauge(
    "edl_job_cpu_core_hours",
    "Core-hours that a job's pods have held by their requests, by what they were held for.",
    *_JOB,
    unit="core hours",
    page=_USAGE_PAGE,
)
MEMORY_HOURS = gauge(
    "edl_job_memory_gibibyte_hours",
    "Gibibyte-hours of memory likewise.",
    *_JOB,
    unit="gibibyte hours",
    page=_USAGE_PAGE,
)
GPU_HOURS = gauge("edl_job_gpu_hours", "GPU-hours likewise.", *_JOB, unit="GPU hours", page=_USAGE_PAGE)

CONTROLLER = MonitoredProcess(
    "controller",
    "Controller",
    "`GET /metrics` of `edl controller run` (`--metrics-host`, `--metrics-port`; the controller inside "
    "`edl local up` has none).",
    (
        JOBS,
        LONGEST_WAIT,
        ENDED,
        QUEUE_SECONDS,
        RESTARTS,
        CPU_HOURS,
        MEMORY_HOURS,
        GPU_HOURS,
        RECONCILIATIONS,
        RECONCILE_SECONDS,
        QUEUE_DEPTH,
        RETRIES,
        ALLOCATION_SECONDS,
        UNALLOCATED_JOBS,
        AUTOSCALER_SECONDS,
        AUTOSCALER_JOBS,
        PROGRESS_PERIOD,
        DEFINITION_MISSING,
        LEADING,
    ),
    SERVER_METRICS,
    "Metrics of jobs come from the replica that owns the job. Hours are those in the jobs' statuses, so they "
    "go on after a restart of the controller; counters and histograms begin anew. The series of one job end "
    "ten minutes after the job's end, or with its deletion; a namespace's counters and histograms of jobs "
    "end ten minutes after the deletion of its last job.\n\n"
    "`/healthz` and `/livez` fail if the process needs a restart. `/readyz` shows what the process still "
    "waits for.",
)
