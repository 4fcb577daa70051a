"""What a server lost, as after a failover to a replica that was behind, stands in the store.

Older workers may run on: no table that they know changes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "setback",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.BigInteger(), nullable=False),
        sa.Column("known_version", sa.Integer(), nullable=False),
        sa.Column("known_step", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("num_rows", sa.Integer(), nullable=True),
        sa.Column("first_version", sa.Integer(), nullable=True),
        sa.Column("last_version", sa.Integer(), nullable=True),
        sa.Column("resumed_version", sa.Integer(), nullable=False),
        sa.Column("adopted_version", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.CheckConstraint(
            "(first_version IS NULL) = (last_version IS NULL)", name=op.f("setback_versions_together_check")
        ),
        sa.CheckConstraint(
            "last_step > known_step OR last_version IS NOT NULL", name=op.f("setback_lost_something_check")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("setback_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("setback_pkey")),
        schema="trinity",
    )
    op.create_index(op.f("setback_run_id_idx"), "setback", ["run_id"], schema="trinity")


def downgrade() -> None:
    op.drop_table("setback", schema="trinity")
