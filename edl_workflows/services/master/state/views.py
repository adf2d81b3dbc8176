"""What is reported, read from the state: the nodes' directive, the statuses of job and plan, and `GET
/v1/status`.
"""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from edl_workflows.core.jobs.elastic_job.faults import HangStatus, RestartRecord, RestartsStatus
from edl_workflows.core.jobs.elastic_job.model import (
    CheckpointStatus,
    GoodputStatus,
    ParameterServersStatus,
    ProgressStatus,
)
from edl_workflows.core.jobs.elastic_job.separate_copies import NO_GROUP, OWN_COPIES
from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause, whole_seconds
from edl_workflows.core.jobs.scale_plan.model import (
    ModelVerification,
    PlanCheckpoint,
    PlanStep,
    ScalePlanStatus,
)
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.metrics import choose_charted
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.core.protocol.reported_text import inert_value
from edl_workflows.services.master.state.checkpoints import FailedSaves
from edl_workflows.services.master.state.history import (
    ENDED_BYTES,
    MAX_POINTS,
    SHOWN_BYTES,
    SHOWN_POINTS,
    HistorySample,
)
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.job_result import TrainingResult
from edl_workflows.services.master.state.nodes import (
    fault_steps,
    hang_report,
    leaving_steps,
    relaunch,
    standstill,
)
from edl_workflows.services.master.state.nodes.registry import NodeStatus
from edl_workflows.services.master.state.rollouts.rollout import Rollout, describe_changed_model
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.stored_state import Announcement, JobRecord
from edl_workflows.services.master.state.versions import rendezvous
from edl_workflows.services.master.state.versions.announced_cluster import training_cluster
from edl_workflows.services.master.state.versions.cluster_versions import ChangeCause, ClusterVersion


def next_announcement(state: JobState) -> Announcement:
    """What all nodes are to be told now; the revision grows with each change."""
    versions = state.versions
    change = versions.change
    stopped = bool(
        versions.active and change and change.cause in (ChangeCause.RECOVERY, ChangeCause.ROLLBACK)
    )
    in_place = change is not None and change.in_place
    fresh = Directive(
        revision=state.said.directive.revision,
        active=training_cluster(state, versions.active) if versions.active else None,
        next=training_cluster(
            state, ClusterVersion(change.number, change.target, processes=versions.next_processes)
        )
        if change and change.number
        else None,
        lost=stopped and not in_place,
        broken=stopped and in_place,
        drain=bool(change and change.draining) or leaving_steps.is_pausing(state),
        save=state.checkpoints.request,
        trained=versions.trained,
        workers=_worker_addresses(state),
        finished=state.outcome is not None and state.outcome.succeeded,
        dump=state.hangs.dump,
        check=fault_steps.check_round(state),
    )
    failed = state.outcome is not None and not state.outcome.succeeded
    stopping = tuple(
        sorted(str(node) for node in state.nodes if failed or node.released or node.status.final)
    )
    if (fresh, stopping) == (state.said.directive, state.said.stopping):
        return state.said
    return Announcement(fresh.model_copy(update={"revision": fresh.revision + 1}), stopping)


def directive_for(announcement: Announcement, node: str, *, registered: bool) -> Directive:
    """The directive of one node. A forgotten node is told to stop."""
    if registered and node not in announcement.stopping:
        return announcement.directive
    return announcement.directive.model_copy(update={"stop": True})


def may_lease(state: JobState, version: int) -> bool:
    """Whether a process of this version (0 if it did not say) gets data now.

    It does not while the active version drains, or after its model was lost: that training would be in vain.
    """
    change, active = state.versions.change, state.versions.active
    pausing = change is not None and (change.draining or not change.cause.orderly)
    pausing = pausing or leaving_steps.is_pausing(state)
    return not pausing and active is not None and version in (0, active.number)


def _worker_addresses(state: JobState) -> dict[int, str]:
    """The addresses of the workers, if they are not members. The directive of a collective job has those of
    its members, and does not change with each worker that joins: it is sent to all."""
    if state.settings.collective:
        return {}
    active = state.versions.active
    number = active.number if active else 1
    workers = sorted(state.nodes.live(names.WORKER_TYPE), key=lambda node: node.rank)
    return {n.rank: _address(state, names.WORKER_TYPE, n.id, number) for n in workers if n.registered}


