"""Each configuration that a run had is a dated row; workers and batches name theirs.

Stop all workers first: those of the version before enter themselves without a setting, which is refused.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

REFERRING = ("worker", "batch")


def upgrade() -> None:
    op.create_table(
        "run_setting",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("config", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("created_by", sa.Text(), server_default=sa.text("SESSION_USER"), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name="run_setting_run_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="run_setting_pkey"),
        sa.UniqueConstraint("run_id", "id", name="run_setting_run_id_id_key"),
        schema="trinity",
    )
    op.execute(
        "INSERT INTO trinity.run_setting (run_id, config, created_at, created_by)"
        " SELECT id, config, created_at, NULL FROM trinity.run WHERE kind = 'train' ORDER BY id"
    )
    for table in REFERRING:
        op.add_column(table, sa.Column("setting_id", sa.BigInteger(), nullable=True), schema="trinity")
        op.execute(
            f"UPDATE trinity.{table} t SET setting_id = s.id"
            " FROM trinity.run_setting s WHERE s.run_id = t.run_id"
        )
        op.alter_column(table, "setting_id", nullable=False, schema="trinity")
        op.create_foreign_key(
            f"{table}_run_id_setting_id_fkey",
            table,
            "run_setting",
            ["run_id", "setting_id"],
            ["run_id", "id"],
            source_schema="trinity",
            referent_schema="trinity",
        )


def downgrade() -> None:
    for table in REFERRING:
        op.drop_column(table, "setting_id", schema="trinity")
    op.drop_table("run_setting", schema="trinity")
