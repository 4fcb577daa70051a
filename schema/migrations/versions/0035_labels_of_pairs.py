"""The sides of a pair are labels, good and bad, in a run that learns from labels.

Older workers must be stopped: they would adopt pairs that give no labels. Pairs of before give none either.
"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "preference",
        sa.Column("gives_labels", sa.Boolean(), server_default="false", nullable=False),
        schema="trinity",
    )


def downgrade() -> None:
    op.drop_column("preference", "gives_labels", schema="trinity")
