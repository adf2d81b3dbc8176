"""Reads the store for the optimizer, the monitor and the API. Thread-safe.

Damaged rows are skipped and never raise an error.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Engine, Row, Select, and_, func, or_, select, true

from edl_workflows.core.protocol.brain import JobDescription, NodeOom
from edl_workflows.core.scaling.dlrover.brain.request import FormerJob
from edl_workflows.core.scaling.dlrover.samples import JobSample
from edl_workflows.services.brain.observations import ClusterObservation
from edl_workflows.services.brain.store import database
from edl_workflows.services.brain.store.records import (
    JobKey,
    StoredJob,
    cluster_sample,
    oom_of_row,
    parse_lines,
    sample_of_row,
    scenario_of,
    stored_job,
)
from edl_workflows.services.brain.store.tables import CLUSTER, JOB, OOM, PLAN, SAMPLE

Namespaces = Collection[str] | None
"""Namespaces whose rows a caller may see; None for all."""


class StoreReader:
    """Reads a store. Each method is one transaction; all may raise UnavailableError.

    Args:
        engine: engine of a database whose schema is up to date.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def check(self) -> None:
        """Check that the database answers.

        Raises:
            UnavailableError: it does not.
        """
        self._read(select(JOB.c.uid).limit(1))

    def open_jobs(self, kind: str, namespace: str) -> list[str]:
        """Uids of a kind's jobs that the monitor saw and that are not marked as gone, in one namespace or, if
        it is empty, in all."""
        query = select(JOB.c.uid).where(JOB.c.kind == kind, JOB.c.seen != "", JOB.c.gone.is_(None))
        return [
            job.uid for job in self._read(query.where(JOB.c.namespace == namespace) if namespace else query)
        ]

    def open_plans(self, namespace: str) -> list[str]:
        """The same for ScalePlans."""
        query = select(PLAN.c.id).where(PLAN.c.name != "", PLAN.c.gone.is_(None))
        return [
            plan.id for plan in self._read(query.where(PLAN.c.namespace == namespace) if namespace else query)
        ]

    def job(self, namespaces: Namespaces, uid: str) -> StoredJob | None:
        """A job. If several namespaces have a job with this uid, the one that was reported last."""
        query = select(JOB).where(JOB.c.uid == uid, restrict_to_namespaces(JOB.c.namespace, namespaces))
        job_rows = self._read(query.order_by(JOB.c.heard.desc()).limit(1))
        return stored_job(job_rows[0]) if job_rows else None

    def samples(self, key: JobKey, newest: int) -> list[JobSample]:
        """A job's newest samples, oldest first."""
        mine = (SAMPLE.c.namespace == key.namespace, SAMPLE.c.uid == key.uid)
        query = select(SAMPLE).where(*mine).order_by(SAMPLE.c.time.desc()).limit(newest)
        sample_rows = self._read(query)
        return [sample for row in reversed(sample_rows) if (sample := sample_of_row(row)) is not None]

    def ooms(self, key: JobKey, newest: int) -> list[NodeOom]:
        """Nodes of a job that ran out of memory, oldest first."""
        mine = (OOM.c.namespace == key.namespace, OOM.c.uid == key.uid)
        query = select(OOM).where(*mine).order_by(OOM.c.time.desc()).limit(newest)
        oom_rows = self._read(query)
        return [oom for row in reversed(oom_rows) if (oom := oom_of_row(row)) is not None]

    def former(
        self, job: JobDescription, since: float, silent: float, jobs: int, samples: int
    ) -> list[FormerJob]:
        """Jobs of the same namespace and scenario that have ended or no longer report.

        Args:
            job: the job, which is not among the results.
            since: Unix seconds; jobs that ended or last reported before are left out.
            silent: Unix seconds; a job that last reported before is considered finished.
            jobs: number of jobs to return at most; the latest ones are returned.
            samples: number of samples per job to return at most; the newest ones are returned.
        """
        query = (
            select(JOB.c.uid, JOB.c.name, JOB.c.completed)
            .where(JOB.c.namespace == job.namespace, JOB.c.scenario == scenario_of(job))
            .where(JOB.c.uid != job.uid, JOB.c.reported.is_not(None))
            .where(
                or_(JOB.c.ended >= since, and_(JOB.c.ended.is_(None), JOB.c.reported.between(since, silent)))
            )
            .order_by(JOB.c.reported.desc())
            .limit(jobs)
        )
        with database.read_transaction(self.engine) as connection:
            former_jobs = connection.execute(query).all()
            uids = [former_job.uid for former_job in former_jobs]
            rank = func.row_number().over(partition_by=SAMPLE.c.uid, order_by=SAMPLE.c.time.desc())
            mine = (SAMPLE.c.namespace == job.namespace, SAMPLE.c.uid.in_(uids))
            ranked = select(SAMPLE, rank.label("rank")).where(*mine).subquery()
            sample_rows = connection.execute(select(ranked).where(ranked.c.rank <= samples)).all()
            ooms = connection.execute(
                select(OOM.c.uid, OOM.c.node).where(OOM.c.namespace == job.namespace, OOM.c.uid.in_(uids))
            ).all()
        return [
            FormerJob(
                former_job.name,
                bool(former_job.completed),
                tuple(
                    s
                    for sample_row in sample_rows
                    if sample_row.uid == former_job.uid and (s := sample_of_row(sample_row)) is not None
                ),
                frozenset(oom.node for oom in ooms if oom.uid == former_job.uid),
            )
            for former_job in former_jobs
        ]

    def running(self, since: float, most: int) -> list[StoredJob]:
        """Jobs that the monitor sees, that have not ended, and whose masters reported recently.

        Args:
            since: Unix seconds; jobs that last reported before are left out.
            most: number of jobs to return at most; the latest ones are returned.
        """
        query = select(JOB).where(JOB.c.reported >= since, JOB.c.ended.is_(None), JOB.c.seen != "")
        job_rows = self._read(query.order_by(JOB.c.reported.desc()).limit(most))
        return [stored_job(row) for row in job_rows]

    def cluster(self, since: float) -> ClusterObservation | None:
        """The newest sample of the cluster, if it is not older than `since`."""
        query = select(CLUSTER).where(CLUSTER.c.time >= since).order_by(CLUSTER.c.time.desc()).limit(1)
        sample_rows = self._read(query)
        return cluster_sample(sample_rows[0]) if sample_rows else None

    def last_advice(self, namespace: str, job: str) -> tuple[tuple[str, ...], str] | None:
        """Changes and reason of the Brain's last advice for a job; None if there is none."""
        query = select(PLAN).where(PLAN.c.namespace == namespace, PLAN.c.job == job, PLAN.c.name == "")
        plan_rows = self._read(query.order_by(PLAN.c.time.desc()).limit(1))
        return (parse_lines(plan_rows[0].changes), plan_rows[0].reason) if plan_rows else None

    def _read(self, query: Select[Any]) -> Sequence[Row[Any]]:
        with database.read_transaction(self.engine) as connection:
            return connection.execute(query).all()


def restrict_to_namespaces(column: ColumnElement[str], namespaces: Namespaces) -> ColumnElement[bool]:
    """The condition that restricts a query to these namespaces."""
    return true() if namespaces is None else column.in_(sorted(namespaces))
