"""Versions say where their checkpoint is in an object store.

Older workers may keep running. A trainer of before uploads no checkpoint, and finds none there.
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("policy_version", sa.Column("resume_address", sa.Text()), schema="trinity")
    op.create_check_constraint(
        op.f("policy_version_uploaded_is_kept_check"),
        "policy_version",
        "resume_address IS NULL OR resume_from IS NOT NULL",
        schema="trinity",
    )


def downgrade() -> None:
    op.drop_column("policy_version", "resume_address", schema="trinity")
