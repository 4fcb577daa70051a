"""Record which attempts have the whole reward at each of their rows.

Older workers may keep running: the attempts that they write add up the rewards of their rows, as before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "rollout",
        sa.Column("shares_reward", sa.Boolean(), server_default="false", nullable=False),
        schema="trinity",
    )


def downgrade() -> None:
    op.drop_column("rollout", "shares_reward", schema="trinity")
