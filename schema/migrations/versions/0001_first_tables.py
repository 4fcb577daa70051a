"""The first tables.

There are no older workers.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ENUMS = (
    "batch_state",
    "experience_state",
    "group_state",
    "processing_outcome",
    "rollout_state",
    "run_kind",
    "run_state",
    "worker_role",
)


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Enum("train", "data", name="run_kind", schema="trinity"), nullable=False),
        sa.Column(
            "state",
            sa.Enum("active", "finished", name="run_state", schema="trinity"),
            server_default="active",
            nullable=False,
        ),
        sa.Column("config", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state = 'finished') = (finished_at IS NOT NULL)",
            name=op.f("run_finished_at_iff_finished_check"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("run_pkey")),
        sa.UniqueConstraint("name", name=op.f("run_name_key")),
        schema="trinity",
    )
    op.create_table(
        "taskset",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("taskset_pkey")),
        sa.UniqueConstraint("name", name=op.f("taskset_name_key")),
        schema="trinity",
    )
    op.create_table(
        "metric",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column(
            "role",
            sa.Enum("explore", "process", "train", name="worker_role", schema="trinity"),
            nullable=False,
        ),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("metric_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("metric_pkey")),
        schema="trinity",
    )
    op.create_index(
        op.f("metric_run_id_name_step_idx"),
        "metric",
        ["run_id", "name", "step"],
        unique=False,
        schema="trinity",
    )
    op.create_table(
        "policy_version",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=True),
        sa.Column("checkpoint_hash", sa.Text(), nullable=False),
        sa.Column(
            "published_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.CheckConstraint("version >= 0 AND step >= 0", name=op.f("policy_version_not_negative_check")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("policy_version_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "version", name=op.f("policy_version_pkey")),
        schema="trinity",
    )
    op.create_table(
        "task",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("taskset_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("payload ? 'prompt' OR payload ? 'messages'", name=op.f("task_has_prompt_check")),
        sa.ForeignKeyConstraint(
            ["taskset_id"], ["trinity.taskset.id"], name=op.f("task_taskset_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("task_pkey")),
        sa.UniqueConstraint("taskset_id", "key", name=op.f("task_taskset_id_key_key")),
        schema="trinity",
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column(
            "role",
            sa.Enum("explore", "process", "train", name="worker_role", schema="trinity"),
            nullable=False,
        ),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column(
            "heartbeat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("worker_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("worker_pkey")),
        schema="trinity",
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index(
        "worker_running_idx",
        "worker",
        ["run_id"],
        unique=False,
        schema="trinity",
        postgresql_where=sa.text("stopped_at IS NULL"),
    )
    op.create_table(
        "batch",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column(
            "state",
            sa.Enum("leased", "committed", "reopened", name="batch_state", schema="trinity"),
            server_default="leased",
            nullable=False,
        ),
        sa.Column("worker_id", sa.BigInteger(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("included_version", sa.Integer(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("sampler", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("committed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "included_version IS NULL OR state = 'committed'",
            name=op.f("batch_included_only_if_committed_check"),
        ),
        sa.CheckConstraint("size > 0", name=op.f("batch_not_empty_check")),
        sa.ForeignKeyConstraint(
            ["run_id", "included_version"],
            ["trinity.policy_version.run_id", "trinity.policy_version.version"],
            name=op.f("batch_run_id_included_version_fkey"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "policy_version"],
            ["trinity.policy_version.run_id", "trinity.policy_version.version"],
            name=op.f("batch_run_id_policy_version_fkey"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("batch_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["trinity.worker.id"], name=op.f("batch_worker_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("batch_pkey")),
        schema="trinity",
    )
    op.create_index(
        "batch_step_key",
        "batch",
        ["run_id", "step"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("state <> 'reopened'"),
    )
    op.create_table(
        "rollout_group",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "open",
                "complete",
                "ready",
                "leased",
                "trained",
                "dropped",
                name="group_state",
                schema="trinity",
            ),
            server_default="open",
            nullable=False,
        ),
        sa.Column("expected", sa.SmallInteger(), nullable=False),
        sa.Column("arrived", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("failed", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("version_min", sa.Integer(), nullable=True),
        sa.Column("reward_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reward_mean", sa.Double(), nullable=True),
        sa.Column("reward_variance", sa.Double(), nullable=True),
        sa.Column("worker_id", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state = 'open') = (completed_at IS NULL)",
            name=op.f("rollout_group_completed_at_iff_not_open_check"),
        ),
        sa.CheckConstraint(
            "expected > 0 AND arrived + failed <= expected",
            name=op.f("rollout_group_members_within_expected_check"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("rollout_group_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["task_id"], ["trinity.task.id"], name=op.f("rollout_group_task_id_fkey")),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["trinity.worker.id"], name=op.f("rollout_group_worker_id_fkey")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("rollout_group_pkey")),
        schema="trinity",
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "rollout_group_live_idx",
        "rollout_group",
        ["run_id", "state", "id"],
        unique=False,
        schema="trinity",
        postgresql_where=sa.text("state IN ('open', 'complete', 'ready', 'leased')"),
    )
    op.create_index(
        op.f("rollout_group_run_id_task_id_idx"),
        "rollout_group",
        ["run_id", "task_id"],
        unique=False,
        schema="trinity",
    )
    op.create_index(
        "rollout_group_worker_idx",
        "rollout_group",
        ["worker_id"],
        unique=False,
        schema="trinity",
        postgresql_where=sa.text("worker_id IS NOT NULL"),
    )
    op.create_table(
        "task_stat",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("issued", sa.Integer(), server_default="0", nullable=False),
        sa.Column("scored", sa.Integer(), server_default="0", nullable=False),
        sa.Column("solved", sa.Integer(), server_default="0", nullable=False),
        sa.Column("alpha", sa.Double(), server_default="1", nullable=False),
        sa.Column("beta", sa.Double(), server_default="1", nullable=False),
        sa.Column("issued_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("solved <= scored", name=op.f("task_stat_solved_within_scored_check")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("task_stat_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["trinity.task.id"], name=op.f("task_stat_task_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "task_id", name=op.f("task_stat_pkey")),
        schema="trinity",
    )
    op.create_table(
        "rollout",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.SmallInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column(
            "state", sa.Enum("finished", "failed", name="rollout_state", schema="trinity"), nullable=False
        ),
        sa.Column("worker_id", sa.BigInteger(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("version_min", sa.Integer(), nullable=True),
        sa.Column("version_max", sa.Integer(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(state = 'failed') = (error IS NOT NULL)", name=op.f("rollout_error_iff_failed_check")
        ),
        sa.CheckConstraint("version_min <= version_max", name=op.f("rollout_versions_in_order_check")),
        sa.ForeignKeyConstraint(
            ["group_id"], ["trinity.rollout_group.id"], name=op.f("rollout_group_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("rollout_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["trinity.worker.id"], name=op.f("rollout_worker_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("rollout_pkey")),
        sa.UniqueConstraint(
            "group_id", "ordinal", "attempt", name=op.f("rollout_group_id_ordinal_attempt_key")
        ),
        schema="trinity",
    )
    op.create_index(
        "rollout_finished_member_key",
        "rollout",
        ["group_id", "ordinal"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("state = 'finished'"),
    )
    op.create_table(
        "experience",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.Column("rollout_id", sa.BigInteger(), nullable=True),
        sa.Column("source_id", sa.BigInteger(), nullable=True),
        sa.Column("step", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "raw",
                "clean",
                "scored",
                "ready",
                "leased",
                "trained",
                "dropped",
                "expired",
                name="experience_state",
                schema="trinity",
            ),
            nullable=False,
        ),
        sa.Column("held_out", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("version_min", sa.Integer(), nullable=True),
        sa.Column("version_max", sa.Integer(), nullable=True),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("priority", sa.Double(), server_default="0", nullable=False),
        sa.Column("use_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("prompt_length", sa.Integer(), nullable=True),
        sa.Column("response_length", sa.Integer(), nullable=True),
        sa.Column("worker_id", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("import_key", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "reward > '-Infinity' AND reward < 'Infinity'", name=op.f("experience_reward_finite_check")
        ),
        sa.CheckConstraint(
            "state <> 'leased' OR worker_id IS NOT NULL", name=op.f("experience_leased_by_a_worker_check")
        ),
        sa.CheckConstraint(
            "(group_id IS NULL) = (rollout_id IS NULL)", name=op.f("experience_group_iff_rollout_check")
        ),
        sa.CheckConstraint("version_min <= version_max", name=op.f("experience_versions_in_order_check")),
        sa.ForeignKeyConstraint(
            ["group_id"], ["trinity.rollout_group.id"], name=op.f("experience_group_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["trinity.rollout.id"], name=op.f("experience_rollout_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("experience_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["trinity.experience.id"], name=op.f("experience_source_id_fkey")
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["trinity.worker.id"], name=op.f("experience_worker_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("experience_pkey")),
        schema="trinity",
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("experience_group_idx", "experience", ["group_id"], unique=False, schema="trinity")
    op.create_index(
        "experience_import_key",
        "experience",
        ["run_id", "import_key"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("import_key IS NOT NULL"),
    )
    op.create_index(
        "experience_open_idx",
        "experience",
        ["run_id", "state", "id"],
        unique=False,
        schema="trinity",
        postgresql_where=sa.text("state IN ('raw', 'clean', 'scored') AND worker_id IS NULL"),
    )
    op.create_index(
        "experience_ready_idx",
        "experience",
        ["run_id", "id"],
        unique=False,
        schema="trinity",
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_index(
        "experience_rollout_key",
        "experience",
        ["rollout_id", "step", "run_id"],
        unique=True,
        schema="trinity",
    )
    op.create_index(
        "experience_source_key",
        "experience",
        ["source_id", "run_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("source_id IS NOT NULL"),
    )
    op.create_index(
        "experience_worker_idx",
        "experience",
        ["worker_id"],
        unique=False,
        schema="trinity",
        postgresql_where=sa.text("worker_id IS NOT NULL"),
    )
    op.create_table(
        "experience_text",
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("response", sa.Text(), nullable=False),
        sa.Column("messages", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("extra", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("experience_text_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experience_id", name=op.f("experience_text_pkey")),
        schema="trinity",
    )
    op.create_table(
        "payload",
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("num_tokens > 0", name=op.f("payload_has_tokens_check")),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("payload_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experience_id", name=op.f("payload_pkey")),
        schema="trinity",
    )
    op.create_table(
        "preference",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("chosen_id", sa.BigInteger(), nullable=False),
        sa.Column("rejected_id", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("margin", sa.Double(), nullable=True),
        sa.Column(
            "state",
            sa.Enum(
                "raw",
                "clean",
                "scored",
                "ready",
                "leased",
                "trained",
                "dropped",
                "expired",
                name="experience_state",
                schema="trinity",
            ),
            server_default="ready",
            nullable=False,
        ),
        sa.Column("held_out", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("use_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker_id", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("extra", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "state <> 'leased' OR worker_id IS NOT NULL", name=op.f("preference_leased_by_a_worker_check")
        ),
        sa.CheckConstraint("chosen_id <> rejected_id", name=op.f("preference_two_experiences_check")),
        sa.ForeignKeyConstraint(
            ["chosen_id"],
            ["trinity.experience.id"],
            name=op.f("preference_chosen_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["rejected_id"],
            ["trinity.experience.id"],
            name=op.f("preference_rejected_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("preference_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["trinity.worker.id"], name=op.f("preference_worker_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("preference_pkey")),
        sa.UniqueConstraint(
            "run_id", "chosen_id", "rejected_id", name=op.f("preference_run_id_chosen_id_rejected_id_key")
        ),
        schema="trinity",
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "preference_ready_idx",
        "preference",
        ["run_id", "id"],
        unique=False,
        schema="trinity",
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_index(
        op.f("preference_rejected_id_idx"), "preference", ["rejected_id"], unique=False, schema="trinity"
    )
    op.create_index(
        "preference_worker_idx",
        "preference",
        ["worker_id"],
        unique=False,
        schema="trinity",
        postgresql_where=sa.text("worker_id IS NOT NULL"),
    )
    op.create_table(
        "processing",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("processor", sa.Text(), nullable=False),
        sa.Column("processor_version", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column(
            "outcome",
            sa.Enum("passed", "dropped", "failed", name="processing_outcome", schema="trinity"),
            nullable=False,
        ),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(outcome = 'failed') = (error IS NOT NULL)", name=op.f("processing_error_iff_failed_check")
        ),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("processing_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("processing_pkey")),
        sa.UniqueConstraint(
            "experience_id",
            "processor",
            "processor_version",
            "attempt",
            name="processing_attempt_key",
        ),
        schema="trinity",
    )
    op.create_table(
        "reward_event",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger(), nullable=True),
        sa.Column("experience_id", sa.BigInteger(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("weight", sa.Double(), server_default="1", nullable=False),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "value > '-Infinity' AND value < 'Infinity'", name=op.f("reward_event_value_finite_check")
        ),
        sa.CheckConstraint(
            "weight > '-Infinity' AND weight < 'Infinity'", name=op.f("reward_event_weight_finite_check")
        ),
        sa.CheckConstraint(
            "num_nonnulls(rollout_id, experience_id) = 1", name=op.f("reward_event_about_one_thing_check")
        ),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("reward_event_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"],
            ["trinity.rollout.id"],
            name=op.f("reward_event_rollout_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("reward_event_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("reward_event_pkey")),
        schema="trinity",
    )
    op.create_index(
        op.f("reward_event_experience_id_name_id_idx"),
        "reward_event",
        ["experience_id", "name", "id"],
        unique=False,
        schema="trinity",
    )
    op.create_index(
        op.f("reward_event_rollout_id_name_id_idx"),
        "reward_event",
        ["rollout_id", "name", "id"],
        unique=False,
        schema="trinity",
    )
    op.create_table(
        "batch_item",
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("preference_id", sa.BigInteger(), nullable=True),
        sa.Column("probability", sa.Double(), nullable=True),
        sa.Column("weight", sa.Double(), server_default="1", nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("advantage", sa.Double(), nullable=True),
        sa.Column("staleness", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["trinity.batch.id"], name=op.f("batch_item_batch_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("batch_item_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["preference_id"],
            ["trinity.preference.id"],
            name=op.f("batch_item_preference_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("batch_id", "ordinal", name=op.f("batch_item_pkey")),
        schema="trinity",
    )
    op.create_index(
        op.f("batch_item_experience_id_idx"), "batch_item", ["experience_id"], unique=False, schema="trinity"
    )
    op.create_table(
        "drop",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("experience_id", sa.BigInteger(), nullable=True),
        sa.Column("preference_id", sa.BigInteger(), nullable=True),
        sa.Column("group_id", sa.BigInteger(), nullable=True),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "num_nonnulls(experience_id, preference_id, group_id) = 1", name=op.f("drop_about_one_row_check")
        ),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("drop_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["group_id"], ["trinity.rollout_group.id"], name=op.f("drop_group_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["preference_id"],
            ["trinity.preference.id"],
            name=op.f("drop_preference_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("drop_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("drop_pkey")),
        sa.UniqueConstraint("experience_id", name=op.f("drop_experience_id_key")),
        sa.UniqueConstraint("group_id", name=op.f("drop_group_id_key")),
        sa.UniqueConstraint("preference_id", name=op.f("drop_preference_id_key")),
        schema="trinity",
    )
    op.create_index(
        op.f("drop_run_id_reason_idx"), "drop", ["run_id", "reason"], unique=False, schema="trinity"
    )
    # Packed arrays gain nothing from compression, and are written a third faster without it.
    op.execute("ALTER TABLE trinity.payload ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_index(op.f("drop_run_id_reason_idx"), table_name="drop", schema="trinity")
    op.drop_table("drop", schema="trinity")
    op.drop_index(op.f("batch_item_experience_id_idx"), table_name="batch_item", schema="trinity")
    op.drop_table("batch_item", schema="trinity")
    op.drop_index(op.f("reward_event_rollout_id_name_id_idx"), table_name="reward_event", schema="trinity")
    op.drop_index(op.f("reward_event_experience_id_name_id_idx"), table_name="reward_event", schema="trinity")
    op.drop_table("reward_event", schema="trinity")
    op.drop_table("processing", schema="trinity")
    op.drop_index(
        "preference_worker_idx",
        table_name="preference",
        schema="trinity",
        postgresql_where=sa.text("worker_id IS NOT NULL"),
    )
    op.drop_index(op.f("preference_rejected_id_idx"), table_name="preference", schema="trinity")
    op.drop_index(
        "preference_ready_idx",
        table_name="preference",
        schema="trinity",
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.drop_table("preference", schema="trinity")
    op.drop_table("payload", schema="trinity")
    op.drop_table("experience_text", schema="trinity")
    op.drop_index(
        "experience_worker_idx",
        table_name="experience",
        schema="trinity",
        postgresql_where=sa.text("worker_id IS NOT NULL"),
    )
    op.drop_index(
        "experience_source_key",
        table_name="experience",
        schema="trinity",
        postgresql_where=sa.text("source_id IS NOT NULL"),
    )
    op.drop_index("experience_rollout_key", table_name="experience", schema="trinity")
    op.drop_index(
        "experience_ready_idx",
        table_name="experience",
        schema="trinity",
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.drop_index(
        "experience_open_idx",
        table_name="experience",
        schema="trinity",
        postgresql_where=sa.text("state IN ('raw', 'clean', 'scored') AND worker_id IS NULL"),
    )
    op.drop_index(
        "experience_import_key",
        table_name="experience",
        schema="trinity",
        postgresql_where=sa.text("import_key IS NOT NULL"),
    )
    op.drop_index("experience_group_idx", table_name="experience", schema="trinity")
    op.drop_table("experience", schema="trinity")
    op.drop_index(
        "rollout_finished_member_key",
        table_name="rollout",
        schema="trinity",
        postgresql_where=sa.text("state = 'finished'"),
    )
    op.drop_table("rollout", schema="trinity")
    op.drop_table("task_stat", schema="trinity")
    op.drop_index(
        "rollout_group_worker_idx",
        table_name="rollout_group",
        schema="trinity",
        postgresql_where=sa.text("worker_id IS NOT NULL"),
    )
    op.drop_index(op.f("rollout_group_run_id_task_id_idx"), table_name="rollout_group", schema="trinity")
    op.drop_index(
        "rollout_group_live_idx",
        table_name="rollout_group",
        schema="trinity",
        postgresql_where=sa.text("state IN ('open', 'complete', 'ready', 'leased')"),
    )
    op.drop_table("rollout_group", schema="trinity")
    op.drop_index(
        "batch_step_key",
        table_name="batch",
        schema="trinity",
        postgresql_where=sa.text("state <> 'reopened'"),
    )
    op.drop_table("batch", schema="trinity")
    op.drop_index(
        "worker_running_idx",
        table_name="worker",
        schema="trinity",
        postgresql_where=sa.text("stopped_at IS NULL"),
    )
    op.drop_table("worker", schema="trinity")
    op.drop_table("task", schema="trinity")
    op.drop_table("policy_version", schema="trinity")
    op.drop_index(op.f("metric_run_id_name_step_idx"), table_name="metric", schema="trinity")
    op.drop_table("metric", schema="trinity")
    op.drop_table("taskset", schema="trinity")
    op.drop_table("run", schema="trinity")
    for name in ENUMS:
        op.execute(f"DROP TYPE trinity.{name}")
