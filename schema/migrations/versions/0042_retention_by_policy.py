"""Processors remove old rows by themselves: which runs' rows, how much went, and how far they looked.

Older workers may keep running: they remove nothing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

FAMILY = "family IN ('payloads', 'calls', 'metrics', 'processing')"


def upgrade() -> None:
    op.create_table(
        "retention",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("num_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(FAMILY, name=op.f("retention_known_family_check")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("retention_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "family", name=op.f("retention_pkey")),
        schema="trinity",
    )
    op.create_table(
        "sweep",
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("after_id", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(FAMILY, name=op.f("sweep_known_family_check")),
        sa.CheckConstraint("after_id >= 0", name=op.f("sweep_after_a_row_check")),
        sa.PrimaryKeyConstraint("family", name=op.f("sweep_pkey")),
        schema="trinity",
    )


def downgrade() -> None:
    # The policies of processors that remove rows go with it.
    op.execute("DROP FUNCTION IF EXISTS trinity.kept_for(bigint, text) CASCADE")
    op.drop_table("sweep", schema="trinity")
    op.drop_table("retention", schema="trinity")
