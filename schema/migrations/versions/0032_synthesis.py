"""Tasks and responses that steps make, and what they were made from.

Older workers may keep running: they make nothing.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

HOT = {
    "fillfactor": "70",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_delay": "0",
}
DUE = sa.text("finished_at IS NULL AND failed_at IS NULL")


def upgrade() -> None:
    _create_synthesis()
    op.create_index(
        "synthesis_due_idx", "synthesis", ["run_id", "id"], schema="trinity", postgresql_where=DUE
    )
    _create_origin()
    op.create_index("origin_source_task_id_idx", "origin", ["source_task_id"], schema="trinity")
    op.create_index("origin_synthesis_id_idx", "origin", ["synthesis_id"], schema="trinity")
    for column in ("task_id", "experience_id"):
        op.create_index(
            f"origin_{column}_idx",
            "origin",
            [column],
            schema="trinity",
            postgresql_where=sa.text(f"{column} IS NOT NULL"),
        )


def _create_synthesis() -> None:
    op.create_table(
        "synthesis",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("experience_id", sa.BigInteger()),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("processor_version", sa.Integer()),
        sa.Column("refused", postgresql.JSONB(astext_type=sa.Text())),
        sa.Column("step", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("failed_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "failed_at IS NULL OR error IS NOT NULL", name=op.f("synthesis_failed_with_an_error_check")
        ),
        sa.CheckConstraint(
            "failed_at IS NULL OR finished_at IS NULL", name=op.f("synthesis_ended_once_check")
        ),
        sa.ForeignKeyConstraint(
            ["group_id"], ["trinity.rollout_group.id"], name="synthesis_group_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="synthesis_pkey"),
        sa.UniqueConstraint("group_id", name="synthesis_group_id_key"),
        schema="trinity",
        postgresql_with=HOT,
    )


def _create_origin() -> None:
    op.create_table(
        "origin",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("synthesis_id", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("source_task_id", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.BigInteger()),
        sa.Column("experience_id", sa.BigInteger()),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text())),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "num_nonnulls(task_id, experience_id) = 1", name=op.f("origin_of_one_thing_check")
        ),
        sa.ForeignKeyConstraint(
            ["synthesis_id"], ["trinity.synthesis.id"], name="origin_synthesis_id_fkey", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["trinity.task.id"], name="origin_task_id_fkey", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name="origin_experience_id_fkey",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="origin_pkey"),
        sa.UniqueConstraint("run_id", "digest", name="origin_run_id_digest_key"),
        schema="trinity",
    )


def downgrade() -> None:
    op.drop_table("origin", schema="trinity")
    op.drop_table("synthesis", schema="trinity")
