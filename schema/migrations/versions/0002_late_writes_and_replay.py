"""Keep late writes for the record, and what is needed to run a draw again.

Older workers must be stopped: they would take refused rollouts for members of their group, and their
reopened batches would break a constraint.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

CURRENT_XACT = sa.text("(pg_current_xact_id()::text)::bigint")


def upgrade() -> None:
    op.execute("ALTER TYPE trinity.rollout_state ADD VALUE IF NOT EXISTS 'refused'")
    op.execute("ALTER TYPE trinity.processing_outcome ADD VALUE IF NOT EXISTS 'refused'")
    op.add_column("rollout_group", sa.Column("ready_xact", sa.BigInteger()), schema="trinity")
    op.add_column("experience", sa.Column("ready_xact", sa.BigInteger()), schema="trinity")
    op.add_column(
        "preference",
        sa.Column("ready_xact", sa.BigInteger(), server_default=CURRENT_XACT, nullable=False),
        schema="trinity",
    )
    op.add_column(
        "reward_event",
        sa.Column("xact", sa.BigInteger(), server_default=CURRENT_XACT, nullable=False),
        schema="trinity",
    )
    op.add_column("batch", sa.Column("snapshot", sa.Text()), schema="trinity")
    op.add_column("batch", sa.Column("max_staleness", sa.Integer()), schema="trinity")
    op.add_column("batch", sa.Column("reopened_at", sa.DateTime(timezone=True)), schema="trinity")
    # What is there already can be seen by every draw that follows.
    op.execute(
        f"UPDATE trinity.rollout_group SET ready_xact = {CURRENT_XACT}"
        " WHERE state IN ('ready', 'leased', 'trained')"
    )
    op.execute(f"UPDATE trinity.experience SET ready_xact = {CURRENT_XACT} WHERE source_id IS NOT NULL")
    op.execute("UPDATE trinity.batch SET reopened_at = now() WHERE state = 'reopened'")
    op.create_check_constraint(
        op.f("batch_reopened_at_iff_reopened_check"),
        "batch",
        "(state = 'reopened') = (reopened_at IS NOT NULL)",
        schema="trinity",
    )


def downgrade() -> None:
    # The values stay in their enums, which can only grow; nothing has them any more.
    op.execute(
        "DELETE FROM trinity.experience e USING trinity.rollout r"
        " WHERE r.id = e.rollout_id AND r.state::text = 'refused'"
    )
    op.execute("DELETE FROM trinity.rollout WHERE state::text = 'refused'")
    op.execute("DELETE FROM trinity.processing WHERE outcome::text = 'refused'")
    op.drop_constraint("batch_reopened_at_iff_reopened_check", "batch", schema="trinity")
    for column in ("reopened_at", "max_staleness", "snapshot"):
        op.drop_column("batch", column, schema="trinity")
    op.drop_column("reward_event", "xact", schema="trinity")
    for table in ("preference", "experience", "rollout_group"):
        op.drop_column(table, "ready_xact", schema="trinity")
