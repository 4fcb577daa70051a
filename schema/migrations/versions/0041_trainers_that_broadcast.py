"""A trainer says where it sends versions by broadcast.

Older workers may keep running: explorers of before load the files of each version.
"""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("broadcast_at", sa.Text()), schema="trinity")
    op.create_check_constraint(
        op.f("worker_is_of_a_trainer_check"),
        "worker",
        "broadcast_at IS NULL OR role = 'train'",
        schema="trinity",
    )


def downgrade() -> None:
    op.drop_column("worker", "broadcast_at", schema="trinity")
