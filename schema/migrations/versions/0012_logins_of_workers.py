"""A worker's row says by which login it came, so that no other login keeps its leases alive or ends them.

Older workers may run on: the server fills the column in.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("login", sa.Text(), server_default=sa.text("session_user"), nullable=False)
    op.add_column("worker", column, schema="trinity")


def downgrade() -> None:
    op.drop_column("worker", "login", schema="trinity")
