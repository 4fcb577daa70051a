"""Reward events name the list of steps that made them.

Older workers may keep running: their events name none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reward_event", sa.Column("processor_version", sa.Integer()), schema="trinity")


def downgrade() -> None:
    op.drop_column("reward_event", "processor_version", schema="trinity")
