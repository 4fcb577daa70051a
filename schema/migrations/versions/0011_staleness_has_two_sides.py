"""Groups know the newest version of their members: rows of withdrawn versions are compared by distance.

Older workers must be stopped: they would write groups without it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rollout_group", sa.Column("version_max", sa.Integer()), schema="trinity")
    op.execute(
        """
        UPDATE trinity.rollout_group g SET version_max = m.newest
        FROM (SELECT e.group_id, max(e.version_max) AS newest FROM trinity.experience e
              WHERE e.group_id IS NOT NULL AND e.source_id IS NULL GROUP BY e.group_id) m
        WHERE g.id = m.group_id AND g.version_min IS NOT NULL
        """
    )
    op.create_check_constraint(
        op.f("rollout_group_versions_in_order_check"),
        "rollout_group",
        "version_min <= version_max",
        schema="trinity",
    )
    _chance(["id", "version_min", "version_max"])


def downgrade() -> None:
    _chance(["id", "version_min"])
    op.drop_column("rollout_group", "version_max", schema="trinity")


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
