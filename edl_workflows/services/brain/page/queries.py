"""Queries of the web page: the cluster over time, jobs and plans. Each function is one read transaction."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Row,
    Select,
    and_,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
)

from edl_workflows.core.exceptions import NotFoundError
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.services.brain.page import messages
from edl_workflows.services.brain.store import database
from edl_workflows.services.brain.store.reader import Namespaces, StoreReader, restrict_to_namespaces
from edl_workflows.services.brain.store.records import (
    JobKey,
    StoredJob,
    cluster_sample,
    parse_lines,
    sample_of_row,
    stored_job,
)
from edl_workflows.services.brain.store.tables import CLUSTER, JOB, PLAN, SAMPLE

DELETED = "Deleted"
"""Phase of an object that was deleted before it ended."""
_FINAL = (str(JobPhase.SUCCEEDED), str(JobPhase.FAILED))
PHASE = case(
    (or_(JOB.c.phase.in_(_FINAL), and_(JOB.c.phase != "", JOB.c.gone.is_(None))), JOB.c.phase),
    (JOB.c.completed.is_(True), literal(str(JobPhase.SUCCEEDED))),
    (JOB.c.completed.is_(False), literal(str(JobPhase.FAILED))),
    (JOB.c.gone.is_not(None), literal(DELETED)),
    else_=literal(str(JobPhase.RUNNING)),
)
"""The monitor's phase; inferred for a job that only its master reports, and for one that was deleted."""
FEW = 3
"""Fewest samples from which a goodput is computed."""


@dataclass(frozen=True)
class RowRange:
    """A range of rows of a list.

    Attributes:
        limit: the most rows to return.
        offset: rows to skip.
    """

    limit: int = 50
    offset: int = 0


@dataclass(frozen=True)
class _Progress:
    """A job's progress according to its samples."""

    step: int
    speed: float
    goodput: float | None


def query_cluster(store: StoreReader, since: float, now: float, *, monitored: bool) -> messages.ClusterAnswer:
    """The cluster since a time (Unix seconds)."""
    with database.read_transaction(store.engine) as connection:
        sample_rows = _spread(connection, select(CLUSTER).where(CLUSTER.c.time >= since), CLUSTER.c.time)
    samples = [sample for row in sample_rows if (sample := cluster_sample(row)) is not None]
    points = [messages.ClusterPoint.model_validate(asdict(sample)) for sample in samples]
    return messages.ClusterAnswer(now=now, monitored=monitored, points=points)


def query_jobs(
    store: StoreReader,
    namespaces: Namespaces,
    page: RowRange,
    now: float,
    *,
    phase: str = "",
    search: str = "",
) -> messages.JobsAnswer:
    """The jobs, newest first.

    Args:
        store: the store.
        namespaces: namespaces of the jobs.
        page: which of them.
        now: Unix seconds.
        phase: only jobs in this phase; "" for all.
        search: only jobs whose name or namespace contains this.
    """
    which = [restrict_to_namespaces(JOB.c.namespace, namespaces)]
    if phase:
        which.append(PHASE.in_([phase]))
    if search:
        which.append(
            or_(
                JOB.c.name.contains(search, autoescape=True),
                JOB.c.namespace.contains(search, autoescape=True),
            )
        )
    newest = (JOB.c.created.desc(), JOB.c.namespace, JOB.c.uid)
    query = select(JOB, PHASE.label("known_phase")).where(*which).order_by(*newest)
    with database.read_transaction(store.engine) as connection:
        total = connection.execute(select(func.count()).select_from(JOB).where(*which)).scalar_one()
        job_rows = connection.execute(query.limit(page.limit).offset(page.offset)).all()
        progress = _progress(connection, [JobKey(row.namespace, row.uid) for row in job_rows])
    return messages.JobsAnswer(now=now, total=total, jobs=[_job_row(row, progress) for row in job_rows])


def query_job(store: StoreReader, namespaces: Namespaces, uid: str, now: float) -> messages.JobAnswer:
    """A job with its history.

    Raises:
        NotFoundError: these namespaces have no such job.
    """
    query = select(JOB, PHASE.label("known_phase")).where(
        JOB.c.uid == uid, restrict_to_namespaces(JOB.c.namespace, namespaces)
    )
    with database.read_transaction(store.engine) as connection:
        job_row = connection.execute(query.order_by(JOB.c.heard.desc()).limit(1)).first()
        if job_row is None:
            raise NotFoundError(f"no job with the uid {uid}")
        mine = select(SAMPLE).where(SAMPLE.c.namespace == job_row.namespace, SAMPLE.c.uid == uid)
        points = [_point(sample_row) for sample_row in _spread(connection, mine, SAMPLE.c.time)]
        progress = _progress(connection, [JobKey(job_row.namespace, uid)])
        listed = _listed().where(PLAN.c.namespace == job_row.namespace, PLAN.c.job == job_row.name)
        plan_rows = connection.execute(listed.order_by(PLAN.c.time.desc()).limit(messages.MAX_ROWS)).all()
    plans = [_plan_row(plan_row) for plan_row in plan_rows]
    return messages.JobAnswer(now=now, job=_job_row(job_row, progress), points=points, plans=plans)


def query_plans(
    store: StoreReader, namespaces: Namespaces, page: RowRange, now: float, *, job: str = ""
) -> messages.ChangesAnswer:
    """The plans, newest first.

    Args:
        store: the store.
        namespaces: namespaces of the plans.
        page: which of them.
        now: Unix seconds.
        job: only plans for jobs of this name; "" for all.
    """
    query = _listed().where(restrict_to_namespaces(PLAN.c.namespace, namespaces))
    if job:
        query = query.where(PLAN.c.job == job)
    newest = query.order_by(PLAN.c.time.desc(), PLAN.c.namespace, PLAN.c.id)
    with database.read_transaction(store.engine) as connection:
        total = connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()
        plan_rows = connection.execute(newest.limit(page.limit).offset(page.offset)).all()
    return messages.ChangesAnswer(now=now, total=total, plans=[_plan_row(row) for row in plan_rows])


