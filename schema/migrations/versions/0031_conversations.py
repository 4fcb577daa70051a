"""Imported conversations keep their tools, and responses that are more than a text.

Older workers may run on, but for trainers of data sets that are imported from now on: of a response with tool
calls they would learn the text that is for people.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("tools", "reply"):
        op.add_column("experience_text", sa.Column(name, postgresql.JSONB()), schema="trinity")


def downgrade() -> None:
    for name in ("reply", "tools"):
        op.drop_column("experience_text", name, schema="trinity")
