"""A run can be asked to stop, from any machine.

Older workers may keep running: they do not hear it, and stop by a signal as before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "run", sa.Column("stop_asked_at", sa.DateTime(timezone=True), nullable=True), schema="trinity"
    )


def downgrade() -> None:
    op.drop_column("run", "stop_asked_at", schema="trinity")