def _listed() -> Select[Any]:
    """Select ScalePlans, and advice of the Brain for which there is no ScalePlan of the job yet."""
    later = PLAN.alias("later")
    followed = exists().where(
        later.c.namespace == PLAN.c.namespace,
        later.c.job == PLAN.c.job,
        later.c.name != "",
        later.c.time >= PLAN.c.time,
    )
    return select(PLAN).where(or_(PLAN.c.name != "", ~followed))


def _spread(connection: Connection, query: Select[Any], time: Column[Any]) -> Sequence[Row[Any]]:
    """At most `messages.MAX_POINTS` of these rows, evenly selected, with the newest, ordered by time."""
    total = connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()
    stride = -(-total // messages.MAX_POINTS) or 1
    number = func.row_number().over(order_by=time.desc()).label("number")
    numbered = query.add_columns(number).subquery()
    chosen = select(numbered).where((numbered.c.number - 1) % stride == 0).order_by(numbered.c.time)
    return connection.execute(chosen).all()


def _progress(connection: Connection, keys: Sequence[JobKey]) -> dict[JobKey, _Progress]:
    """The step of each job, and the fraction of its time that was spent on steps that were not lost.

    Steps are lost when a job continues from an earlier step. Of the time between two samples, only the part
    counts in which the job went beyond its highest step so far.
    """
    of_job, time = (SAMPLE.c.namespace, SAMPLE.c.uid), SAMPLE.c.time
    lagged = (
        select(
            *(SAMPLE.c[name] for name in ("namespace", "uid", "time", "step", "speed")),
            func.lag(time).over(partition_by=of_job, order_by=time).label("before"),
            func.lag(SAMPLE.c.step).over(partition_by=of_job, order_by=time).label("from_step"),
            func.max(SAMPLE.c.step)
            .over(partition_by=of_job, order_by=time, rows=(None, -1))
            .label("furthest"),
            func.row_number().over(partition_by=of_job, order_by=time.desc()).label("age"),
        )
        .where(tuple_(SAMPLE.c.namespace, SAMPLE.c.uid).in_([(key.namespace, key.uid) for key in keys]))
        .subquery()
    )
    c = lagged.c
    gained = and_(c.step > c.furthest, c.step > c.from_step)
    part = (c.time - c.before) * (c.step - c.furthest) / (c.step - c.from_step)
    summed = select(
        c.namespace,
        c.uid,
        func.count().label("samples"),
        (func.max(c.time) - func.min(c.time)).label("seconds"),
        func.sum(case((gained, part), else_=0.0)).label("useful"),
        func.max(case((c.age == 1, c.step))).label("step"),
        func.max(case((c.age == 1, c.speed))).label("speed"),
    ).group_by(c.namespace, c.uid)
    progress = {}
    for totals in connection.execute(summed):
        goodput = (
            min(1.0, totals.useful / totals.seconds) if totals.samples >= FEW and totals.seconds > 0 else None
        )
        progress[JobKey(totals.namespace, totals.uid)] = _Progress(totals.step, totals.speed, goodput)
    return progress


def _job_row(row: Row[Any], progress: dict[JobKey, _Progress]) -> messages.JobRow:
    stored = stored_job(row)
    seen, job_progress = stored.seen, progress.get(stored.key)
    made: dict[str, Any] = {
        "uid": row.uid,
        "kind": row.kind,
        "namespace": row.namespace,
        "name": row.name,
        "phase": row.known_phase,
        "reason": row.reason,
        "replicas": _replicas(stored),
        "created": row.created,
        "finished": row.ended,
        "seen": row.heard,
    }
    if seen is not None:
        same = ("message", "step", "speed", "metrics", "optimizer", "stage", "reasons", "started")
        made |= {name: getattr(seen, name) for name in same} | {"notes": list(seen.notes)}
    if job_progress is not None:
        made |= {"step": job_progress.step, "speed": job_progress.speed, "goodput": job_progress.goodput}
    return messages.JobRow.model_validate(made)


def _replicas(job: StoredJob) -> dict[str, dict[str, int | None]]:
    """The replicas that the monitor saw. Without a monitor, the counts that the master wants; how many are
    ready is then unknown."""
    if job.seen is not None:
        return {role: asdict(counts) for role, counts in job.seen.replicas.items()}
    roles = job.facts.roles if job.facts else {}
    return {name: {"desired": role.count, "ready": None} for name, role in roles.items()}


def _point(sample_row: Row[Any]) -> messages.JobPoint:
    sample = sample_of_row(sample_row)
    if sample is None:
        return messages.JobPoint(time=sample_row.time, step=sample_row.step, speed=sample_row.speed)
    nodes = Counter(node.role for node in sample.nodes)
    return messages.JobPoint(
        time=sample_row.time,
        step=sample_row.step,
        speed=sample_row.speed,
        nodes=dict(nodes),
        metrics=dict(sample.metrics),
    )


def _plan_row(row: Row[Any]) -> messages.ChangeRow:
    deleted = row.gone is not None and row.phase not in _FINAL
    return messages.ChangeRow(
        id=row.id,
        namespace=row.namespace,
        job=row.job,
        name=row.name,
        changes=list(parse_lines(row.changes)),
        reason=row.reason,
        phase=DELETED if deleted else row.phase,
        message=row.message,
        created=row.time,
        finished=row.finished,
    )
