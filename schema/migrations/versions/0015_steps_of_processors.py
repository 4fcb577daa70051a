"""Which steps processors worked by is a row; what was dropped or failed names its step.

Older workers may run on: they write neither.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

NAMED = ("processing", "drop")


def upgrade() -> None:
    op.create_table(
        "step_list",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("processor", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("steps", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name="step_list_run_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "processor", "version", name="step_list_pkey"),
        schema="trinity",
    )
    for table in NAMED:
        op.add_column(table, sa.Column("step", sa.Text(), nullable=True), schema="trinity")


def downgrade() -> None:
    for table in NAMED:
        op.drop_column(table, "step", schema="trinity")
    op.drop_table("step_list", schema="trinity")
