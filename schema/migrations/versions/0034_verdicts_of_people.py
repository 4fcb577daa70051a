"""People are asked about rows and pairs, and what they say of a pair is known from its preference.

Older workers may keep running: their processors take a reward event of people for their last word, and their
trainers pass over a pair that people uphold against its rewards.
"""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_review()
    _create_decision()
    _create_label()
    op.add_column("preference", sa.Column("upheld", sa.Boolean()), schema="trinity")


def _create_review() -> None:
    op.create_table(
        "review",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("other_id", sa.BigInteger()),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=False),
        sa.Column("lowest", sa.SmallInteger(), nullable=False),
        sa.Column("highest", sa.SmallInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "weight > '-Infinity' AND weight < 'Infinity'", name=op.f("review_weight_finite_check")
        ),
        sa.CheckConstraint("lowest < highest", name=op.f("review_scale_in_order_check")),
        sa.CheckConstraint("other_id > experience_id", name=op.f("review_pair_in_order_check")),
        sa.CheckConstraint(
            "other_id IS NULL OR lowest = -1 AND highest = 1", name=op.f("review_scale_of_a_pair_check")
        ),
        sa.CheckConstraint("wanted >= 1", name=op.f("review_wants_a_verdict_check")),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("review_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["other_id"], ["trinity.experience.id"], name=op.f("review_other_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("review_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("review_pkey")),
        schema="trinity",
    )
    op.create_index(
        "review_open_idx",
        "review",
        ["run_id", "id"],
        schema="trinity",
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    for column in ("experience_id", "other_id"):
        op.create_index(op.f(f"review_{column}_idx"), "review", [column], schema="trinity")
    op.create_index(
        "review_pair_key",
        "review",
        ["experience_id", "other_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("other_id IS NOT NULL"),
    )
    op.create_index(
        "review_row_key",
        "review",
        ["experience_id", "source", "name"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("other_id IS NULL"),
    )
    op.create_index(op.f("review_run_id_idx"), "review", ["run_id"], schema="trinity")


def _create_decision() -> None:
    op.create_table(
        "decision",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("review_id", sa.BigInteger(), nullable=False),
        sa.Column("side", sa.SmallInteger()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column(
            "xact",
            sa.BigInteger(),
            server_default=sa.text("(pg_current_xact_id()::text)::bigint"),
            nullable=False,
        ),
        sa.CheckConstraint("side IN (-1, 0, 1)", name=op.f("decision_known_side_check")),
        sa.ForeignKeyConstraint(
            ["review_id"], ["trinity.review.id"], name=op.f("decision_review_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("decision_pkey")),
        schema="trinity",
    )
    op.create_index(op.f("decision_review_id_id_idx"), "decision", ["review_id", "id"], schema="trinity")


def _create_label() -> None:
    op.create_table(
        "label",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("review_id", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column(
            "state",
            sa.Enum("draft", "submitted", "discarded", "skipped", name="label_state", schema="trinity"),
            server_default="draft",
            nullable=False,
        ),
        sa.Column("value", sa.SmallInteger()),
        sa.Column("swapped", sa.Boolean()),
        sa.Column("blind", sa.Boolean()),
        sa.Column("seconds", sa.Double()),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.Column("leased_until", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "(state = 'draft') = (decided_at IS NULL)", name=op.f("label_decided_iff_no_draft_check")
        ),
        sa.CheckConstraint(
            "(state = 'draft') = (leased_until IS NOT NULL)", name=op.f("label_leased_iff_draft_check")
        ),
        sa.CheckConstraint(
            "(state = 'submitted') = (value IS NOT NULL)", name=op.f("label_value_iff_submitted_check")
        ),
        sa.CheckConstraint("seconds >= 0 AND seconds < 'Infinity'", name=op.f("label_seconds_finite_check")),
        sa.ForeignKeyConstraint(
            ["review_id"], ["trinity.review.id"], name=op.f("label_review_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("label_pkey")),
        sa.UniqueConstraint("review_id", "author", name=op.f("label_review_id_author_key")),
        schema="trinity",
    )
    op.create_index(op.f("label_author_decided_at_idx"), "label", ["author", "decided_at"], schema="trinity")


def downgrade() -> None:
    op.drop_column("preference", "upheld", schema="trinity")
    for table in ("label", "decision", "review"):
        op.drop_table(table, schema="trinity")
    op.execute("DROP TYPE trinity.label_state")
