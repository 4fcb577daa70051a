"""The store knows which instance it is, so that a copy leaves its original's files alone.

Older workers may run on: no table that they know changes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "store_instance",
        sa.Column("is_only", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("copy_of", sa.Uuid(), nullable=True),
        sa.Column("system_identifier", sa.BigInteger(), nullable=False),
        sa.Column("database_oid", sa.BigInteger(), nullable=False),
        sa.Column("timeline", sa.Integer(), nullable=False),
        sa.Column("home", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.CheckConstraint("is_only", name=op.f("store_instance_one_row_check")),
        sa.PrimaryKeyConstraint("is_only", name=op.f("store_instance_pkey")),
        schema="trinity",
    )


def downgrade() -> None:
    op.drop_table("store_instance", schema="trinity")