def _address(state: JobState, node_type: str, node_id: int, version: int) -> str:
    return names.node_address(state.settings.name, state.settings.namespace, node_type, node_id, version)


def plan_status(rollout: Rollout) -> dict[str, Any]:
    """The status of a ScalePlan, as a JSON merge patch."""
    status = ScalePlanStatus(
        observed_generation=rollout.generation,
        phase=rollout.phase,
        reason=rollout.reason,
        message=rollout.message,
        create_time=_time(rollout.created),
        finish_time=_time(rollout.steps[-1].finish) if rollout.phase.final else None,
        steps=[
            PlanStep(
                phase=step.phase,
                start_time=_time(step.start),
                finish_time=None if step.finish is None else _time(step.finish),
                message=step.message,
            )
            for step in rollout.steps
        ],
        checkpoint=PlanCheckpoint(uri=rollout.checkpoint.uri, step=rollout.checkpoint.step)
        if rollout.checkpoint
        else None,
        resumed_step=rollout.resumed_step,
        stall_seconds=rollout.stall_seconds,
        cluster_version=rollout.cluster_version,
        verification=_verification(rollout),
    )
    patch = status.to_dict()
    patch.pop("conditions", None)
    return dict(inert_value(patch))


def _verification(rollout: Rollout) -> ModelVerification | None:
    if not rollout.number:
        return None
    verification = ModelVerification(
        result="NotCompared",
        before=rollout.before.value if rollout.before else None,
        after=rollout.after.value if rollout.after else None,
    )
    if rollout.before is None:
        return verification.model_copy(update={"message": "the program gives nothing to compare"})
    sampled = len(rollout.before.fingerprints)
    if rollout.before.value is None and not sampled:
        return verification.model_copy(update={"message": rollout.before.problem})
    if rollout.after is None and rollout.phase.final:
        return verification.model_copy(update={"message": "no evaluation was reported after the switch"})
    if rollout.after is None:
        return verification.model_copy(update={"result": "Pending"})
    message = ""
    if rollout.before.value is None:
        message = f"rows of {sampled} variables were compared, the loss was not: {rollout.before.problem}"
    result = "Different" if describe_changed_model(rollout) else "Same"
    return verification.model_copy(update={"result": result, "message": message})


def job_status(state: JobState, now: float) -> dict[str, Any]:
    """The part of the ElasticJob's status that its master writes, as a JSON merge patch.

    While the job runs it is written again and again, so it shows a sample of the history.
    """
    history = state.history
    shown = (SHOWN_POINTS, SHOWN_BYTES) if state.outcome is None else (MAX_POINTS, ENDED_BYTES)
    progress = ProgressStatus(
        step=state.steps.step,
        records=records_done(state),
        records_total=records_total(state),
        speed=_rounded(state.volatile.statistics.speed),
        records_per_second=_rounded(state.volatile.statistics.records_per_second),
        cluster_version=state.versions.active.number if state.versions.active else 0,
        data_finished=state.shards.finished,
        metrics=state.volatile.statistics.metrics,
        time=_time(round(now, 3)),
    )
    patch: dict[str, Any] = {
        "progress": progress.to_dict(),
        "history": [point.to_dict() for point in history.select(*shown)],
        "goodput": _goodput_status(state, now),
        "restarts": _restarts_status(state),
        "warnings": _warnings(state, now),
        "autoscaling": plan.to_dict() if (plan := state.autoscaling.shown) is not None else None,
    }
    if state.settings.has_ps:
        patch["parameterServers"] = _parameter_servers(state)
    if (hang := state.volatile.hang_report) is not None:
        stacks = hang_report.group_stacks(hang.stacks)
        patch["hang"] = HangStatus(time=_time(round(hang.since)), stacks=stacks).to_dict()
    newest = state.checkpoints.newest
    if newest is not None:
        checkpoint = CheckpointStatus(
            uri=newest.uri,
            step=newest.step,
            time=_time(newest.time),
            save_seconds=round(state.checkpoints.save_seconds, 1),
        )
        patch["checkpoint"] = checkpoint.to_dict()
    if state.result is not None:
        patch["result"] = state.result.text
    if state.outcome is not None and not state.outcome.succeeded:
        patch["failure"] = _failure_status(state.outcome)
    return dict(inert_value(patch))


