"""Makes the document of a job from its objects. This module is pure."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from edl_workflows.airflow.tab.document import (
    MAX_PLANS,
    MAX_POINTS,
    MAX_RESTARTS,
    MAX_ROWS,
    ChangeDocument,
    ChangeStepDocument,
    CheckpointDocument,
    FiguresDocument,
    GoodputDocument,
    JobDocument,
    PointDocument,
    ProgressDocument,
    ProposalDocument,
    RestartDocument,
    RestartsDocument,
    RoleDocument,
    SpentDocument,
)
from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.elastic_job.faults import RestartRecord
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.elastic_job.time_spent import time_by_cause
from edl_workflows.core.jobs.scale_plan.model import (
    NodeResource,
    ReplicaResourceSpec,
    ScalePlan,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.core.jobs.view import JobView, Progress
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.metrics import select_evenly
from edl_workflows.pipelines import timeline
from edl_workflows.pipelines.live import Measurement
from edl_workflows.pipelines.waiting.advised_change import AdvisedChange
from edl_workflows.services.brain.observations import describe_changes
from edl_workflows.services.brain.page.messages import JobAnswer

REJECTED_ANNOTATION = f"{names.GROUP}/rejected-plan"
"""Annotation of a job: the optimizer's plan that a user rejected, as ``<digest> <who and when>``."""

T = TypeVar("T")


def describe_job(
    view: JobView, job: ElasticJob | None, plans: Sequence[ScalePlan], now: float
) -> JobDocument:
    """The document of a job that exists in the cluster.

    Args:
        view: the job, of any kind.
        job: the same job if it is an ElasticJob. Only ElasticJobs have a history, plans and goodput.
        plans: its ScalePlans, in any order.
        now: Unix seconds.
    """
    manual = newest_plans(plans)
    document = JobDocument(
        kind=view.kind,
        namespace=view.namespace,
        name=view.name,
        uid=view.uid,
        phase=str(view.phase),
        reason=view.reason,
        message=view.message,
        started=_seconds(view.started),
        finished=_seconds(view.finished),
        progress=_progress(view),
        metrics=_finite(view.progress.metrics),
        roles=[RoleDocument(role=r, desired=c.desired, ready=c.ready) for r, c in _some(view.replicas)],
        restarts=RestartsDocument(total=len(view.restarts), recent=_restarts(view.restarts)),
        plans=[_describe_plan(plan) for plan in manual],
        checkpoints=_checkpoints(view, job, manual),
        warnings=list(view.warnings[-MAX_ROWS:]),
    )
    return document if job is None else document.model_copy(update=_status_fields(job, plans, now))


def newest_plans(plans: Iterable[ScalePlan]) -> list[ScalePlan]:
    """The newest plans except auto plans, newest first."""
    manual = [plan for plan in plans if not plan.auto]
    manual.sort(key=lambda plan: (_seconds(plan.metadata.creation_timestamp) or 0.0, plan.metadata.name))
    return manual[::-1][:MAX_PLANS]


