"""A payload may be pruned: its row stays and says when, and its bytes are nowhere.

Older workers may run on: they read no row that can be pruned.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "payload", sa.Column("pruned_at", sa.DateTime(timezone=True), nullable=True), schema="trinity"
    )
    _replace_check("num_nonnulls(data, archive_row, pruned_at) = 1")


def downgrade() -> None:
    # A row without bytes is none in the older schema: its experience has no arrays then.
    op.execute("DELETE FROM trinity.payload WHERE pruned_at IS NOT NULL")
    _replace_check("num_nonnulls(data, archive_row) = 1")
    op.drop_column("payload", "pruned_at", schema="trinity")


def _replace_check(condition: str) -> None:
    name = op.f("payload_in_one_place_check")
    op.drop_constraint(name, "payload", schema="trinity")
    op.create_check_constraint(name, "payload", condition, schema="trinity")
