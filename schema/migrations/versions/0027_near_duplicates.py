"""What tells near duplicates among responses.

Older workers may keep running: they know no such step.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "minhash",
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("bands", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.CheckConstraint("cardinality(bands) > 0", name=op.f("minhash_has_bands_check")),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name="minhash_experience_id_fkey",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experience_id", name="minhash_pkey"),
        schema="trinity",
    )
    op.create_index(
        "minhash_bands_idx",
        "minhash",
        ["bands"],
        schema="trinity",
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    )


def downgrade() -> None:
    op.drop_table("minhash", schema="trinity")
