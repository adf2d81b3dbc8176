"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    _make_jobs()
    _make_samples()
    _make_plans()
    op.create_table(
        "cluster",
        sa.Column("time", sa.Double, primary_key=True),
        sa.Column("sample", sa.Text, nullable=False),
    )


def _make_jobs() -> None:
    op.create_table(
        "job",
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("uid", sa.String(128), nullable=False),
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("kind", sa.String(63), nullable=False),
        sa.Column("phase", sa.String(63), nullable=False),
        sa.Column("scenario", sa.Text, nullable=False),
        sa.Column("heard", sa.Double, nullable=False),
        sa.Column("created", sa.Double),
        sa.Column("reported", sa.Double),
        sa.Column("ended", sa.Double),
        sa.Column("completed", sa.Boolean),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("gone", sa.Double),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("seen", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "uid"),
    )
    op.create_index("job_uid", "job", ["uid"])
    op.create_index("job_heard", "job", ["heard"])
    op.create_index("job_reported", "job", ["reported"])
    op.create_index("job_scenario", "job", ["namespace", "scenario", "ended"])


def _make_samples() -> None:
    op.create_table(
        "sample",
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("uid", sa.String(128), nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("speed", sa.Double, nullable=False),
        sa.Column("nodes", sa.Text, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("namespace", "uid", "time"),
        sqlite_with_rowid=False,
    )
    op.create_index("sample_time", "sample", ["time"])
    op.create_table(
        "oom",
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("uid", sa.String(128), nullable=False),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "uid", "node"),
        sqlite_with_rowid=False,
    )
    op.create_index("oom_time", "oom", ["time"])


def _make_plans() -> None:
    op.create_table(
        "plan",
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("job", sa.String(253), nullable=False),
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("phase", sa.String(63), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("changes", sa.Text, nullable=False),
        sa.Column("finished", sa.Double),
        sa.Column("gone", sa.Double),
        sa.PrimaryKeyConstraint("namespace", "id"),
    )
    op.create_index("plan_time", "plan", ["time"])
    op.create_index("plan_job", "plan", ["namespace", "job", "time"])
