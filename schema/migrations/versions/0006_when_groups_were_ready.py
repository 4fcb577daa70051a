"""A rollout group keeps the time at which it became ready: state_time_view counts from there.

Older workers may run on: the groups that they settle have no such time, and are missing in the view.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rollout_group", sa.Column("ready_at", sa.DateTime(timezone=True)), schema="trinity")


def downgrade() -> None:
    op.drop_column("rollout_group", "ready_at", schema="trinity")
