"""Priorities of groups that processing steps compute.

Older workers may keep running in runs without such steps. Elsewhere a processor of before makes groups ready
whose priority is never computed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

STATE = sa.text("priority IS NULL AND failed_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "group_priority",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True)),
        sa.Column("priority", sa.Double()),
        sa.Column("processor_version", sa.Integer()),
        sa.Column("policy_version", sa.Integer()),
        sa.Column("computed_xact", sa.BigInteger()),
        sa.Column("experience_id", sa.BigInteger()),
        sa.Column("step", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("failed_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(priority IS NULL) = (computed_xact IS NULL)",
            name=op.f("group_priority_computed_by_a_transaction_check"),
        ),
        sa.CheckConstraint(
            "failed_at IS NULL OR priority IS NULL AND error IS NOT NULL",
            name=op.f("group_priority_failed_with_an_error_check"),
        ),
        sa.CheckConstraint(
            "priority = 0 OR priority BETWEEN 1e-18 AND 1e18",
            name=op.f("group_priority_priority_in_range_check"),
        ),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["trinity.rollout_group.id"],
            name="group_priority_group_id_fkey",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="group_priority_pkey"),
        schema="trinity",
        postgresql_with={
            "fillfactor": "70",
            "autovacuum_vacuum_threshold": "1000",
            "autovacuum_vacuum_scale_factor": "0.01",
            "autovacuum_vacuum_insert_scale_factor": "0.05",
            "autovacuum_analyze_scale_factor": "0.02",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_index(
        "group_priority_due_idx", "group_priority", ["run_id", "id"], schema="trinity", postgresql_where=STATE
    )
    op.create_index("group_priority_group_id_id_idx", "group_priority", ["group_id", "id"], schema="trinity")


def downgrade() -> None:
    op.drop_table("group_priority", schema="trinity")
