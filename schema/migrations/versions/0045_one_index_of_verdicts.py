"""A verdict of a processor stands in one index instead of two.

Older workers may keep running, except for those that prune: they find records by a number that has no index.
"""

from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

PASS = ["experience_id", "processor", "processor_version", "attempt"]


def upgrade() -> None:
    op.drop_constraint("processing_pkey", "processing", schema="trinity", type_="primary")
    op.drop_constraint("processing_attempt_key", "processing", schema="trinity", type_="unique")
    op.create_primary_key("processing_pkey", "processing", PASS, schema="trinity")


def downgrade() -> None:
    op.drop_constraint("processing_pkey", "processing", schema="trinity", type_="primary")
    op.create_primary_key("processing_pkey", "processing", ["id"], schema="trinity")
    op.create_unique_constraint("processing_attempt_key", "processing", PASS, schema="trinity")
