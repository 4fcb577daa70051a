"""A run that is being deleted says so, until its last row is gone.

Older workers may run on: none of them serves a run that is being deleted, since it has no workers then.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "run", sa.Column("deleting_at", sa.DateTime(timezone=True), nullable=True), schema="trinity"
    )


def downgrade() -> None:
    op.drop_column("run", "deleting_at", schema="trinity")
