"""Versions say where their files are in an object store, and explorers which one they have fetched.

Older workers may keep running in runs without `trainer.weights`. One of before cannot join a run with it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("policy_version", sa.Column("weights", sa.Text()), schema="trinity")
    op.create_check_constraint(
        op.f("policy_version_weights_are_kept_check"),
        "policy_version",
        "weights IS NULL OR checkpoint IS NOT NULL",
        schema="trinity",
    )
    op.add_column("worker", sa.Column("staged_version", sa.Integer()), schema="trinity")
    op.add_column("worker", sa.Column("broken_weights", sa.Text()), schema="trinity")


def downgrade() -> None:
    op.drop_column("worker", "broken_weights", schema="trinity")
    op.drop_column("worker", "staged_version", schema="trinity")
    op.drop_column("policy_version", "weights", schema="trinity")
