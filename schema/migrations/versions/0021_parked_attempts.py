"""Attempts that wait for a person or an experiment give up their place, and go on when they are answered.

Older workers may not run on: they would make parked attempts anew from their start.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "park",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("agent_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("parked_at", sa.DateTime(timezone=True)),
        sa.Column("state", JSONB()),
        sa.Column("record", JSONB()),
        sa.Column("version_min", sa.Integer()),
        sa.Column("wake_at", sa.DateTime(timezone=True)),
        sa.Column("answer", JSONB()),
        sa.Column("answered_at", sa.DateTime(timezone=True)),
        sa.Column("answered_by", sa.Text()),
        sa.Column("resumed_at", sa.DateTime(timezone=True)),
        sa.Column("resumed_attempt", sa.Integer()),
        sa.Column("left_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "(parked_at IS NULL) = (state IS NULL) AND (parked_at IS NULL) = (record IS NULL)",
            name=op.f("park_parked_with_state_check"),
        ),
        sa.CheckConstraint(
            "(answered_at IS NULL) = (answer IS NULL)", name=op.f("park_answer_iff_answered_check")
        ),
        sa.CheckConstraint(
            "resumed_at IS NULL OR (parked_at IS NOT NULL AND resumed_attempt IS NOT NULL)",
            name=op.f("park_resumed_from_a_park_check"),
        ),
        sa.CheckConstraint(
            "left_at IS NULL OR resumed_at IS NOT NULL", name=op.f("park_left_after_it_was_resumed_check")
        ),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["trinity.agent.id"], name="park_agent_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="park_pkey"),
        schema="trinity",
    )
    op.create_index(
        "park_current_key",
        "park",
        ["agent_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("parked_at IS NOT NULL AND left_at IS NULL"),
    )
    op.create_index(
        "park_ticket_key",
        "park",
        ["agent_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("parked_at IS NULL"),
    )
    op.create_index("park_agent_id_idx", "park", ["agent_id"], schema="trinity")
    op.create_index("park_run_id_id_idx", "park", ["run_id", "id"], schema="trinity")


def downgrade() -> None:
    op.drop_table("park", schema="trinity")
