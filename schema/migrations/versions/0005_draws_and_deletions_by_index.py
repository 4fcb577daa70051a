"""Draws by chance read the groups they pass over from the index alone, and deletions find pairs by index.

Older workers may run on: no table changes. Those that write wait until the indexes are built.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _chance(["id", "version_min"])
    op.create_index("preference_chosen_id_idx", "preference", ["chosen_id"], schema="trinity")
    op.create_index(
        "batch_item_preference_idx",
        "batch_item",
        ["preference_id"],
        schema="trinity",
        postgresql_where=sa.text("preference_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("batch_item_preference_idx", "batch_item", schema="trinity")
    op.drop_index("preference_chosen_id_idx", "preference", schema="trinity")
    _chance([])


def _chance(included: list[str]) -> None:
    op.drop_index("rollout_group_chance_idx", "rollout_group", schema="trinity")
    op.create_index(
        "rollout_group_chance_idx",
        "rollout_group",
        ["run_id", "octave", sa.text("hashint8extended(id, 0)")],
        schema="trinity",
        postgresql_include=included,
        postgresql_where=sa.text("state = 'ready'"),
    )
