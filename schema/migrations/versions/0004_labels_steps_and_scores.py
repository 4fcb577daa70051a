"""Draw bad rows too where the algorithm learns from labels, mark greedy rollouts, keep states and scores.

Older workers must be stopped: they would leave adopted rows without their labels.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Who has a place in a pass, and which: of an adopted row, before this migration and after it.
PLACE = "CASE WHEN prompt_length IS NOT NULL AND {} THEN hashint8extended(source_id, seed + use_count) END"
IMITATED = "(reward IS NULL OR reward > 0::double precision)"
IMITATED_OR_LABELLED = "(reward > 0::double precision OR (reward IS NOT NULL) = draws_labels)"


def upgrade() -> None:
    _labels()
    _steps()
    _scores()


def _labels() -> None:
    """Bad rows get a place too, in a run that learns from labels. No run does yet: all places stay."""
    labels = (
        """config @> '{"algorithm": {"name": "kto"}}'::jsonb"""
        """ OR config @> '{"algorithm": "kto"}'::jsonb"""
    )
    op.add_column(
        "run",
        sa.Column("draws_labels", sa.Boolean(), sa.Computed(labels, persisted=True), nullable=False),
        schema="trinity",
    )
    op.add_column(
        "experience",
        sa.Column("draws_labels", sa.Boolean(), server_default="false", nullable=False),
        schema="trinity",
    )
    _place(IMITATED_OR_LABELLED)


def _place(drawable: str) -> None:
    """Place the rows that fulfil a condition, and only them."""
    op.drop_index("experience_place_idx", "experience", schema="trinity")
    op.drop_column("experience", "place", schema="trinity")
    place = sa.Computed(PLACE.format(drawable), persisted=True)
    op.add_column("experience", sa.Column("place", sa.BigInteger(), place), schema="trinity")
    op.create_index(
        "experience_place_idx",
        "experience",
        ["run_id", "use_count", "place", "id"],
        schema="trinity",
        postgresql_where=sa.text("state = 'ready' AND place IS NOT NULL"),
    )


def _steps() -> None:
    """Which rollouts were sampled at temperature 0, and which states of an environment steps began in."""
    greedy: sa.Column[bool] = sa.Column("greedy", sa.Boolean(), server_default="false", nullable=False)
    op.add_column("rollout", greedy, schema="trinity")
    op.add_column("experience_text", sa.Column("state", sa.Text()), schema="trinity")


def _scores() -> None:
    """What other models say of each trained token."""
    op.create_table(
        "score",
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("name IN ('reference', 'teacher')", name=op.f("score_known_name_check")),
        sa.CheckConstraint("octet_length(data) % 4 = 0", name=op.f("score_whole_numbers_check")),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("score_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experience_id", "name", name=op.f("score_pkey")),
        schema="trinity",
    )
    op.execute("ALTER TABLE trinity.score ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    _place(IMITATED)
    for table in ("experience", "run"):
        op.drop_column(table, "draws_labels", schema="trinity")
    op.drop_column("experience_text", "state", schema="trinity")
    op.drop_column("rollout", "greedy", schema="trinity")
    op.drop_table("score", schema="trinity")
