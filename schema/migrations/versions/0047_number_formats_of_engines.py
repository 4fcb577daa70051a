"""An explorer records the number format of its engine.

Older workers may keep running: an older explorer records none, so versions are in float32 meanwhile.
"""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("engine_dtype", sa.Text()), schema="trinity")
    op.create_check_constraint(
        op.f("worker_dtype_of_an_explorer_check"),
        "worker",
        "engine_dtype IS NULL OR role = 'explore' AND engine_dtype IN ('float32', 'bfloat16', 'float16')",
        schema="trinity",
    )


def downgrade() -> None:
    op.drop_column("worker", "engine_dtype", schema="trinity")
