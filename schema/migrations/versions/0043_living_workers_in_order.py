"""Workers that run are found in the order of their ids: the first ones rescue.

Older workers may keep running: each of them rescues at each heartbeat.
"""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _index("run_id", "id")


def downgrade() -> None:
    _index("run_id")


def _index(*columns: str) -> None:
    op.drop_index("worker_running_idx", "worker", schema="trinity")
    op.create_index(
        "worker_running_idx",
        "worker",
        list(columns),
        schema="trinity",
        postgresql_where=sa.text("stopped_at IS NULL"),
    )
