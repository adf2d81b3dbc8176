"""The stored values, and their conversion to and from rows.

A damaged row is converted to None, which callers skip.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import structlog
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Row

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.protocol.brain import JobDescription, JobEnd, NodeOom
from edl_workflows.core.protocol.metrics import ChartedMetrics
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample
from edl_workflows.services.brain.observations import ChangeObservation, ClusterObservation, JobObservation
from edl_workflows.services.brain.store import tables
from edl_workflows.services.brain.store.tables import Upsert
from edl_workflows.services.brain.store.writer import Rows

log = structlog.get_logger(__name__)

Value = TypeVar("Value")
_NODES = TypeAdapter(tuple[NodeSample, ...])
_METRICS = TypeAdapter(ChartedMetrics)
_SEEN_CLUSTER = TypeAdapter(ClusterObservation)
_SEEN_JOB = TypeAdapter(JobObservation)
MAX_WORDS = 1_024
_UNSAID = {
    "phase": "",
    "scenario": "",
    "created": None,
    "reported": None,
    "ended": None,
    "completed": None,
    "reason": "",
    "gone": None,
    "facts": "",
    "seen": "",
}


@dataclass(frozen=True, order=True)
class JobKey:
    """The permanent identity of a job."""

    namespace: str
    uid: str


@dataclass(frozen=True)
class JobReport:
    """The credible part of a master's report, as it is stored."""

    job: JobDescription
    samples: Sequence[JobSample] = ()
    ooms: Sequence[NodeOom] = ()
    end: JobEnd | None = None


@dataclass(frozen=True)
class StoredJob:
    """A stored job without its samples.

    Attributes:
        facts: what its master reported last.
        seen: what the monitor saw in its last cycle.
        reported: when its master last reported.
    """

    key: JobKey
    facts: JobDescription | None
    seen: JobObservation | None
    reported: float | None
    end: JobEnd | None


@dataclass(frozen=True)
class StoredAdvice:
    """Advice that the Brain gave, as people see it.

    Attributes:
        id: unique.
        changes: one line each.
        reason: why.
    """

    id: str
    namespace: str
    job: str
    time: float
    changes: tuple[str, ...]
    reason: str


def scenario_of(job: JobDescription) -> str:
    """The key that comparable jobs have in common: the scenario, or the job's name if it has none."""
    return job.scenario or job.name


def stored_job(row: Row[Any]) -> StoredJob:
    end = None
    if row.ended is not None:
        stored_end = {"time": row.ended, "completed": bool(row.completed), "reason": row.reason}
        end = _parse_or_none(JobEnd.model_validate, stored_end)
    key = JobKey(row.namespace, row.uid)
    facts = _parse_or_none(JobDescription.model_validate_json, row.facts)
    seen = _parse_or_none(_SEEN_JOB.validate_json, row.seen)
    return StoredJob(key, facts, seen, row.reported, end)


def cluster_sample(row: Row[Any]) -> ClusterObservation | None:
    """Parse a row; return None if it cannot be read."""
    return _parse_or_none(_SEEN_CLUSTER.validate_json, row.sample)


def parse_lines(text: str) -> tuple[str, ...]:
    """Parse a stored list of lines."""
    lines = _parse_or_none(TypeAdapter(tuple[str, ...]).validate_json, text)
    return lines or ()


def _parse_or_none(read: Callable[[Any], Value], stored: Any) -> Value | None:
    if not stored:
        return None
    try:
        return read(stored)
    except ValidationError:
        log.warning("skipped a damaged row of the store")
        return None


def sample_of_row(row: Row[Any]) -> JobSample | None:
    """Parse a row; return None if it cannot be read."""
    nodes = _parse_or_none(_NODES.validate_json, row.nodes)
    if nodes is None:
        return None
    metrics = _parse_or_none(_METRICS.validate_json, row.metrics) or {}
    return JobSample(row.time, row.step, row.speed, nodes, metrics)


def oom_of_row(row: Row[Any]) -> NodeOom | None:
    """A node that ran out of memory; None for a damaged row."""
    return _parse_or_none(NodeOom.model_validate, {"node": row.node, "time": row.time})


def report_rows(report: JobReport, now: float) -> Rows:
    job = report.job
    key = {"namespace": job.namespace, "uid": job.uid}
    about = (
        _UNSAID
        | key
        | {
            "name": job.name,
            "kind": job.kind,
            "scenario": scenario_of(job),
            "heard": now,
            "created": now,
            "reported": now,
            "facts": job.model_dump_json(),
        }
    )
    rows: dict[Upsert, list[Mapping[str, Any]]] = {tables.REPORTED_JOB: [about]}
    if end := report.end:
        outcome = {"ended": end.time, "completed": end.completed, "reason": _text(end.reason)}
        rows[tables.ENDED_JOB] = [about | outcome]
    rows[tables.NEW_SAMPLE] = [
        key
        | {"time": sample.time, "step": sample.step, "speed": sample.speed}
        | {"nodes": json.dumps([vars(node) for node in sample.nodes], separators=(",", ":"))}
        | {"metrics": json.dumps(dict(sample.metrics), separators=(",", ":")) if sample.metrics else ""}
        for sample in report.samples
    ]
    rows[tables.NEW_OOM] = [key | {"node": oom.node, "time": oom.time} for oom in report.ooms]
    return rows


def observed_job_row(job: JobObservation, now: float) -> Mapping[str, Any]:
    """What the monitor saw of a job, as a row."""
    return _UNSAID | {
        "namespace": job.namespace,
        "uid": job.uid,
        "name": job.name,
        "kind": job.kind,
        "phase": job.phase,
        "heard": now,
        "created": now if job.created is None else job.created,
        "ended": job.finished,
        "completed": None if job.finished is None else job.phase == JobPhase.SUCCEEDED,
        "reason": _text(job.reason),
        "seen": json.dumps(asdict(job)),
    }


def observed_plan_row(plan: ChangeObservation, now: float) -> Mapping[str, Any]:
    """What the monitor saw of a ScalePlan, as a row."""
    return {
        "namespace": plan.namespace,
        "id": plan.uid,
        "job": plan.job,
        "name": plan.name,
        "time": now if plan.created is None else plan.created,
        "phase": plan.phase,
        "reason": _text(plan.reason),
        "message": _text(plan.message),
        "changes": json.dumps(plan.changes),
        "finished": plan.finished,
        "gone": None,
    }


def _text(text: str) -> str:
    """Convert text to a form that every database can store: PostgreSQL rejects NUL, and no database stores
    lone surrogates."""
    return "".join(character if character.isprintable() else " " for character in text[:MAX_WORDS])