def _parameter_servers(state: JobState) -> dict[str, Any]:
    report = state.servers
    if report is None:
        reason = "the program does not say whether its model survives a change"
        return ParameterServersStatus(changes="Unknown", reason=reason).to_dict()
    return ParameterServersStatus(changes=report.changes.value, reason=report.reason).to_dict()


def _failure_status(ended: TrainingResult) -> dict[str, str]:
    failure = {"reason": ended.reason, "message": ended.message[:4096]}
    return failure | ({"pod": ended.pod, "lastLines": ended.last_lines[-4096:]} if ended.pod else {})


def _goodput_status(state: JobState, now: float) -> dict[str, Any]:
    goodput = state.goodput
    parts = goodput.parts(now)
    return GoodputStatus(
        ratio=round(goodput.ratio(now), 4),
        useful_seconds=round(parts.get(TimeCause.TRAINING, 0.0), 1),
        redone_seconds=round(goodput.redone, 1),
        elapsed_seconds=round(goodput.elapsed(now), 1),
        seconds=whole_seconds(parts),
        cause="" if goodput.ended else goodput.cause,
        time=_time(round(goodput.ended or now, 3)),
    ).to_dict()


def _restarts_status(state: JobState) -> dict[str, Any]:
    recent = [
        RestartRecord(
            time=_time(round(restart.time, 3)),
            subject=restart.subject,
            cause=restart.cause,
            message=restart.message,
            replaced=restart.replaced,
        )
        for restart in state.restarts.recent
    ]
    return RestartsStatus(counts=state.restarts.counts, recent=recent).to_dict()


def _warnings(state: JobState, now: float) -> list[str]:
    """Warnings for people about a job that continues."""
    return [
        *_damage_warnings(state),
        *_failed_save_warnings(state),
        *leaving_steps.warn_of_short_grace(state),
        *_own_copy_warnings(state),
        *(state.servers.warnings if state.servers is not None else ()),
        *state.shards.notes,
        *_too_few_workers_warnings(state, now),
        *_hang_warnings(state),
        *_late_member_warnings(state, now),
        *_straggler_warnings(state),
        *filter(None, map(relaunch.describe_paced, state.nodes)),
        *(
            f"the master can't {action}, and will retry: {reason}"
            for action, reason in state.volatile.refused.items()
        ),
    ]


def _too_few_workers_warnings(state: JobState, now: float) -> list[str]:
    since, allowed = state.volatile.missing_since, state.rendezvous
    if since is None or now - since < allowed.waiting_timeout:
        return []
    ends = _utc_text(since + allowed.join_timeout)
    reason = rendezvous.rendezvous_verdict(state, now).reason
    return [f"no worker trains: {reason}; without more workers the job fails at {ends}"]


def _hang_warnings(state: JobState) -> list[str]:
    if not state.hangs.since:
        return []
    return [hang_warning(state)]


def hang_warning(state: JobState) -> str:
    """The warning while training hangs: since when, and where its processes stand."""
    report = state.volatile.hang_report
    where = hang_report.summarize_stacks(report.stacks) if report is not None else ""
    text = (
        f"training stands still; found at {_utc_text(state.hangs.since)}; the stacks of its processes are in "
    )
    return f"{text}their logs and in status.hang: {where}" if where else f"{text}their logs"


def _late_member_warnings(state: JobState, now: float) -> list[str]:
    late = standstill.late_members(state, now)
    if late is None:
        return []
    who, since = ", ".join(sorted(late.silent)), _utc_text(late.since)
    return [f"the other members have waited for {who} in step {late.step} since {since}"]


def _straggler_warnings(state: JobState) -> list[str]:
    slow = fault_steps.find_stragglers(state).items()
    return [f"{node} is a straggler: {ratio:.1f} times slower than the median" for node, ratio in slow]


def _damage_warnings(state: JobState) -> list[str]:
    return [
        f"a checkpoint could not be restored: {damaged.error}"
        + (f"; {damaged.instead} is taken instead" if damaged.instead else "")
        for damaged in state.checkpoints.damaged
    ]


def _failed_save_warnings(state: JobState) -> list[str]:
    """The text stays the same until a checkpoint is saved, since followers of the job log each new
    warning.
    """
    failing = state.checkpoints.failing
    return [unsaved_warning(failing)] if failing.row else []


def _own_copy_warnings(state: JobState) -> list[str]:
    """The text has no number of workers, since followers of the job log each new warning."""
    return [copies_warning(state)] if trains_copies(state, state.settings) else []


