"""Evaluations: rollout groups of one policy version that are judged and never trained on.

Older workers may not run on: they would take the run for finished before its evaluations are, and write their
attempts as rows to be trained on, which the new checks refuse.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

COMPLETED = "rollout_group_completed_at_iff_not_open_check"


def upgrade() -> None:
    for states, value in (
        ("group_state", "evaluating"),
        ("group_state", "evaluated"),
        ("experience_state", "evaluated"),
    ):
        op.execute(f"ALTER TYPE trinity.{states} ADD VALUE IF NOT EXISTS '{value}'")
    _create_evaluation()
    op.add_column("rollout_group", sa.Column("evaluation_id", sa.BigInteger()), schema="trinity")
    for columns, target in (
        (["evaluation_id"], ["id"]),
        (["evaluation_id", "version_min"], ["id", "version"]),
        (["evaluation_id", "version_max"], ["id", "version"]),
    ):
        op.create_foreign_key(
            op.f(f"rollout_group_{'_'.join(columns)}_fkey"),
            "rollout_group",
            "evaluation",
            columns,
            target,
            source_schema="trinity",
            referent_schema="trinity",
        )
    op.create_index(
        "rollout_group_evaluation_idx",
        "rollout_group",
        ["evaluation_id", "completed_at", "id"],
        schema="trinity",
        postgresql_where=sa.text("evaluation_id IS NOT NULL"),
    )
    op.drop_constraint(op.f(COMPLETED), "rollout_group", schema="trinity", type_="check")
    _check(
        "rollout_group",
        COMPLETED,
        "(state::text = ANY (ARRAY['open', 'evaluating'])) = (completed_at IS NULL)",
    )
    _check(
        "rollout_group",
        "rollout_group_evaluated_iff_of_an_evaluation_check",
        "(state::text = ANY (ARRAY['evaluating', 'evaluated'])) = (evaluation_id IS NOT NULL)",
    )
    _check(
        "experience",
        "experience_evaluated_in_place_of_trained_check",
        "source_id IS NOT NULL OR NOT held_out OR state::text = ANY (ARRAY['clean', 'evaluated', 'dropped'])",
    )
    _check(
        "experience",
        "experience_only_held_out_are_evaluated_check",
        "held_out OR state::text <> 'evaluated'",
    )


def downgrade() -> None:
    # The values stay in their enums, which can only grow; nothing has them any more.
    op.execute(
        "DELETE FROM trinity.experience e USING trinity.rollout_group g"
        " WHERE g.id = e.group_id AND g.evaluation_id IS NOT NULL"
    )
    op.execute("DELETE FROM trinity.rollout_group WHERE evaluation_id IS NOT NULL")
    for table, name in (
        ("rollout_group", COMPLETED),
        ("rollout_group", "rollout_group_evaluated_iff_of_an_evaluation_check"),
        ("experience", "experience_evaluated_in_place_of_trained_check"),
        ("experience", "experience_only_held_out_are_evaluated_check"),
    ):
        op.drop_constraint(op.f(name), table, schema="trinity", type_="check")
    _check("rollout_group", COMPLETED, "(state = 'open') = (completed_at IS NULL)")
    op.drop_column("rollout_group", "evaluation_id", schema="trinity")
    op.drop_table("evaluation", schema="trinity")


def _check(table: str, name: str, condition: str) -> None:
    op.create_check_constraint(op.f(name), table, condition, schema="trinity")


def _create_evaluation() -> None:
    key = ["run_id", "version", "taskset_id", "samples", "temperature", "max_new_tokens", "seed"]
    op.create_table(
        "evaluation",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("taskset_id", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("samples", sa.SmallInteger(), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("max_new_tokens", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("solved_reward", sa.Double(), nullable=False),
        sa.Column("setting_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("error", sa.Text()),
        sa.ForeignKeyConstraint(["run_id"], ["trinity.run.id"], "evaluation_run_id_fkey", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["taskset_id"], ["trinity.taskset.id"], "evaluation_taskset_id_fkey"),
        sa.ForeignKeyConstraint(
            ["run_id", "version"],
            ["trinity.policy_version.run_id", "trinity.policy_version.version"],
            "evaluation_run_id_version_fkey",
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "setting_id"],
            ["trinity.run_setting.run_id", "trinity.run_setting.id"],
            "evaluation_run_id_setting_id_fkey",
        ),
        sa.PrimaryKeyConstraint("id", name="evaluation_pkey"),
        sa.UniqueConstraint("id", "version", name="evaluation_id_version_key"),
        sa.CheckConstraint(
            "samples > 0 AND temperature >= 0 AND max_new_tokens > 0", op.f("evaluation_positive_check")
        ),
        sa.CheckConstraint(
            "error IS NULL OR finished_at IS NOT NULL", op.f("evaluation_given_up_is_finished_check")
        ),
        schema="trinity",
    )
    op.create_index("evaluation_once_key", "evaluation", key, unique=True, schema="trinity")
    op.create_index(
        "evaluation_open_idx",
        "evaluation",
        ["run_id", "id"],
        schema="trinity",
        postgresql_where=sa.text("finished_at IS NULL"),
    )
