"""What clean steps find in rows that they pass.

Older workers may keep running: they record nothing of it.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("processing", sa.Column("detail", postgresql.JSONB()), schema="trinity")


def downgrade() -> None:
    op.drop_column("processing", "detail", schema="trinity")
