"""The current tables of the store. `edl_workflows.services.brain.store.migrations` has their first version
and all changes.

A job is identified by namespace and uid, so that a tenant can only write rows of its own namespaces, whatever
uid it claims. Values that are only read as a whole are stored as JSON text. Times are in Unix seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    Index,
    Insert,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    func,
)
from sqlalchemy.dialects import postgresql, sqlite

METADATA = MetaData()


def _job_key() -> list[Column[Any]]:
    return [Column("namespace", String(63), nullable=False), Column("uid", String(128), nullable=False)]


JOB = Table(
    "job",
    METADATA,
    *_job_key(),
    Column("name", String(253), nullable=False),
    Column("kind", String(63), nullable=False),
    Column("phase", String(63), nullable=False),  # as the monitor saw it
    Column("scenario", Text, nullable=False),
    Column("heard", Double, nullable=False),  # when the master or the monitor last reported it
    Column("created", Double),
    Column("reported", Double),  # when the master last reported it
    Column("ended", Double),
    Column("completed", Boolean),
    Column("reason", Text, nullable=False),
    Column("gone", Double),  # since when its object does not exist
    Column(
        "facts", Text, nullable=False
    ),  # protocol.brain.JobDescription; "" before the master's first report
    Column("seen", Text, nullable=False),  # JobObservation as JSON; "" before the monitor has seen it
    PrimaryKeyConstraint("namespace", "uid"),
    Index("job_uid", "uid"),
    Index("job_heard", "heard"),
    Index("job_reported", "reported"),
    Index("job_scenario", "namespace", "scenario", "ended"),
)
SAMPLE = Table(
    "sample",
    METADATA,
    *_job_key(),
    Column("time", Double, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("speed", Double, nullable=False),
    Column("nodes", Text, nullable=False),  # a list of protocol.brain.NodeUsage
    Column("metrics", Text, nullable=False, server_default=""),  # jobs.metrics.ChartedMetrics; "" for none
    PrimaryKeyConstraint("namespace", "uid", "time"),
    Index("sample_time", "time"),
    sqlite_with_rowid=False,
)
OOM = Table(
    "oom",
    METADATA,
    *_job_key(),
    Column("node", String(253), nullable=False),
    Column("time", Double, nullable=False),
    PrimaryKeyConstraint(
        "namespace", "uid", "node"
    ),  # a node runs out of memory only once: another one replaces it
    Index("oom_time", "time"),
    sqlite_with_rowid=False,
)
PLAN = Table(
    "plan",
    METADATA,
    Column("namespace", String(63), nullable=False),
    Column("id", String(128), nullable=False),
    Column("job", String(253), nullable=False),
    Column("name", String(253), nullable=False),  # of the ScalePlan; "" if it is advice of the Brain
    Column("time", Double, nullable=False),
    Column("phase", String(63), nullable=False),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("changes", Text, nullable=False),  # a JSON list of lines
    Column("finished", Double),
    Column("gone", Double),
    PrimaryKeyConstraint("namespace", "id"),
    Index("plan_time", "time"),
    Index("plan_job", "namespace", "job", "time"),
)
CLUSTER = Table(
    "cluster",
    METADATA,
    Column("time", Double, primary_key=True),
    Column("sample", Text, nullable=False),  # a ClusterObservation as JSON
)
STATE = Table(
    "state",
    METADATA,
    *_job_key(),
    Column("name", String(253), nullable=False),
    Column("term", BigInteger, nullable=False),  # of the master that may write
    Column("number", BigInteger, nullable=False),  # of its newest snapshot; 0 before the first one
    Column("heard", Double, nullable=False),  # when a master last took it over or wrote it
    PrimaryKeyConstraint("namespace", "uid"),
    Index("state_heard", "heard"),
)
SNAPSHOT = Table(
    "snapshot",
    METADATA,
    *_job_key(),
    Column("term", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),  # of the document, in bytes
    Column("head", Text, nullable=False),  # written and read by masters
    Column("document", Text, nullable=False),  # as above
    PrimaryKeyConstraint("namespace", "uid", "term", "number"),
)


@dataclass(frozen=True)
class Upsert:
    """How rows of a table are inserted or updated.

    Attributes:
        table: the table.
        updated: columns that an update sets; all others keep the values of the existing row.
        learned: columns that an update sets if the new value is not null.
    """

    table: Table
    updated: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()

    def statement(self, dialect: Dialect) -> Insert:
        """The SQL statement for a list of rows."""
        insert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        made = insert(self.table)
        keys: Sequence[Column[Any]] = list(self.table.primary_key)
        if not self.updated:
            return made.on_conflict_do_nothing(index_elements=keys)
        newer = {name: made.excluded[name] for name in self.updated}
        learned = {name: func.coalesce(made.excluded[name], self.table.c[name]) for name in self.learned}
        return made.on_conflict_do_update(index_elements=keys, set_=newer | learned)


REPORTED_JOB = Upsert(JOB, ("name", "kind", "scenario", "heard", "reported", "facts"))
ENDED_JOB = Upsert(JOB, ("heard", "ended", "completed", "reason"))
SEEN_JOB = Upsert(
    JOB,
    ("name", "kind", "phase", "heard", "created", "reason", "gone", "seen"),
    ("ended", "completed"),  # the master may have reported it already
)
NEW_SAMPLE = Upsert(SAMPLE)
NEW_OOM = Upsert(OOM)
NEW_PLAN = Upsert(PLAN)
SEEN_PLAN = Upsert(PLAN, ("phase", "reason", "message", "changes", "finished", "gone"))
NEW_CLUSTER = Upsert(CLUSTER)
ORDER = (REPORTED_JOB, ENDED_JOB, NEW_SAMPLE, NEW_OOM, NEW_PLAN, NEW_CLUSTER)
"""Order in which a transaction writes to tables. All use the same order, so that no two block each other."""
