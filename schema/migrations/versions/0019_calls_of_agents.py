"""Programs that ask the policy over HTTP have a row, and so has each of their calls.

Older workers may run on: they write neither.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

NOW = sa.text("now()")


def upgrade() -> None:
    op.create_table(
        "agent",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.SmallInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("retry", sa.SmallInteger(), nullable=False),
        sa.Column("worker_id", sa.BigInteger(), nullable=False),
        sa.Column("key_hash", sa.LargeBinary()),
        sa.Column("rewards", JSONB()),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["group_id"], ["trinity.rollout_group.id"], name="agent_group_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="agent_pkey"),
        schema="trinity",
    )
    op.create_index("agent_key_hash_key", "agent", ["key_hash"], unique=True, schema="trinity")
    op.create_index(
        "agent_live_member_key",
        "agent",
        ["group_id", "ordinal"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index("agent_group_id_ordinal_idx", "agent", ["group_id", "ordinal"], schema="trinity")
    op.create_table(
        "call",
        sa.Column("agent_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary()),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.CheckConstraint("number >= 0 AND num_tokens > 0", name=op.f("call_has_tokens_check")),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["trinity.agent.id"], name="call_agent_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("agent_id", "number", name="call_pkey"),
        schema="trinity",
    )
    op.execute("ALTER TABLE trinity.call ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("call", schema="trinity")
    op.drop_table("agent", schema="trinity")
