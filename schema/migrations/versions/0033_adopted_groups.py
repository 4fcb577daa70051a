"""A run adopts rollout groups of another, and draws them in passes.

Older workers may run on. The tables of groups are written anew once, which takes a minute for ten million.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    place = sa.Computed("hashint8extended(source_id, seed + use_count)", persisted=True)
    for column in (
        sa.Column("source_id", sa.BigInteger()),
        sa.Column("use_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("seed", sa.BigInteger()),
        sa.Column("place", sa.BigInteger(), place),
    ):
        op.add_column("rollout_group", column, schema="trinity")
    op.create_foreign_key(
        op.f("rollout_group_source_id_fkey"),
        "rollout_group",
        "rollout_group",
        ["source_id"],
        ["id"],
        source_schema="trinity",
        referent_schema="trinity",
    )
    op.create_index(
        "rollout_group_place_idx",
        "rollout_group",
        ["run_id", "use_count", "place", "id"],
        schema="trinity",
        postgresql_where=sa.text("state = 'ready' AND place IS NOT NULL"),
    )
    op.create_index(
        "rollout_group_source_key",
        "rollout_group",
        ["source_id", "run_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("source_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("rollout_group_source_key", "rollout_group", schema="trinity")
    op.drop_index("rollout_group_place_idx", "rollout_group", schema="trinity")
    for column in ("place", "seed", "use_count", "source_id"):
        op.drop_column("rollout_group", column, schema="trinity")
