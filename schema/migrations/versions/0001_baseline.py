"""Create all tables of the first release.

Older workers do not exist.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BATCH_STATE = sa.Enum("leased", "committed", "reopened", name="batch_state", schema="trinity")
EXPERIENCE_STATE = sa.Enum(
    "raw",
    "clean",
    "scored",
    "ready",
    "leased",
    "trained",
    "dropped",
    "expired",
    "evaluated",
    name="experience_state",
    schema="trinity",
)
GROUP_STATE = sa.Enum(
    "open",
    "complete",
    "ready",
    "leased",
    "trained",
    "dropped",
    "evaluating",
    "evaluated",
    name="group_state",
    schema="trinity",
)
LABEL_STATE = sa.Enum("draft", "submitted", "discarded", "skipped", name="label_state", schema="trinity")
PROCESSING_OUTCOME = sa.Enum(
    "passed", "dropped", "failed", "refused", name="processing_outcome", schema="trinity"
)
ROLLOUT_STATE = sa.Enum("finished", "failed", "refused", name="rollout_state", schema="trinity")
RUN_KIND = sa.Enum("train", "data", name="run_kind", schema="trinity")
RUN_STATE = sa.Enum("active", "finished", name="run_state", schema="trinity")
WORKER_ROLE = sa.Enum("explore", "process", "train", name="worker_role", schema="trinity")
TYPES = (
    BATCH_STATE,
    EXPERIENCE_STATE,
    GROUP_STATE,
    LABEL_STATE,
    PROCESSING_OUTCOME,
    ROLLOUT_STATE,
    RUN_KIND,
    RUN_STATE,
    WORKER_ROLE,
)

# Vacuum after a number of changes instead of a share of the size, and without cost delay.
HOT_TABLE = {
    "fillfactor": "70",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_delay": "0",
}


# In the order in which they are created.
# fmt: off
TABLES = (
    "run", "store_instance", "sweep", "taskset", "metric", "pairing", "policy_version", "retention",
    "run_setting", "setback", "step_list", "task", "task_pass", "evaluation", "task_stat", "worker",
    "archive", "batch", "rollout_group", "agent", "group_priority", "rescore", "rollout", "synthesis",
    "call", "experience", "park", "experience_text", "minhash", "origin", "overlap", "payload",
    "preference", "processing", "review", "reward_event", "score", "batch_item", "decision", "drop",
    "label",
)
# fmt: on


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", RUN_KIND, nullable=False),
        sa.Column("state", RUN_STATE, server_default="active", nullable=False),
        sa.Column("config", postgresql.JSONB(), nullable=False),
        sa.Column(
            "seed",
            sa.BigInteger(),
            sa.Computed("COALESCE((config ->> 'seed'::text)::bigint, 0::bigint)", persisted=True),
            nullable=False,
        ),
        sa.Column(
            "derives_pairs",
            sa.Boolean(),
            sa.Computed("(config #>> '{processors,pair}'::text[]) IS NOT NULL", persisted=True),
            nullable=False,
        ),
        sa.Column("draws", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("deleting_at", sa.DateTime(timezone=True)),
        sa.Column("stop_asked_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("(kind = 'train') = (draws IS NOT NULL)", name=op.f("run_draws_iff_train_check")),
        sa.CheckConstraint(
            "(state = 'finished') = (finished_at IS NOT NULL)",
            name=op.f("run_finished_at_iff_finished_check"),
        ),
        sa.CheckConstraint(
            "draws IN ('groups', 'rows', 'labels', 'pairs')", name=op.f("run_known_draws_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("run_pkey")),
        sa.UniqueConstraint("name", name=op.f("run_name_key")),
        schema="trinity",
    )
    op.create_table(
        "store_instance",
        sa.Column("is_only", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("copy_of", sa.Uuid()),
        sa.Column("system_identifier", sa.BigInteger(), nullable=False),
        sa.Column("database_oid", sa.BigInteger(), nullable=False),
        sa.Column("timeline", sa.Integer(), nullable=False),
        sa.Column("home", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("is_only", name=op.f("store_instance_one_row_check")),
        sa.PrimaryKeyConstraint("is_only", name=op.f("store_instance_pkey")),
        schema="trinity",
    )
    op.create_table(
        "sweep",
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("after_id", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "family IN ('payloads', 'calls', 'metrics', 'processing')", name=op.f("sweep_known_family_check")
        ),
        sa.CheckConstraint("after_id >= 0", name=op.f("sweep_after_a_row_check")),
        sa.PrimaryKeyConstraint("family", name=op.f("sweep_pkey")),
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
        sa.Column("role", WORKER_ROLE, nullable=False),
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
        op.f("metric_run_id_name_step_idx"), "metric", ["run_id", "name", "step"], schema="trinity"
    )
    op.create_table(
        "pairing",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("pairing_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "id", name=op.f("pairing_pkey")),
        schema="trinity",
        postgresql_with=HOT_TABLE,
    )
    op.create_table(
        "policy_version",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("checkpoint", sa.Text()),
        sa.Column("checkpoint_hash", sa.Text(), nullable=False),
        sa.Column("weights", sa.Text()),
        sa.Column(
            "published_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("resume_from", sa.Text()),
        sa.Column("resume_hash", sa.Text()),
        sa.Column("resume_address", sa.Text()),
        sa.Column("withdrawn_at", sa.DateTime(timezone=True)),
        sa.Column("skipped", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "resume_address IS NULL OR resume_from IS NOT NULL",
            name=op.f("policy_version_uploaded_is_kept_check"),
        ),
        sa.CheckConstraint(
            "resume_from IS NULL OR checkpoint IS NOT NULL AND resume_hash IS NOT NULL",
            name=op.f("policy_version_checkpoint_has_weights_check"),
        ),
        sa.CheckConstraint(
            "skipped >= 0 AND skipped <= version", name=op.f("policy_version_skips_numbers_below_check")
        ),
        sa.CheckConstraint("version >= 0 AND step >= 0", name=op.f("policy_version_not_negative_check")),
        sa.CheckConstraint(
            "weights IS NULL OR checkpoint IS NOT NULL", name=op.f("policy_version_weights_are_kept_check")
        ),
        sa.CheckConstraint(
            "withdrawn_at IS NULL OR checkpoint IS NULL",
            name=op.f("policy_version_withdrawn_has_no_files_check"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("policy_version_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "version", name=op.f("policy_version_pkey")),
        schema="trinity",
    )
    op.create_table(
        "retention",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("num_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "family IN ('payloads', 'calls', 'metrics', 'processing')",
            name=op.f("retention_known_family_check"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("retention_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "family", name=op.f("retention_pkey")),
        schema="trinity",
    )
    op.create_table(
        "run_setting",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("config", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("created_by", sa.Text(), server_default=sa.text("SESSION_USER"), nullable=False),
        sa.Column("host", sa.Text()),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("run_setting_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("run_setting_pkey")),
        sa.UniqueConstraint("run_id", "id", name=op.f("run_setting_run_id_id_key")),
        schema="trinity",
    )
    op.create_table(
        "setback",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.BigInteger(), nullable=False),
        sa.Column("known_version", sa.Integer(), nullable=False),
        sa.Column("known_step", sa.Integer(), nullable=False),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("num_rows", sa.Integer()),
        sa.Column("first_version", sa.Integer()),
        sa.Column("last_version", sa.Integer()),
        sa.Column("resumed_version", sa.Integer(), nullable=False),
        sa.Column("adopted_version", sa.Integer()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(first_version IS NULL) = (last_version IS NULL)", name=op.f("setback_versions_together_check")
        ),
        sa.CheckConstraint(
            "last_step > known_step OR last_version IS NOT NULL", name=op.f("setback_lost_something_check")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("setback_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("setback_pkey")),
        schema="trinity",
    )
    op.create_index(op.f("setback_run_id_idx"), "setback", ["run_id"], schema="trinity")
    op.create_table(
        "step_list",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("processor", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("steps", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("step_list_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "processor", "version", name=op.f("step_list_pkey")),
        schema="trinity",
    )
    op.create_table(
        "task",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("taskset_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("prompt_digest", sa.LargeBinary(), nullable=False),
        sa.Column(
            "level",
            sa.Double(),
            sa.Computed(
                "CASE WHEN jsonb_typeof(payload -> 'level'::text) IS DISTINCT FROM "
                "'number'::text THEN NULL::double precision WHEN abs((payload -> "
                "'level'::text)::numeric) < '1000000000000000'::numeric THEN "
                "round((payload -> 'level'::text)::numeric, 15)::double precision ELSE "
                "NULL::double precision END",
                persisted=True,
            ),
        ),
        sa.CheckConstraint("payload ? 'prompt' OR payload ? 'messages'", name=op.f("task_has_prompt_check")),
        sa.ForeignKeyConstraint(
            ["taskset_id"], ["trinity.taskset.id"], name=op.f("task_taskset_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("task_pkey")),
        sa.UniqueConstraint("taskset_id", "key", name=op.f("task_taskset_id_key_key")),
        sa.UniqueConstraint("taskset_id", "ordinal", name=op.f("task_taskset_id_ordinal_key")),
        schema="trinity",
    )
    op.create_index(
        "task_level_idx",
        "task",
        ["taskset_id", sa.literal_column("COALESCE(level, 'Infinity'::double precision)"), "ordinal"],
        schema="trinity",
    )
    op.create_index(
        op.f("task_taskset_id_prompt_digest_idx"), "task", ["taskset_id", "prompt_digest"], schema="trinity"
    )
    op.create_table(
        "task_pass",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("taskset_id", sa.BigInteger(), nullable=False),
        sa.Column("issued", sa.Integer(), server_default="0", nullable=False),
        sa.Column("walk", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), server_default="0", nullable=False),
        sa.Column("first", sa.Integer(), server_default="0", nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), server_default="0", nullable=False),
        sa.Column("level", sa.Double()),
        sa.CheckConstraint(
            "walk IN ('shuffled', 'sequential', 'easy_to_hard')", name=op.f("task_pass_known_walk_check")
        ),
        sa.CheckConstraint(
            "number >= 0 AND first >= 0 AND size >= 0 AND position >= 0",
            name=op.f("task_pass_place_in_order_check"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("task_pass_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["taskset_id"], ["trinity.taskset.id"], name=op.f("task_pass_taskset_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "taskset_id", name=op.f("task_pass_pkey")),
        schema="trinity",
    )
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
        sa.CheckConstraint(
            "error IS NULL OR finished_at IS NOT NULL", name=op.f("evaluation_given_up_is_finished_check")
        ),
        sa.CheckConstraint(
            "samples > 0 AND temperature >= 0 AND max_new_tokens > 0", name=op.f("evaluation_positive_check")
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "setting_id"],
            ["trinity.run_setting.run_id", "trinity.run_setting.id"],
            name=op.f("evaluation_run_id_setting_id_fkey"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "version"],
            ["trinity.policy_version.run_id", "trinity.policy_version.version"],
            name=op.f("evaluation_run_id_version_fkey"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("evaluation_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["taskset_id"], ["trinity.taskset.id"], name=op.f("evaluation_taskset_id_fkey")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("evaluation_pkey")),
        sa.UniqueConstraint("id", "version", name=op.f("evaluation_id_version_key")),
        schema="trinity",
    )
    op.create_index(
        "evaluation_once_key",
        "evaluation",
        ["run_id", "version", "taskset_id", "samples", "temperature", "max_new_tokens", "seed"],
        unique=True,
        schema="trinity",
    )
    op.create_index(
        "evaluation_open_idx",
        "evaluation",
        ["run_id", "id"],
        schema="trinity",
        postgresql_where=sa.text("finished_at IS NULL"),
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
        sa.Column("issued_at", sa.DateTime(timezone=True)),
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
        "worker",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("role", WORKER_ROLE, nullable=False),
        sa.Column("setting_id", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("login", sa.Text(), server_default=sa.text("session_user"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column(
            "heartbeat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("stopped_at", sa.DateTime(timezone=True)),
        sa.Column("exclusive", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("session_pid", sa.Integer()),
        sa.Column("staged_version", sa.Integer()),
        sa.Column("broken_weights", sa.Text()),
        sa.Column("broadcast_at", sa.Text()),
        sa.Column("engine_dtype", sa.Text()),
        sa.CheckConstraint(
            "broadcast_at IS NULL OR role = 'train'", name=op.f("worker_is_of_a_trainer_check")
        ),
        sa.CheckConstraint(
            "engine_dtype IS NULL OR role = 'explore' AND engine_dtype IN ('float32', 'bfloat16', 'float16')",
            name=op.f("worker_dtype_of_an_explorer_check"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "setting_id"],
            ["trinity.run_setting.run_id", "trinity.run_setting.id"],
            name=op.f("worker_run_id_setting_id_fkey"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("worker_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("worker_pkey")),
        schema="trinity",
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index(
        "worker_exclusive_idx",
        "worker",
        ["run_id", "role"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("exclusive AND stopped_at IS NULL"),
    )
    op.create_index(
        "worker_running_idx",
        "worker",
        ["run_id", "id"],
        schema="trinity",
        postgresql_where=sa.text("stopped_at IS NULL"),
    )
    op.create_table(
        "archive",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("store", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "name ~ ('^[A-Za-z0-9_-]+_' || run_id || '_[0-9]+(_[0-9a-f]{32})?$')",
            name=op.f("archive_of_the_run_check"),
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("archive_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["trinity.worker.id"], name=op.f("archive_worker_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("archive_pkey")),
        sa.UniqueConstraint("run_id", "store", name=op.f("archive_run_id_store_key")),
        schema="trinity",
    )
    op.create_table(
        "batch",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("state", BATCH_STATE, server_default="leased", nullable=False),
        sa.Column("worker_id", sa.BigInteger(), nullable=False),
        sa.Column("setting_id", sa.BigInteger(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("versions_ahead", sa.Integer(), server_default="0", nullable=False),
        sa.Column("included_version", sa.Integer()),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("sampler", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("snapshot", sa.Text()),
        sa.Column("max_staleness", sa.Integer()),
        sa.Column("parameters", postgresql.JSONB()),
        sa.Column("floor", sa.BigInteger()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("committed_at", sa.DateTime(timezone=True)),
        sa.Column("reopened_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "(state = 'reopened') = (reopened_at IS NOT NULL)",
            name=op.f("batch_reopened_at_iff_reopened_check"),
        ),
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
            ["run_id", "setting_id"],
            ["trinity.run_setting.run_id", "trinity.run_setting.id"],
            name=op.f("batch_run_id_setting_id_fkey"),
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
        sa.Column("source_id", sa.BigInteger()),
        sa.Column("state", GROUP_STATE, server_default="open", nullable=False),
        sa.Column("evaluation_id", sa.BigInteger()),
        sa.Column("expected", sa.SmallInteger(), nullable=False),
        sa.Column("arrived", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("failed", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("version_min", sa.Integer()),
        sa.Column("version_max", sa.Integer()),
        sa.Column("reward_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reward_mean", sa.Double()),
        sa.Column("reward_variance", sa.Double()),
        sa.Column("priority", sa.Double(), server_default="1", nullable=False),
        sa.Column(
            "octave",
            sa.SmallInteger(),
            sa.Computed(
                "COALESCE(ceil(ln(NULLIF(priority, 0::double precision)) / ln(2::double "
                "precision)), '-60'::double precision)::smallint",
                persisted=True,
            ),
            nullable=False,
        ),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True)),
        sa.Column("ready_xact", sa.BigInteger()),
        sa.Column("ready_at", sa.DateTime(timezone=True)),
        sa.Column("use_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("seed", sa.BigInteger()),
        sa.Column(
            "place",
            sa.BigInteger(),
            sa.Computed("hashint8extended(source_id, seed + use_count)", persisted=True),
        ),
        sa.CheckConstraint(
            "(state::text = ANY (ARRAY['evaluating', 'evaluated'])) = (evaluation_id IS NOT NULL)",
            name=op.f("rollout_group_evaluated_iff_of_an_evaluation_check"),
        ),
        sa.CheckConstraint(
            "(state::text = ANY (ARRAY['open', 'evaluating'])) = (completed_at IS NULL)",
            name=op.f("rollout_group_completed_at_iff_not_open_check"),
        ),
        sa.CheckConstraint(
            "expected > 0 AND arrived + failed <= expected",
            name=op.f("rollout_group_members_within_expected_check"),
        ),
        sa.CheckConstraint(
            "priority = 0 OR priority BETWEEN 1e-18 AND 1e18",
            name=op.f("rollout_group_priority_in_range_check"),
        ),
        sa.CheckConstraint("version_min <= version_max", name=op.f("rollout_group_versions_in_order_check")),
        sa.ForeignKeyConstraint(
            ["evaluation_id", "version_max"],
            ["trinity.evaluation.id", "trinity.evaluation.version"],
            name=op.f("rollout_group_evaluation_id_version_max_fkey"),
        ),
        sa.ForeignKeyConstraint(
            ["evaluation_id", "version_min"],
            ["trinity.evaluation.id", "trinity.evaluation.version"],
            name=op.f("rollout_group_evaluation_id_version_min_fkey"),
        ),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["trinity.evaluation.id"], name=op.f("rollout_group_evaluation_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("rollout_group_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["trinity.rollout_group.id"], name=op.f("rollout_group_source_id_fkey")
        ),
        sa.ForeignKeyConstraint(["task_id"], ["trinity.task.id"], name=op.f("rollout_group_task_id_fkey")),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["trinity.worker.id"], name=op.f("rollout_group_worker_id_fkey")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("rollout_group_pkey")),
        schema="trinity",
        postgresql_with=HOT_TABLE,
    )
    op.create_index(
        "rollout_group_chance_idx",
        "rollout_group",
        ["run_id", "octave", sa.literal_column("hashint8extended(id, 0)")],
        schema="trinity",
        postgresql_include=["id", "version_min", "version_max"],
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_index(
        "rollout_group_evaluation_idx",
        "rollout_group",
        ["evaluation_id", "completed_at", "id"],
        schema="trinity",
        postgresql_where=sa.text("evaluation_id IS NOT NULL"),
    )
    op.create_index(
        "rollout_group_live_idx",
        "rollout_group",
        ["run_id", "state", "id"],
        schema="trinity",
        postgresql_where=sa.text("state IN ('open', 'complete', 'ready', 'leased')"),
    )
    op.create_index(
        "rollout_group_place_idx",
        "rollout_group",
        ["run_id", "use_count", "place", "id"],
        schema="trinity",
        postgresql_where=sa.text("state = 'ready' AND place IS NOT NULL"),
    )
    op.create_index(
        op.f("rollout_group_run_id_task_id_idx"), "rollout_group", ["run_id", "task_id"], schema="trinity"
    )
    op.create_index(
        "rollout_group_source_key",
        "rollout_group",
        ["source_id", "run_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("source_id IS NOT NULL"),
    )
    op.create_index(
        "rollout_group_version_idx",
        "rollout_group",
        ["run_id", "version_min", "id"],
        schema="trinity",
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_index(
        "rollout_group_worker_idx",
        "rollout_group",
        ["worker_id"],
        schema="trinity",
        postgresql_where=sa.text("worker_id IS NOT NULL"),
    )
    op.create_table(
        "agent",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.SmallInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("retry", sa.SmallInteger(), nullable=False),
        sa.Column("worker_id", sa.BigInteger(), nullable=False),
        sa.Column("key_hash", sa.LargeBinary()),
        sa.Column("rewards", postgresql.JSONB()),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["group_id"], ["trinity.rollout_group.id"], name=op.f("agent_group_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("agent_pkey")),
        schema="trinity",
    )
    op.create_index(op.f("agent_group_id_ordinal_idx"), "agent", ["group_id", "ordinal"], schema="trinity")
    op.create_index("agent_key_hash_key", "agent", ["key_hash"], unique=True, schema="trinity")
    op.create_index(
        "agent_live_member_key",
        "agent",
        ["group_id", "ordinal"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "group_priority",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True)),
        sa.Column("priority", sa.Double()),
        sa.Column("processor_version", sa.Integer()),
        sa.Column("policy_version", sa.Integer()),
        sa.Column("computed_xact", sa.BigInteger()),
        sa.Column("experience_id", sa.BigInteger()),
        sa.Column("step", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("failed_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(priority IS NULL) = (computed_xact IS NULL)",
            name=op.f("group_priority_computed_by_a_transaction_check"),
        ),
        sa.CheckConstraint(
            "failed_at IS NULL OR priority IS NULL AND error IS NOT NULL",
            name=op.f("group_priority_failed_with_an_error_check"),
        ),
        sa.CheckConstraint(
            "priority = 0 OR priority BETWEEN 1e-18 AND 1e18",
            name=op.f("group_priority_priority_in_range_check"),
        ),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["trinity.rollout_group.id"],
            name=op.f("group_priority_group_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("group_priority_pkey")),
        schema="trinity",
        postgresql_with=HOT_TABLE,
    )
    op.create_index(
        "group_priority_due_idx",
        "group_priority",
        ["run_id", "id"],
        schema="trinity",
        postgresql_where=sa.text("priority IS NULL AND failed_at IS NULL"),
    )
    op.create_index(
        op.f("group_priority_group_id_id_idx"), "group_priority", ["group_id", "id"], schema="trinity"
    )
    op.create_table(
        "rescore",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["trinity.rollout_group.id"], name=op.f("rescore_group_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("group_id", name=op.f("rescore_pkey")),
        schema="trinity",
        postgresql_with=HOT_TABLE,
    )
    op.create_index(op.f("rescore_worker_id_idx"), "rescore", ["worker_id"], schema="trinity")
    op.create_table(
        "rollout",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.SmallInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("greedy", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("state", ROLLOUT_STATE, nullable=False),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("model", sa.Text()),
        sa.Column("version_min", sa.Integer()),
        sa.Column("version_max", sa.Integer()),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("output", sa.Text()),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(state = 'failed') = (error IS NOT NULL)", name=op.f("rollout_error_iff_failed_check")
        ),
        sa.CheckConstraint("version_min <= version_max", name=op.f("rollout_versions_in_order_check")),
        sa.ForeignKeyConstraint(
            ["group_id"], ["trinity.rollout_group.id"], name=op.f("rollout_group_id_fkey"), ondelete="CASCADE"
        ),
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
        "synthesis",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("experience_id", sa.BigInteger()),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("processor_version", sa.Integer()),
        sa.Column("refused", postgresql.JSONB()),
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
            ["group_id"],
            ["trinity.rollout_group.id"],
            name=op.f("synthesis_group_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("synthesis_pkey")),
        sa.UniqueConstraint("group_id", name=op.f("synthesis_group_id_key")),
        schema="trinity",
        postgresql_with=HOT_TABLE,
    )
    op.create_index(
        "synthesis_due_idx",
        "synthesis",
        ["run_id", "id"],
        schema="trinity",
        postgresql_where=sa.text("finished_at IS NULL AND failed_at IS NULL"),
    )
    op.create_table(
        "call",
        sa.Column("agent_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("path", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary()),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("replaced", postgresql.JSONB()),
        sa.Column("left_out", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("number >= 0 AND num_tokens > 0", name=op.f("call_has_tokens_check")),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["trinity.agent.id"], name=op.f("call_agent_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("agent_id", "number", name=op.f("call_pkey")),
        schema="trinity",
    )
    op.create_table(
        "experience",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger()),
        sa.Column("rollout_id", sa.BigInteger()),
        sa.Column("source_id", sa.BigInteger()),
        sa.Column("step", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("state", EXPERIENCE_STATE, nullable=False),
        sa.Column("held_out", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("version_min", sa.Integer()),
        sa.Column("version_max", sa.Integer()),
        sa.Column("reward", sa.Double()),
        sa.Column("priority", sa.Double(), server_default="0", nullable=False),
        sa.Column("use_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("prompt_length", sa.Integer()),
        sa.Column("response_length", sa.Integer()),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("import_key", sa.Uuid()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ready_xact", sa.BigInteger()),
        sa.Column("seed", sa.BigInteger()),
        sa.Column("draws_labels", sa.Boolean(), server_default="false", nullable=False),
        sa.Column(
            "place",
            sa.BigInteger(),
            sa.Computed(
                "CASE WHEN prompt_length IS NOT NULL AND (reward > 0::double precision OR"
                " (reward IS NOT NULL) = draws_labels) THEN hashint8extended(source_id, "
                "seed + use_count) ELSE NULL::bigint END",
                persisted=True,
            ),
        ),
        sa.Column(
            "to_judge",
            EXPERIENCE_STATE,
            sa.Computed(
                "CASE WHEN state = ANY (ARRAY['raw'::trinity.experience_state, "
                "'clean'::trinity.experience_state]) THEN state ELSE "
                "NULL::trinity.experience_state END",
                persisted=True,
            ),
        ),
        sa.Column(
            "judge_id",
            sa.BigInteger(),
            sa.Computed(
                "CASE WHEN state = ANY (ARRAY['raw'::trinity.experience_state, "
                "'clean'::trinity.experience_state]) THEN worker_id ELSE NULL::bigint END",
                persisted=True,
            ),
        ),
        sa.Column(
            "is_offered",
            sa.Boolean(),
            sa.Computed("state = 'ready'::trinity.experience_state AND version_min IS NULL", persisted=True),
            nullable=False,
        ),
        sa.Column(
            "pass_number",
            sa.Integer(),
            sa.Computed(
                "CASE WHEN state = 'ready'::trinity.experience_state AND prompt_length IS"
                " NOT NULL AND (reward > 0::double precision OR (reward IS NOT NULL) = "
                "draws_labels) AND source_id IS NOT NULL AND seed IS NOT NULL THEN "
                "use_count ELSE NULL::integer END",
                persisted=True,
            ),
        ),
        sa.CheckConstraint(
            "held_out OR state::text <> 'evaluated'",
            name=op.f("experience_only_held_out_are_evaluated_check"),
        ),
        sa.CheckConstraint(
            "reward > '-Infinity' AND reward < 'Infinity'", name=op.f("experience_reward_finite_check")
        ),
        sa.CheckConstraint(
            "source_id IS NOT NULL OR NOT held_out OR state::text = ANY (ARRAY['clean', "
            "'evaluated', 'dropped'])",
            name=op.f("experience_evaluated_in_place_of_trained_check"),
        ),
        sa.CheckConstraint(
            "state <> 'leased' OR worker_id IS NOT NULL", name=op.f("experience_leased_by_a_worker_check")
        ),
        sa.CheckConstraint(
            "(group_id IS NULL) = (rollout_id IS NULL)", name=op.f("experience_group_iff_rollout_check")
        ),
        sa.CheckConstraint("version_min <= version_max", name=op.f("experience_versions_in_order_check")),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["trinity.rollout.id"], name=op.f("experience_rollout_id_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("experience_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["trinity.experience.id"], name=op.f("experience_source_id_fkey")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("experience_pkey")),
        schema="trinity",
        postgresql_with=HOT_TABLE,
    )
    op.create_index(
        "experience_group_idx",
        "experience",
        ["group_id"],
        schema="trinity",
        postgresql_where=sa.text("group_id IS NOT NULL"),
    )
    op.create_index(
        "experience_import_key",
        "experience",
        ["run_id", "import_key"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("import_key IS NOT NULL"),
    )
    op.create_index(
        "experience_judge_idx",
        "experience",
        ["judge_id"],
        schema="trinity",
        postgresql_where=sa.text("judge_id IS NOT NULL"),
    )
    op.create_index(
        "experience_open_idx",
        "experience",
        ["run_id", "to_judge", "id"],
        schema="trinity",
        postgresql_where=sa.text("to_judge IS NOT NULL"),
    )
    op.create_index(
        "experience_place_idx",
        "experience",
        ["run_id", "pass_number", "place", "id"],
        schema="trinity",
        postgresql_where=sa.text("pass_number IS NOT NULL"),
    )
    op.create_index(
        "experience_ready_idx",
        "experience",
        ["run_id", "id"],
        schema="trinity",
        postgresql_where=sa.text("is_offered"),
    )
    op.create_index(
        "experience_rollout_key",
        "experience",
        ["rollout_id", "step", "run_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("rollout_id IS NOT NULL"),
    )
    op.create_index(
        "experience_source_key",
        "experience",
        ["source_id", "run_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("source_id IS NOT NULL"),
    )
    op.create_table(
        "park",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("agent_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("parked_at", sa.DateTime(timezone=True)),
        sa.Column("state", postgresql.JSONB()),
        sa.Column("record", postgresql.JSONB()),
        sa.Column("version_min", sa.Integer()),
        sa.Column("wake_at", sa.DateTime(timezone=True)),
        sa.Column("answer", postgresql.JSONB()),
        sa.Column("answered_at", sa.DateTime(timezone=True)),
        sa.Column("answered_by", sa.Text()),
        sa.Column("resumed_at", sa.DateTime(timezone=True)),
        sa.Column("resumed_attempt", sa.Integer()),
        sa.Column("left_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "(answered_at IS NULL) = (answer IS NULL)", name=op.f("park_answer_iff_answered_check")
        ),
        sa.CheckConstraint(
            "(parked_at IS NULL) = (state IS NULL) AND (parked_at IS NULL) = (record IS NULL)",
            name=op.f("park_parked_with_state_check"),
        ),
        sa.CheckConstraint(
            "left_at IS NULL OR resumed_at IS NOT NULL", name=op.f("park_left_after_it_was_resumed_check")
        ),
        sa.CheckConstraint(
            "resumed_at IS NULL OR (parked_at IS NOT NULL AND resumed_attempt IS NOT NULL)",
            name=op.f("park_resumed_from_a_park_check"),
        ),
        sa.ForeignKeyConstraint(
            ["agent_id"], ["trinity.agent.id"], name=op.f("park_agent_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("park_pkey")),
        schema="trinity",
    )
    op.create_index(op.f("park_agent_id_idx"), "park", ["agent_id"], schema="trinity")
    op.create_index(
        "park_current_key",
        "park",
        ["agent_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("parked_at IS NOT NULL AND left_at IS NULL"),
    )
    op.create_index(op.f("park_run_id_id_idx"), "park", ["run_id", "id"], schema="trinity")
    op.create_index(
        "park_ticket_key",
        "park",
        ["agent_id"],
        unique=True,
        schema="trinity",
        postgresql_where=sa.text("parked_at IS NULL"),
    )
    op.create_table(
        "experience_text",
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("response", sa.Text(), nullable=False),
        sa.Column("messages", postgresql.JSONB()),
        sa.Column("tools", postgresql.JSONB()),
        sa.Column("reply", postgresql.JSONB()),
        sa.Column("extra", postgresql.JSONB()),
        sa.Column("requests", postgresql.JSONB()),
        sa.Column("state", sa.Text()),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("experience_text_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experience_id", name=op.f("experience_text_pkey")),
        schema="trinity",
        postgresql_with={"toast_tuple_target": "4080"},
    )
    op.create_table(
        "minhash",
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("bands", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.CheckConstraint("cardinality(bands) > 0", name=op.f("minhash_has_bands_check")),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("minhash_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experience_id", name=op.f("minhash_pkey")),
        schema="trinity",
    )
    op.create_index(
        op.f("minhash_bands_idx"),
        "minhash",
        ["bands"],
        schema="trinity",
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    )
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
        sa.Column("detail", postgresql.JSONB()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "num_nonnulls(task_id, experience_id) = 1", name=op.f("origin_of_one_thing_check")
        ),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("origin_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["synthesis_id"],
            ["trinity.synthesis.id"],
            name=op.f("origin_synthesis_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["trinity.task.id"], name=op.f("origin_task_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("origin_pkey")),
        sa.UniqueConstraint("run_id", "digest", name=op.f("origin_run_id_digest_key")),
        schema="trinity",
    )
    op.create_index(
        op.f("origin_experience_id_idx"),
        "origin",
        ["experience_id"],
        schema="trinity",
        postgresql_where=sa.text("experience_id IS NOT NULL"),
    )
    op.create_index(op.f("origin_source_task_id_idx"), "origin", ["source_task_id"], schema="trinity")
    op.create_index(op.f("origin_synthesis_id_idx"), "origin", ["synthesis_id"], schema="trinity")
    op.create_index(
        op.f("origin_task_id_idx"),
        "origin",
        ["task_id"],
        schema="trinity",
        postgresql_where=sa.text("task_id IS NOT NULL"),
    )
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
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("overlap_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["of_task_id"], ["trinity.task.id"], name=op.f("overlap_of_task_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["trinity.task.id"], name=op.f("overlap_task_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("overlap_pkey")),
        sa.UniqueConstraint(
            "task_id",
            "of_task_id",
            "experience_id",
            "measure",
            name=op.f("overlap_task_id_of_task_id_experience_id_measure_key"),
            postgresql_nulls_not_distinct=True,
        ),
        schema="trinity",
    )
    op.create_index(
        op.f("overlap_experience_id_idx"),
        "overlap",
        ["experience_id"],
        schema="trinity",
        postgresql_where=sa.text("experience_id IS NOT NULL"),
    )
    op.create_index(
        op.f("overlap_of_task_id_idx"),
        "overlap",
        ["of_task_id"],
        schema="trinity",
        postgresql_where=sa.text("of_task_id IS NOT NULL"),
    )
    op.create_table(
        "payload",
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary()),
        sa.Column("archive_row", sa.BigInteger()),
        sa.Column("archive_number", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("pruned_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "num_nonnulls(data, archive_row, pruned_at) = 1", name=op.f("payload_in_one_place_check")
        ),
        sa.CheckConstraint("num_tokens > 0", name=op.f("payload_has_tokens_check")),
        sa.ForeignKeyConstraint(
            ["experience_id"],
            ["trinity.experience.id"],
            name=op.f("payload_experience_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experience_id", name=op.f("payload_pkey")),
        schema="trinity",
        postgresql_with={"toast.autovacuum_vacuum_scale_factor": "0.05"},
    )
    op.create_table(
        "preference",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("chosen_id", sa.BigInteger(), nullable=False),
        sa.Column("rejected_id", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("margin", sa.Double()),
        sa.Column("state", EXPERIENCE_STATE, server_default="ready", nullable=False),
        sa.Column("held_out", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("use_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("extra", postgresql.JSONB()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column(
            "ready_xact",
            sa.BigInteger(),
            server_default=sa.text("(pg_current_xact_id()::text)::bigint"),
            nullable=False,
        ),
        sa.Column("origin_id", sa.BigInteger()),
        sa.Column("seed", sa.BigInteger()),
        sa.Column("gives_labels", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("upheld", sa.Boolean()),
        sa.Column(
            "place",
            sa.BigInteger(),
            sa.Computed("hashint8extended(origin_id, seed + use_count)", persisted=True),
        ),
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
        sa.PrimaryKeyConstraint("id", name=op.f("preference_pkey")),
        sa.UniqueConstraint(
            "run_id", "chosen_id", "rejected_id", name=op.f("preference_run_id_chosen_id_rejected_id_key")
        ),
        schema="trinity",
        postgresql_with=HOT_TABLE,
    )
    op.create_index(op.f("preference_chosen_id_idx"), "preference", ["chosen_id"], schema="trinity")
    op.create_index(
        "preference_place_idx",
        "preference",
        ["run_id", "use_count", "place", "id"],
        schema="trinity",
        postgresql_where=sa.text("state = 'ready' AND place IS NOT NULL"),
    )
    op.create_index(
        "preference_ready_idx",
        "preference",
        ["run_id", "id"],
        schema="trinity",
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_index(op.f("preference_rejected_id_idx"), "preference", ["rejected_id"], schema="trinity")
    op.create_index(
        "preference_worker_idx",
        "preference",
        ["worker_id"],
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
        sa.Column("outcome", PROCESSING_OUTCOME, nullable=False),
        sa.Column("step", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("detail", postgresql.JSONB()),
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
        sa.PrimaryKeyConstraint(
            "experience_id", "processor", "processor_version", "attempt", name=op.f("processing_pkey")
        ),
        schema="trinity",
    )
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
    op.create_index(op.f("review_experience_id_idx"), "review", ["experience_id"], schema="trinity")
    op.create_index(
        "review_open_idx",
        "review",
        ["run_id", "id"],
        schema="trinity",
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_index(op.f("review_other_id_idx"), "review", ["other_id"], schema="trinity")
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
    op.create_table(
        "reward_event",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("rollout_id", sa.BigInteger()),
        sa.Column("experience_id", sa.BigInteger()),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("weight", sa.Double(), server_default="1", nullable=False),
        sa.Column("created_by", sa.Text()),
        sa.Column("processor_version", sa.Integer()),
        sa.Column("detail", postgresql.JSONB()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column(
            "xact",
            sa.BigInteger(),
            server_default=sa.text("(pg_current_xact_id()::text)::bigint"),
            nullable=False,
        ),
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
        schema="trinity",
        postgresql_where=sa.text("experience_id IS NOT NULL"),
    )
    op.create_index(
        op.f("reward_event_rollout_id_name_id_idx"),
        "reward_event",
        ["rollout_id", "name", "id"],
        schema="trinity",
        postgresql_where=sa.text("rollout_id IS NOT NULL"),
    )
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
    op.create_table(
        "batch_item",
        sa.Column("batch_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("experience_id", sa.BigInteger(), nullable=False),
        sa.Column("preference_id", sa.BigInteger()),
        sa.Column("probability", sa.Double()),
        sa.Column("weight", sa.Double(), server_default="1", nullable=False),
        sa.Column("reward", sa.Double()),
        sa.Column("advantage", sa.Double()),
        sa.Column("staleness", sa.Integer()),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["trinity.batch.id"], name=op.f("batch_item_batch_id_fkey"), ondelete="CASCADE"
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
    op.create_index(op.f("batch_item_experience_id_idx"), "batch_item", ["experience_id"], schema="trinity")
    op.create_index(
        "batch_item_preference_idx",
        "batch_item",
        ["preference_id"],
        schema="trinity",
        postgresql_where=sa.text("preference_id IS NOT NULL"),
    )
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
    op.create_table(
        "drop",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("experience_id", sa.BigInteger()),
        sa.Column("preference_id", sa.BigInteger()),
        sa.Column("group_id", sa.BigInteger()),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("step", sa.Text()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", postgresql.JSONB()),
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
    op.create_index(op.f("drop_run_id_reason_idx"), "drop", ["run_id", "reason"], schema="trinity")
    op.create_table(
        "label",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("review_id", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("state", LABEL_STATE, server_default="draft", nullable=False),
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
    # Packed arrays gain nothing from compression, and are written a third faster without it.
    for table in ("payload", "score", "call"):
        op.execute(f"ALTER TABLE trinity.{table} ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    # The policies of roles.sql that read it go with it.
    op.execute("DROP FUNCTION IF EXISTS trinity.kept_for(bigint, text) CASCADE")
    for table in reversed(TABLES):
        op.drop_table(table, schema="trinity")
    for kind in TYPES:
        op.execute(f"DROP TYPE trinity.{kind.name}")
