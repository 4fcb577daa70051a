"""Groups whose rows are judged again.

Older workers may keep running: they give back no group that a dead worker was judging again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rescore",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["trinity.rollout_group.id"],
            name="rescore_group_id_fkey",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("group_id", name="rescore_pkey"),
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
    op.create_index("rescore_worker_id_idx", "rescore", ["worker_id"], schema="trinity")


def downgrade() -> None:
    op.drop_table("rescore", schema="trinity")
