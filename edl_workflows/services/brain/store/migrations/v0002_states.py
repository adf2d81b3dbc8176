"""The states of jobs, which masters keep here."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "state",
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("uid", sa.String(128), nullable=False),
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("heard", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "uid"),
    )
    op.create_index("state_heard", "state", ["heard"])
    op.create_table(
        "snapshot",
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("uid", sa.String(128), nullable=False),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("head", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "uid", "term", "number"),
    )
