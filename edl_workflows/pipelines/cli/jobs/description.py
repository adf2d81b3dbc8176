"""The output of `edl describe`: collects a job, its pods, plans and events, and formats them."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.jobs import autoscaling, manifests
from edl_workflows.core.jobs.elastic_job.faults import HangStatus, RestartsStatus
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus, ElasticJobStatus, GoodputStatus
from edl_workflows.core.jobs.elastic_job.time_spent import time_by_cause
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.jobs.view import JobPhase, JobView
from edl_workflows.core.protocol.metrics import describe_metrics
from edl_workflows.pipelines.cli.jobs.listing import age_of, format_age, format_replicas, job_kinds, read_job
from edl_workflows.runtime.kube import client, events, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.brain.observations import describe_changes

EVENTS_SHOWN = 15
RESTARTS_SHOWN = 5


@dataclass(frozen=True)
class Description:
    """A job with its pods, plans and events, as the API returns them."""

    manifest: dict[str, Any]
    view: JobView
    pods: tuple[dict[str, Any], ...]
    plans: tuple[ScalePlan, ...]
    events: tuple[dict[str, Any], ...]

    def to_data(self) -> dict[str, Any]:
        """As plain values for JSON and YAML."""
        return {
            "job": self.manifest,
            "pods": list(self.pods),
            "plans": [plan.to_dict() for plan in self.plans],
            "events": list(self.events),
        }


def collect_description(cluster: Cluster, kind: str, name: str) -> Description:
    """Read a job with its pods, plans and events.

    Raises:
        NotFoundError: there is no such job.
    """
    (job_kind,) = job_kinds(kind)
    manifest = read_job(cluster, job_kind, name)
    selector = job_kind.pods_of(name)
    pods = client.list_objects(
        cluster, resources.Scope(resources.PODS, cluster.namespace, label_selector=selector)
    )
    return Description(
        manifest,
        job_kind.view_stored(manifest),
        tuple(sorted(pods.items, key=manifests.name_of)),
        plans_of(cluster, name),
        tuple(events.of_object(cluster, manifest)),
    )


def read_plan(cluster: Cluster, name: str) -> ScalePlan:
    """Read a ScalePlan.

    Raises:
        NotFoundError: there is no such plan.
    """
    return ScalePlan.read_stored(client.get(cluster, resources.SCALE_PLANS, name, cluster.namespace))[0]


def plan_lines(plan: ScalePlan) -> Iterator[str]:
    """A ScalePlan as text: what it changes, and its steps."""
    yield f"ScalePlan for {plan.job}: {', '.join(describe_changes(plan.spec)) or 'no change'}"
    yield from _plan(plan)


def plans_of(cluster: Cluster, job: str) -> tuple[ScalePlan, ...]:
    """A job's plans, oldest first."""
    listed = client.list_objects(cluster, resources.Scope(resources.SCALE_PLANS, cluster.namespace))
    mine = [plan for plan in (ScalePlan.read_stored(item)[0] for item in listed.items) if plan.job == job]
    return tuple(sorted(mine, key=lambda plan: (str(plan.metadata.creation_timestamp), plan.metadata.name)))


def description_lines(about: Description) -> Iterator[str]:
    """The description as text, like that of ``kubectl describe``."""
    job = about.view
    yield from _facts(job, age_of(about.manifest))
    yield from _faults(about.manifest)
    yield "Conditions:"
    for condition in (about.manifest.get("status") or {}).get("conditions") or []:
        when = condition.get("lastTransitionTime", "")
        reason = f"{condition.get('reason', '')}  {condition.get('message', '')}"
        yield f"  {condition['type']}={condition['status']}  {when}  {reason}".rstrip()
    yield "Pods:"
    for pod in about.pods:
        status = pod.get("status") or {}
        reason = manifests.why_pending(pod) if status.get("phase") == "Pending" else status.get("message", "")
        yield f"  {manifests.name_of(pod)}  {status.get('phase', 'Unknown')}  {reason}".rstrip()
    yield from _autoscaling(job, about.manifest)
    yield "Plans:"
    for plan in about.plans:
        if not plan.auto or plan.spec.reason:
            yield from _plan(plan)
    yield "Events:"
    for event in about.events[-EVENTS_SHOWN:]:
        when = event.get("lastTimestamp") or ""
        yield f"  {when}  {event.get('type')}  {event.get('reason')}  {event.get('message')}"


def _facts(job: JobView, age: str) -> Iterator[str]:
    facts = {
        "Name": f"{job.namespace}/{job.name}",
        "Kind": job.kind,
        "Phase": f"{job.phase}{f' ({job.reason})' if job.reason else ''}",
        "Message": job.message,
        "Ready": format_replicas(job),
        "Step": f"{job.progress.step} ({job.progress.speed:.1f} steps/s)",
        "Records": str(job.progress.records),
        "Metrics": describe_metrics(job.progress.metrics),
        "Checkpoint": f"step {job.checkpoint.step} in {job.checkpoint.uri}" if job.checkpoint else "",
        "Age": age,
        **_run_time(job),
    }
    for label, value in facts.items():
        if value:
            yield f"{label + ':':13}{value}"
    for warning in job.warnings:
        yield f"{'Warning:':13}{warning}"


