"""The metrics of a job's master."""

from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.core.monitoring.metric import PAUSES, Label, MonitoredProcess, counter, gauge, histogram

_NODE = Label("node")
_DATASET = Label("dataset")

STEP = gauge("edl_master_global_step", "Newest global step of the active version.")
SPEED = gauge("edl_master_steps_per_second", "Speed in the last minute.", unit="steps per second")
STEP_SECONDS = gauge("edl_master_step_seconds", "Mean duration of a step in the last minute.", unit="seconds")
GOODPUT = gauge(
    "edl_master_goodput_ratio",
    "Useful time divided by elapsed time, from 0 to 1.",
    page="../explanation/fault-tolerance.md#goodput",
)
USEFUL = gauge("edl_master_useful_seconds", "Time spent on steps that were kept.", unit="seconds")
REDONE = gauge("edl_master_redone_seconds", "Time spent on steps that were lost.", unit="seconds")
ELAPSED = gauge(
    "edl_master_elapsed_seconds", "Time since the job was created, without suspensions.", unit="seconds"
)
TIME = gauge(
    "edl_master_time_seconds",
    "Time since the job was created, by cause; without suspended the causes sum to "
    "edl_master_elapsed_seconds.",
    Label("cause", tuple(map(str, TimeCause))),
    unit="seconds",
    page="../explanation/fault-tolerance.md#time-by-cause",
)
RESTARTS = counter(
    "edl_master_restarts_total",
    "Nodes that ended without success, by reason, and restarts of all training processes (Recovery, "
    "Rollback, Hang).",
    Label("cause"),
    page="relaunch.md",
)
STALL_SECONDS = histogram(
    "edl_master_stall_seconds",
    "Time from the last step of a training group to the first step of the next one, for failures and for "
    "plans.",
    buckets=PAUSES,
)
DETECTION_SECONDS = histogram(
    "edl_master_detection_seconds",
    "Time until the master noticed a fault: since the last progress for a hang, since the others wait for an "
    "absent member.",
    Label("fault", ("hang", "absence")),
    buckets=PAUSES,
)
RESTORE_SECONDS = histogram(
    "edl_master_restore_seconds",
    "Time for which training waited for the model to be restored.",
    buckets=PAUSES,
)
BLOCKING_SECONDS = histogram(
    "edl_master_save_blocking_seconds",
    "Time for which a save of a checkpoint stopped training.",
    buckets=PAUSES,
)
HANGING = gauge("edl_master_hanging", "1 while training stands still, else 0.")
FAILED_SAVES = gauge("edl_master_failed_saves", "Failed saves since the newest successful one.")
SAVE_FAILURES = counter("edl_master_save_failures_total", "Failed saves in the life of the job.")
STRAGGLERS = gauge(
    "edl_master_straggler_ratio", "How many times slower than the median a node is; stragglers only.", _NODE
)
DATASET_DONE = gauge("edl_master_dataset_records_done", "Acknowledged records of all epochs.", _DATASET)
DATASET_RECORDS = gauge(
    "edl_master_dataset_records", "Records of all epochs, if their number is finite.", _DATASET
)
RECORDS_DONE = gauge("edl_master_records_done", "Acknowledged records of all data sets.")
VERSION = gauge("edl_master_cluster_version", "The version that trains.")
COMMITS = gauge("edl_master_commits", "Writes of the state since this master started.")
NODES = gauge("edl_master_nodes", "Number of nodes by type and status.", Label("type"), Label("status"))
NODE_CPU = gauge("edl_master_node_cpu_cores", "CPU that a node uses.", _NODE, unit="cores")
NODE_MEMORY = gauge("edl_master_node_memory_mebibytes", "Memory that a node uses.", _NODE, unit="mebibytes")

MASTER = MonitoredProcess(
    "master",
    "Master",
    "`GET /metrics` on port 50001 of a job's master. A restarted master continues them from its stored "
    "state; only histograms begin anew.",
    (
        STEP,
        SPEED,
        STEP_SECONDS,
        GOODPUT,
        USEFUL,
        REDONE,
        ELAPSED,
        TIME,
        RESTARTS,
        STALL_SECONDS,
        DETECTION_SECONDS,
        RESTORE_SECONDS,
        BLOCKING_SECONDS,
        HANGING,
        FAILED_SAVES,
        SAVE_FAILURES,
        STRAGGLERS,
        DATASET_DONE,
        DATASET_RECORDS,
        RECORDS_DONE,
        VERSION,
        COMMITS,
        NODES,
        NODE_CPU,
        NODE_MEMORY,
    ),
)
