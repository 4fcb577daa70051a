"""That a run has one trainer is a rule about its workers' rows, and holds behind a pooler too.

Stop the trainer for it: one of an older version and a newer one would not see each other. Other workers
may run on.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "worker",
        sa.Column("exclusive", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        schema="trinity",
    )
    op.add_column("worker", sa.Column("session_pid", sa.Integer()), schema="trinity")
    op.create_index(
        "worker_exclusive_idx",
        "worker",
        ["run_id", "role"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("exclusive AND stopped_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("worker_exclusive_idx", "worker", schema="trinity")
    op.drop_column("worker", "session_pid", schema="trinity")
    op.drop_column("worker", "exclusive", schema="trinity")