def find_proposal(job: ElasticJob, plans: Iterable[ScalePlan]) -> tuple[str, AdvisedChange] | None:
    """What the job's optimizer would change, and its id; None if it changes nothing, or nobody can carry it
    out now.

    The id is a digest of the changes and of the newest plan that changed the job. So a proposal with the same
    changes gets a new id after the job was changed.

    Args:
        job: the job.
        plans: its ScalePlans, in any order.
    """
    status, manual = job.status, newest_plans(plans)
    ended = status.phase is not None and status.phase.final
    # While a plan is carried out, the optimizer's earlier proposal no longer fits.
    if status.autoscaling is None or ended or any(not plan.finished for plan in manual):
        return None
    change = AdvisedChange.of(status.autoscaling)
    if not change.migrate and all(
        _is_done(job, role, replica_spec) for role, replica_spec in change.replicas.items()
    ):
        return None
    spec = {key: value for key, value in change.spec().items() if key != "reason"}
    changed = [plan.metadata.name for plan in manual if describe_changes(plan.spec) != ["take a checkpoint"]]
    text = json.dumps([spec, changed[:1]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16], change


def _is_done(job: ElasticJob, role: str, replica_spec: ReplicaResourceSpec) -> bool:
    """Whether the role already is as proposed. The optimizer updates its proposal only some time after a
    change."""
    counts = job.status.replica_statuses.get(role)
    same = counts is not None and replica_spec.replicas in (None, counts.desired)
    return same and replica_spec.resource == NodeResource()


def describe_history(answer: JobAnswer) -> JobDocument:
    """The document of a job that exists only in a Brain's history."""
    job = answer.job
    points = select_evenly(answer.points, MAX_POINTS)
    return JobDocument(
        kind=job.kind,
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        source="brain",
        phase=job.phase,
        reason=job.reason,
        message=job.message,
        started=job.started,
        finished=job.finished,
        progress=ProgressDocument(step=job.step, speed=job.speed),
        metrics=_finite(job.metrics),
        roles=[RoleDocument(role=r, desired=c.desired, ready=c.ready or 0) for r, c in _some(job.replicas)],
        points=[
            PointDocument(time=p.time, step=p.step, speed=p.speed, nodes=p.nodes, metrics=_finite(p.metrics))
            for p in points
        ],
        plans=[
            ChangeDocument(
                name=plan.name,
                phase=plan.phase,
                changes=plan.changes[:MAX_ROWS],
                reason=plan.reason,
                message=plan.message,
                created=plan.created,
                finished=plan.finished,
            )
            for plan in answer.plans[:MAX_PLANS]
        ],
    )


def add_history(document: JobDocument, history: JobDocument) -> JobDocument:
    """The document with what only the Brain knows: more points, and plans that have been deleted since."""
    points = sorted([*document.points, *history.points], key=lambda point: point.time)
    plan_names = {plan.name for plan in document.plans}
    older = [plan for plan in history.plans if plan.name and plan.name not in plan_names]
    plans = [*document.plans, *older][:MAX_PLANS]
    return document.model_copy(update={"points": select_evenly(points, MAX_POINTS), "plans": plans})


def add_figures(document: JobDocument, measured: Measurement) -> JobDocument:
    """The document of a running job with where its figures come from, the memory, and the goodput that the
    master gave. Its progress was replaced before."""
    figures = measured.figures
    origin = FiguresDocument(
        live=measured.live,
        time=figures.time if figures is not None else None,
        memory=figures.memory if figures is not None else None,
        obstacle=measured.obstacle,
    )
    changed: dict[str, object] = {"figures": origin}
    if figures is not None and measured.live and document.goodput is not None:
        changed["goodput"] = document.goodput.model_copy(update={"ratio": figures.goodput})
    return document.model_copy(update=changed)


def without_output(document: JobDocument) -> JobDocument:
    """The document without its messages, which quote the last lines that a failed program printed, or what a
    program behind the master's Service answered."""
    figures = document.figures
    recent = [restart.model_copy(update={"message": ""}) for restart in document.restarts.recent]
    return document.model_copy(
        update={
            "message": "",
            "warnings": [],
            "figures": None if figures is None else figures.model_copy(update={"obstacle": ""}),
            "restarts": document.restarts.model_copy(update={"recent": recent}),
            "plans": [plan.model_copy(update={"message": ""}) for plan in document.plans],
        }
    )


def _progress(view: JobView) -> ProgressDocument:
    progress = view.progress
    left = progress.records_total - progress.records
    fraction = min(1.0, progress.records / progress.records_total) if progress.records_total > 0 else None
    predictable = fraction is not None and 0 < fraction < 1 and progress.step > 0
    rate = progress.records_per_second
    return ProgressDocument(
        step=progress.step,
        steps_total=round(progress.step / fraction) if predictable and fraction else None,
        records=progress.records,
        records_total=progress.records_total,
        fraction=fraction,
        eta_seconds=left / rate if left > 0 and rate > 0 and not view.phase.final else None,
        **_speeds(progress),
    )


def _speeds(progress: Progress) -> dict[str, float]:
    pairs = {"speed": progress.speed, "records_per_second": progress.records_per_second}
    return {name: value if math.isfinite(value) else 0.0 for name, value in pairs.items()}


def _restarts(records: Sequence[RestartRecord]) -> list[RestartDocument]:
    return [
        RestartDocument(
            time=r.time.timestamp(), subject=r.subject, cause=r.describe_cause(), message=r.message
        )
        for r in reversed(records[-MAX_RESTARTS:])
    ]


def _status_fields(job: ElasticJob, plans: Sequence[ScalePlan], now: float) -> dict[str, object]:
    """The fields that only the status of an ElasticJob has."""
    fields: dict[str, object] = {
        "points": _points(job, plans, now),
        "proposal": _proposal(job, plans),
    }
    if (restarts := job.status.restarts) is not None:
        recent = _restarts(restarts.recent)
        counts = dict(_some(restarts.counts))
        total = max(sum(restarts.counts.values()), len(recent))
        fields["restarts"] = RestartsDocument(total=total, counts=counts, recent=recent)
    if (spent := job.status.goodput) is not None:
        until = job.status.completion_time or datetime.fromtimestamp(now, UTC)
        parts = [
            SpentDocument(cause=cause, meaning=cause.meaning, seconds=seconds)
            for cause, seconds in time_by_cause(spent, until).items()
        ]
        fields["goodput"] = GoodputDocument(ratio=spent.ratio, spent=parts)
    return fields


def _points(job: ElasticJob, plans: Sequence[ScalePlan], now: float) -> list[PointDocument]:
    """The history in the status and the present state, since the master writes its history less often than
    its progress."""
    history = select_evenly(job.status.history, MAX_POINTS - 1)
    bounded = job.model_copy(update={"status": job.status.model_copy(update={"history": history})})
    samples = timeline.of_job(bounded, plans, now).samples
    points = [
        PointDocument(
            time=sample.time,
            step=sample.step,
            speed=sample.speed if index else None,
            nodes=sample.replicas,
            metrics=_finite(sample.metrics),
        )
        for index, sample in enumerate(samples)
    ]
    progress = job.status.progress
    if progress is None or progress.time is None or (points and progress.time.timestamp() <= points[-1].time):
        return points
    ready = {role: counts.ready for role, counts in job.status.replica_statuses.items()}
    newest = PointDocument(
        time=progress.time.timestamp(),
        step=progress.step,
        speed=progress.speed,
        nodes=points[-1].nodes if points else ready,
        metrics=_finite(progress.metrics),
    )
    return [*points, newest]


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that JSON can represent; if there are too many, the first by name."""
    return dict(_some({name: value for name, value in metrics.items() if math.isfinite(value)}))


def _describe_plan(plan: ScalePlan) -> ChangeDocument:
    status = plan.status
    return ChangeDocument(
        name=plan.metadata.name,
        phase=str(status.phase or ScalePlanPhase.PENDING),
        changes=describe_changes(plan.spec)[:MAX_ROWS],
        reason=plan.spec.reason,
        message=": ".join(part for part in (status.reason, status.message) if part),
        created=_seconds(plan.metadata.creation_timestamp),
        finished=_seconds(status.finish_time),
        steps=[
            ChangeStepDocument(
                phase=str(step.phase), start=step.start_time.timestamp(), end=_seconds(step.finish_time)
            )
            for step in status.steps[:MAX_ROWS]
        ],
        stall_seconds=status.stall_seconds,
        may_be_rejected=may_be_withdrawn(plan),
    )


def may_be_withdrawn(plan: ScalePlan) -> bool:
    """Whether the plan can be withdrawn because it has not begun. A plan that has begun is always completed
    or rolled back."""
    return not plan.auto and plan.status.phase in (None, ScalePlanPhase.PENDING)


def _proposal(job: ElasticJob, plans: Sequence[ScalePlan]) -> ProposalDocument | None:
    proposal, status = find_proposal(job, plans), job.status.autoscaling
    if proposal is None or status is None:
        return None
    digest, change = proposal
    spec = ScalePlanSpec(replica_resource_specs=change.replicas, migrate_pods=change.migrate)
    rejected, _, who = job.metadata.annotations.get(REJECTED_ANNOTATION, "").partition(" ")
    automatic = job.metadata.annotations.get(autoscaling.ANNOTATION, autoscaling.OFF) != autoscaling.OFF
    return ProposalDocument(
        id=digest,
        state="automatic" if automatic else "rejected" if rejected == digest else "open",
        optimizer=change.optimizer,
        stage=change.stage,
        changes=describe_changes(spec)[:MAX_ROWS],
        reasons=[f"{subject}: {reason}" for subject, reason in _some(change.reasons)],
        notes=change.notes[:MAX_ROWS],
        time=_seconds(status.time),
        decided=who if rejected == digest else "",
    )


def _checkpoints(
    view: JobView, job: ElasticJob | None, plans: Sequence[ScalePlan]
) -> list[CheckpointDocument]:
    """The job's newest checkpoint and those of its plans, newest step first."""
    checkpoints = []
    if view.checkpoint is not None:
        taken = job.status.checkpoint.time if job is not None and job.status.checkpoint is not None else None
        checkpoints.append(
            CheckpointDocument(step=view.checkpoint.step, uri=view.checkpoint.uri, time=_seconds(taken))
        )
    for plan in plans:
        saved = plan.status.checkpoint
        if saved is not None and all(saved.uri != checkpoint.uri for checkpoint in checkpoints):
            ends = [s.start_time for s in plan.status.steps if s.phase is ScalePlanPhase.CHECKPOINTED]
            when = _seconds(ends[0]) if ends else None
            checkpoints.append(
                CheckpointDocument(step=saved.step, uri=saved.uri, time=when, origin=plan.metadata.name)
            )
    return sorted(checkpoints, key=lambda checkpoint: -checkpoint.step)[:MAX_ROWS]


def _some(values: Mapping[str, T]) -> list[tuple[str, T]]:
    """The first entries, by key."""
    return sorted(values.items(), key=lambda item: item[0])[:MAX_ROWS]


def _seconds(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None