def _run_time(job: JobView) -> dict[str, str]:
    """How long a job has been running or ran; empty if it has no pods, or if the time of its end is
    unknown."""
    if job.started is None or job.phase in (JobPhase.PENDING, JobPhase.SUSPENDED):
        return {}
    if not job.phase.final:
        return {"Running for": format_age(job.started)}
    return {"Ran for": format_age(job.started, job.finished)} if job.finished else {}


def _faults(manifest: dict[str, Any]) -> Iterator[str]:
    """The goodput of an ElasticJob, its restarts with their reasons, and its failure."""
    status = manifest.get("status") or {}
    if goodput_status := status.get("goodput"):
        goodput = GoodputStatus.model_validate(goodput_status)
        useful, elapsed = goodput.useful_seconds, goodput.elapsed_seconds
        redone = f"{goodput.redone_seconds:.0f} s repeated"
        yield f"{'Goodput:':13}{goodput.ratio:.0%} ({useful:.0f} of {elapsed:.0f} s, {redone})"
        yield from time_lines(ElasticJobStatus.model_validate(status))
    restarts = RestartsStatus.model_validate(status.get("restarts") or {})
    if restarts.counts:
        counts = (f"{cause} {count}" for cause, count in sorted(restarts.counts.items()))
        yield f"{'Restarts:':13}{', '.join(counts)}"
    for record in restarts.recent[-RESTARTS_SHOWN:]:
        when = f"{record.time:%Y-%m-%dT%H:%M:%SZ}"
        yield f"  {when}  {record.subject}  {record.describe_cause()}  {record.message}".rstrip()
    servers = status.get("parameterServers") or {}
    if servers.get("changes", "Any") != "Any":
        yield f"{'Servers:':13}changes {servers['changes']}: {servers.get('reason', '')}"
    if hang := status.get("hang"):
        yield from _hang(HangStatus.model_validate(hang))
    failure = status.get("failure") or {}
    if failure.get("lastLines"):
        yield f"Last lines of {failure.get('pod', '')}:"
        yield from (f"  {line}" for line in failure["lastLines"].splitlines())


def time_lines(status: ElasticJobStatus) -> Iterator[str]:
    """A table of how an ElasticJob's time was spent; empty if its master did not report it."""
    until = status.completion_time or dt.datetime.now(dt.UTC)
    spent = time_by_cause(status.goodput or GoodputStatus(), until)
    if spent:
        yield f"{'Time:':13}{dt.timedelta(seconds=sum(spent.values()))} since the job was created"
    for cause, seconds in spent.items():
        share = f"{seconds / sum(spent.values()):.0%}"
        yield f"  {cause:11}{dt.timedelta(seconds=seconds)!s:>16}{share:>6}  {cause.meaning}"


def _hang(hang: HangStatus) -> Iterator[str]:
    """Where the training processes stood in the newest hang."""
    yield f"{'Hang:':13}found at {hang.time:%Y-%m-%dT%H:%M:%SZ}; each stack once, the rarest first"
    for group in hang.stacks:
        more = f" and {group.count - len(group.nodes)} more" if group.count > len(group.nodes) else ""
        yield f"  {', '.join(group.nodes)}{more}:"
        yield from (f"    {line.strip()}" for line in group.stack.splitlines() or ["no stack"])
        for file in group.recordings:
            yield f"    NCCL's flight recorder: {file}"


def _autoscaling(job: JobView, manifest: dict[str, Any]) -> Iterator[str]:
    """The state of the job's optimizer, in the modes single-job and cluster, and whether its plans are only
    advice."""
    status = (manifest.get("status") or {}).get("autoscaling")
    if not status:
        return
    about = AutoscalingStatus.model_validate(status)
    optimizer = f"{about.optimizer} optimizer, {about.stage or 'no stage yet'}"
    if (job.annotations.get(autoscaling.ANNOTATION) or autoscaling.OFF) == autoscaling.OFF:
        command = f" (`edl autoscale {job.name}` lets the job's master apply its plans)"
        optimizer = f"off, so nothing changes; advice of the {optimizer}{'' if job.phase.final else command}:"
    yield f"Autoscaling: {optimizer}"
    for subject, reason in sorted(about.reasons.items()):
        yield f"  {subject}: {reason}"
    for note in about.notes:
        yield f"  {note}"


def _plan(plan: ScalePlan) -> Iterator[str]:
    status = plan.status
    extra = f"  stall {status.stall_seconds:.2f} s" if status.stall_seconds is not None else ""
    reason = f"  {status.reason}: {status.message}" if status.message else ""
    yield f"  {plan.metadata.name}  {status.phase or 'Pending'}{extra}{reason}"
    if plan.spec.reason:
        yield f"    because {plan.spec.reason}"
    if (compared := status.verification) is not None:
        numbers = [f"{value:.9g}" for value in (compared.before, compared.after) if value is not None]
        verification = f"    verification: {compared.result}  {' -> '.join(numbers)}"
        yield f"{verification}  {compared.message}".rstrip()
    for step in status.steps:
        took = f"{(step.finish_time - step.start_time).total_seconds():.1f} s" if step.finish_time else "now"
        yield f"    {step.phase:14} {took:>8}  {step.message}".rstrip()