def copies_warning(state: JobState) -> str:
    """The warning while several workers train copies of the model."""
    return OWN_COPIES if state.connected and state.shards.all_progress() else NO_GROUP


def trains_copies(record: JobRecord, settings: JobSettings) -> bool:
    """Whether several workers train copies of the model that nothing combines."""
    desired = record.counts.get(names.CHIEF_TYPE, 0) + record.counts.get(names.WORKER_TYPE, 0)
    return len(record.own_copies) > 1 and desired > 1 and not settings.has_ps


def unsaved_warning(failing: FailedSaves) -> str:
    """The warning while checkpoints can't be saved."""
    since = _utc_text(failing.since)
    return f"no checkpoint could be saved since {since}: {failing.error[:1000]}"


def history_sample(state: JobState, now: float) -> HistorySample:
    """The present point of the job's history."""
    running = Counter(node.type for node in state.nodes if node.status is NodeStatus.RUNNING)
    metrics = choose_charted(state.volatile.statistics.metrics, state.history.metric_names)
    return HistorySample(now, state.steps.step, dict(sorted(running.items())), records_done(state), metrics)


def records_done(state: JobState) -> int:
    """Acknowledged records of all data sets; in a collective job, as counted by its members."""
    return state.steps.records + sum(progress.records_done for progress in state.shards.all_progress())


def records_total(state: JobState) -> int:
    """Records of all epochs of all data sets; 0 if there is none, or one that is endless or still grows. In a
    collective job its members know them."""
    totals = [progress.records_total for progress in state.shards.all_progress()]
    of_datasets = 0 if None in totals else sum(total for total in totals if total is not None)
    return of_datasets + state.volatile.records_total


def status_report(state: JobState, now: float) -> dict[str, Any]:
    """The answer to `GET /v1/status`, with the whole history."""
    directive = state.said.directive
    return {
        "job": state.settings.name,
        "namespace": state.settings.namespace,
        "outcome": _plain(state.outcome),
        **job_status(state, now),
        "history": [point.to_dict() for point in state.history.points],
        "counts": state.counts,
        "nodes": [
            _node_report(state, node.ref)
            for node in sorted(state.nodes, key=lambda n: (n.type, n.rank, n.id))
        ],
        "directive": directive.model_dump(mode="json"),
        "datasets": [progress.model_dump(mode="json") for progress in state.shards.all_progress()],
        "plan": {"name": state.plan.name, **plan_status(state.plan)} if state.plan else None,
        "rendezvous": _rendezvous_report(state, now) if state.settings.collective else None,
    }


def _rendezvous_report(state: JobState, now: float) -> dict[str, Any]:
    """Workers that could form a group, and what the next group waits for."""
    verdict = rendezvous.rendezvous_verdict(state, now)
    until = None if verdict.until is None else _time(verdict.until).isoformat()
    return {
        "joined": sorted(state.joined),
        "maxWorkers": state.max_workers,
        "why": verdict.reason,
        "until": until,
    }


def _node_report(state: JobState, ref: NodeRef) -> dict[str, Any]:
    node = state.nodes.find(ref.type, ref.id)
    assert node is not None
    usage = state.volatile.statistics.usage.get(str(node))
    return {
        "name": state.settings.pod_name(node.type, node.id),
        "type": node.type,
        "id": node.id,
        "rank": node.rank,
        "status": str(node.status),
        "registered": node.registered,
        "critical": state.settings.critical(node.type, node.rank),
        "relaunches": node.relaunches,
        "released": node.released,
        "waiting": node.waiting,
        "exitReason": str(node.exit_reason) if node.exit_reason else None,
        "exitCode": node.exit_code,
        "message": node.given_up or node.message,
        "resource": node.resource.to_dict(),
        "usage": usage.model_dump() if usage else None,
    }


def _plain(outcome: object) -> dict[str, Any] | None:
    return None if outcome is None else dict(vars(outcome))


def _rounded(number: float) -> float:
    """Three digits: more would differ from one status to the next while nothing changes."""
    return float(f"{number:.3g}")


def _utc_text(seconds: float) -> str:
    return f"{_time(round(seconds)):%Y-%m-%d %H:%M:%S} UTC"


def _time(seconds: float | None) -> datetime:
    assert seconds is not None
    return datetime.fromtimestamp(seconds, UTC)
