"""A reward event stands in the index of what it is about alone.

It stood in two, with nothing in one of them. Older workers may keep running.
"""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

ABOUT = ("rollout_id", "experience_id")


def upgrade() -> None:
    for about in ABOUT:
        _index(about, sa.text(f"{about} IS NOT NULL"))


def downgrade() -> None:
    for about in ABOUT:
        _index(about, None)


def _index(about: str, where: sa.TextClause | None) -> None:
    name = op.f(f"reward_event_{about}_name_id_idx")
    op.drop_index(name, table_name="reward_event", schema="trinity")
    op.create_index(name, "reward_event", [about, "name", "id"], schema="trinity", postgresql_where=where)
