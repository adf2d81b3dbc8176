"""The alerts, with what to do about each."""

from dataclasses import dataclass, replace
from enum import StrEnum

from edl_workflows.core.monitoring import controller, master, processes, servers
from edl_workflows.pipelines.install.options import NAMESPACE


class AlertSeverity(StrEnum):
    """How soon somebody must look."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True)
class Alert:
    """An alert of Prometheus, and its runbook.

    Attributes:
        name: its name.
        expression: in PromQL; the alert fires for each series of the result.
        minutes: for how long the result must have the series.
        severity: how soon somebody must look.
        summary: one line, with the labels of the series as Prometheus' templates have them.
        meaning: what has happened, and what follows for users.
        command: what to run first.
        remedy: what to do then.
    """

    name: str
    expression: str
    minutes: int
    severity: AlertSeverity
    summary: str
    meaning: str
    command: str
    remedy: str

    def in_namespace(self, namespace: str) -> "Alert":
        """The alert of the installation in a namespace: about its own controller, with commands for it.

        Metrics of jobs have the namespaces of the jobs, so only some alerts are about one installation.
        """
        leading = controller.LEADING.name
        return replace(
            self,
            expression=self.expression.replace(leading, f'{leading}{{namespace="{namespace}"}}'),
            command=self.command.replace(_IN_NAMESPACE, f"-n {namespace}"),
            remedy=self.remedy.replace(_IN_NAMESPACE, f"-n {namespace}"),
        )


_IN_NAMESPACE = f"-n {NAMESPACE}"
_FAILED = f'{controller.ENDED.name}{{phase="Failed"}}'
_LOGS = "kubectl -n edl-system logs deployment/edl-controller --tail=200"

CONTROL_PLANE = (
    Alert(
        "EdlNoLeadingController",
        f"(sum({controller.LEADING.name}) or vector(0)) == 0",
        5,
        AlertSeverity.CRITICAL,
        "No controller leads",
        "No replica of the controller has the Lease, or none is scraped. Running jobs train on, but no job "
        "is started, no pod is replaced and no plan is carried out.",
        "kubectl -n edl-system get pods,leases -l app.kubernetes.io/part-of=edl-workflows",
        "If no pod runs, look at its events (`kubectl -n edl-system describe pods`). If pods run and none "
        "leads, their log says which request the API server refuses. If all is well there, Prometheus does "
        "not reach port 8080: look at its targets.",
    ),
    Alert(
        "EdlReconciliationsFail",
        f'sum by (kind, result) (rate({controller.RECONCILIATIONS.name}{{result=~"error|defect"}}[10m])) > 0',
        15,
        AlertSeverity.WARNING,
        "Reconciliations of {{ $labels.kind }}s fail ({{ $labels.result }})",
        "The decision about at least one object fails again and again. `error`: the API server refuses a "
        "write. `defect`: a bug. Other jobs are not affected.",
        "kubectl get events -A --field-selector reason=ReconcileFailed",
        "The Event names the object and the reason. Missing permissions come from an installation of another "
        "version: apply the manifests of `edl install` again. Report a defect with the trace in the log.",
    ),
    Alert(
        "EdlControllerFallsBehind",
        f"max({controller.QUEUE_DEPTH.name}) > 100",
        10,
        AlertSeverity.WARNING,
        "{{ $value }} jobs wait for a worker thread of the controller",
        "The controller gets more changes than it can handle, so that pods are started and replaced late.",
        _LOGS,
        "If requests to the API server are slow (panel *Requests to the API server*), the API server is the "
        "bottleneck. Otherwise give the controller more CPU, or share the jobs: `edl install "
        "--controller-partitions`.",
    ),
    Alert(
        "EdlDefinitionMissing",
        f"max by (kind) ({controller.DEFINITION_MISSING.name}) > 0",
        5,
        AlertSeverity.CRITICAL,
        "The API server has no {{ $labels.kind }}s",
        "The definition was deleted, or never installed. Jobs of this kind are not reconciled.",
        "edl crds install",
        "Deleting a definition deletes its objects: restore jobs from their manifests.",
    ),
    Alert(
        "EdlApiRequestsFail",
        f'sum by (verb, resource) (rate({processes.API_REQUESTS.name}{{code=~"0|5.."}}[10m])) / sum by '
        f"(verb, resource) (rate({processes.API_REQUESTS.name}[10m])) > 0.05",
        10,
        AlertSeverity.WARNING,
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.verb }} {{ $labels.resource }} fail",
        "The API server does not answer (code 0), or with an error of its own (5xx). The processes retry.",
        "kubectl get --raw='/readyz?verbose'",
        "If the API server is overloaded, see whether its flow control rejects requests: `kubectl get --raw "
        "/metrics | grep apiserver_flowcontrol_rejected_requests_total`.",
    ),
)

JOBS = (
    Alert(
        "EdlJobHangs",
        f"max by (namespace, job_name) ({master.HANGING.name}) > 0",
        5,
        AlertSeverity.WARNING,
        "Training of {{ $labels.namespace }}/{{ $labels.job_name }} stands still",
        "No step was made for the job's `hangTimeoutSeconds`. Its resources are held for nothing.",
        "edl describe JOB -n NAMESPACE",
        "The output has the stacks of all training processes; the rarest is most likely the cause. Without "
        "`hangAction: restart` nothing else happens: suspend and resume the job to restart its processes "
        "from the newest checkpoint.",
    ),
    Alert(
        "EdlCheckpointsFail",
        f"max by (namespace, job_name) ({master.FAILED_SAVES.name}) > 0",
        10,
        AlertSeverity.CRITICAL,
        "{{ $labels.namespace }}/{{ $labels.job_name }} has failed to save {{ $value }} checkpoints in a row",
        "The next failure of the job loses all training since the newest checkpoint, which becomes older.",
        "edl describe JOB -n NAMESPACE",
        "The warnings name the error: most often a full volume, or missing permissions on the storage.",
    ),
    Alert(
        "EdlJobRestartsOften",
        f"sum by (kind, namespace, cause) (increase({controller.RESTARTS.name}[1h])) > 10",
        0,
        AlertSeverity.WARNING,
        "{{ $labels.kind }}s in {{ $labels.namespace }} were restarted more than 10 times in an hour: "
        "{{ $labels.cause }}",
        "Pods of one or several jobs end without success again and again, and what they trained since the "
        "newest checkpoint is lost.",
        "edl get -n NAMESPACE; edl describe JOB -n NAMESPACE",
        "[Restarts](relaunch.md) explains the causes. Many evictions: look at the nodes. `OOMKilled`: raise "
        "the memory.",
    ),
    Alert(
        "EdlJobsWaitLong",
        f"max by (kind, namespace) ({controller.LONGEST_WAIT.name}) > 7200",
        10,
        AlertSeverity.WARNING,
        "A job in {{ $labels.namespace }} ({{ $labels.kind }}) has waited for "
        "{{ $value | humanizeDuration }}",
        "The pods of at least one job are not scheduled, or can't start.",
        "edl get -n NAMESPACE; kubectl -n NAMESPACE get events --field-selector reason=FailedScheduling",
        "The job's message says what it waits for: nodes, quota, an image, a volume.",
    ),
    Alert(
        "EdlJobsFail",
        # A counter's first value, with the first job that fails, is no increase yet.
        f"sum by (kind, namespace) (increase({_FAILED}[15m])) > 0 or "
        f"sum by (kind, namespace) ({_FAILED} unless {_FAILED} offset 15m) > 0",
        0,
        AlertSeverity.WARNING,
        "{{ $labels.kind }}s in {{ $labels.namespace }} have failed",
        "At least one job has failed for good in the last 15 minutes.",
        "edl get -n NAMESPACE; edl logs JOB -n NAMESPACE",
        "`edl describe` has the reason, and the last lines of the pod that failed.",
    ),
    Alert(
        "EdlResourcesAreLost",
        f'sum by (namespace) ({controller.GPU_HOURS.name}{{part="lost"}}) / sum by (namespace) '
        f"({controller.GPU_HOURS.name}) > 0.2",
        30,
        AlertSeverity.WARNING,
        "{{ $value | humanizePercentage }} of the GPU-hours in {{ $labels.namespace }} are lost",
        "Failures, hangs, or missing masters have cost more than a fifth of what the running jobs hold.",
        "edl cost -n NAMESPACE",
        "For the jobs that lost most, `edl describe` divides the time by cause. Save more often if it is "
        "`redone`.",
    ),
)

SERVERS = (
    Alert(
        "EdlBrainStoreFallsBehind",
        f"max({servers.BRAIN_WAITING.name}) > 1000",
        10,
        AlertSeverity.WARNING,
        "{{ $value }} writes wait for the Brain's database",
        "Reports of masters are confirmed late. Jobs train on; their plans may be based on older samples.",
        "kubectl -n edl-system logs deployment/edl-brain --tail=200",
        "Look at the database: a full volume, locks, slow storage.",
    ),
    Alert(
        "EdlBrainAnswersFail",
        f'sum by (call) (rate({servers.BRAIN_ANSWERS.name}{{code=~"5.."}}[10m])) > 0',
        10,
        AlertSeverity.WARNING,
        "The Brain's call {{ $labels.call }} fails",
        "Masters decide on their own while the Brain does not answer.",
        "kubectl -n edl-system logs deployment/edl-brain --tail=200",
        "The log has the error. The usual one is a database that can't be reached.",
    ),
    Alert(
        "EdlArgoStepsFail",
        f'sum by (stage) (rate({servers.ARGO_RESULTS.name}{{phase="Error"}}[10m])) > 0',
        10,
        AlertSeverity.WARNING,
        "Steps of workflows fail with an error: stage {{ $labels.stage }}",
        "The Argo agent could not carry out steps, for other reasons than a job that failed.",
        "kubectl -n edl-system logs deployment/edl-argo-agent --tail=200",
        "The step's message has the reason, for example missing permissions of the workflow's account.",
    ),
    Alert(
        "EdlDiServerAnswersFail",
        f'sum by (call) (rate({servers.DI_ANSWERS.name}{{code=~"5.."}}[10m])) > 0',
        10,
        AlertSeverity.WARNING,
        "The DI server's call {{ $labels.call }} fails",
        "Programs of DIJobs can't change or report their replicas.",
        "kubectl -n edl-system logs deployment/edl-di-server --tail=200",
        "The log has the error. The usual one is an API server that can't be reached.",
    ),
)

ALERTS = (*CONTROL_PLANE, *JOBS, *SERVERS)
GROUPS = {"edl-control-plane": CONTROL_PLANE, "edl-jobs": JOBS, "edl-servers": SERVERS}
"""As Prometheus evaluates them."""
