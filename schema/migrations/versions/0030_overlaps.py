"""Evidence that training rows have text of tasks that are kept for evaluation.

Older workers may keep running: they know no such step.
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "overlap",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("of_task_id", sa.BigInteger()),
        sa.Column("experience_id", sa.BigInteger()),
        sa.Column("measure", sa.Text(), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "num_nonnulls(of_task_id, experience_id) = 1", name=op.f("overlap_of_one_text_check")
        ),
        sa.CheckConstraint("share > 0 AND share <= 1", name=op.f("overlap_is_share_check")),
        *(
            sa.ForeignKeyConstraint(
                [column], [f"trinity.{table}.id"], name=f"overlap_{column}_fkey", ondelete="CASCADE"
            )
            for column, table in (
                ("task_id", "task"),
                ("of_task_id", "task"),
                ("experience_id", "experience"),
            )
        ),
        sa.PrimaryKeyConstraint("id", name="overlap_pkey"),
        sa.UniqueConstraint(
            "task_id",
            "of_task_id",
            "experience_id",
            "measure",
            name="overlap_task_id_of_task_id_experience_id_measure_key",
            postgresql_nulls_not_distinct=True,
        ),
        schema="trinity",
    )
    for column in ("of_task_id", "experience_id"):
        op.create_index(
            f"overlap_{column}_idx",
            "overlap",
            [column],
            schema="trinity",
            postgresql_where=sa.text(f"{column} IS NOT NULL"),
        )


def downgrade() -> None:
    op.drop_table("overlap", schema="trinity")
