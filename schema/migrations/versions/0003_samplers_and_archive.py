"""Draw by chance, shuffle without sorting, archive payloads, and vacuum hot tables by what changed in them.

Older workers must be stopped: they would leave adopted rows without their place in the next pass.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

HOT_TABLES = ("rollout_group", "experience", "preference")
VACUUM = {
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_delay": "0",
}
READY_WITH_PLACE = sa.text("state = 'ready' AND place IS NOT NULL")

# References that cost each write a look-up, and that others imply or the verb that writes them: a rollout's
# by its group, an experience's by its rollout, a batch item's by its batch, of the same run; a lease is taken
# by a worker that is there. What they name, and what becomes of the row when that is deleted.
IMPLIED: dict[tuple[str, str], tuple[str, str | None]] = {
    ("rollout", "run_id"): ("run", "CASCADE"),
    ("rollout", "worker_id"): ("worker", None),
    ("experience", "group_id"): ("rollout_group", None),
    ("batch_item", "experience_id"): ("experience", "CASCADE"),
    ("experience", "worker_id"): ("worker", None),
    ("preference", "worker_id"): ("worker", None),
}

# Indexes that rows without a rollout are left out of.
OF_ATTEMPTS = {
    "experience_rollout_key": ["rollout_id", "step", "run_id"],
    "experience_group_idx": ["group_id"],
}


def upgrade() -> None:
    _samplers()
    _passes()
    _pairing()
    _archive()
    settings = ", ".join(f"{name} = {value}" for name, value in VACUUM.items())
    for table in (*HOT_TABLES, "pairing"):
        op.execute(f"ALTER TABLE trinity.{table} SET ({settings})")
    op.execute("ALTER TABLE trinity.payload SET (toast.autovacuum_vacuum_scale_factor = 0.05)")
    _writes()


def _samplers() -> None:
    op.add_column(
        "rollout_group",
        sa.Column("priority", sa.Double(), server_default="1", nullable=False),
        schema="trinity",
    )
    octave = (
        "COALESCE(ceil(ln(NULLIF(priority, 0::double precision)) / ln(2::double precision)),"
        " '-60'::double precision)::smallint"
    )
    op.add_column(
        "rollout_group",
        sa.Column("octave", sa.SmallInteger(), sa.Computed(octave, persisted=True), nullable=False),
        schema="trinity",
    )
    op.create_check_constraint(
        op.f("rollout_group_priority_in_range_check"),
        "rollout_group",
        "priority = 0 OR priority BETWEEN 1e-18 AND 1e18",
        schema="trinity",
    )
    op.create_index(
        "rollout_group_chance_idx",
        "rollout_group",
        ["run_id", "octave", sa.text("hashint8extended(id, 0)")],
        schema="trinity",
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_index(
        "rollout_group_version_idx",
        "rollout_group",
        ["run_id", "version_min", "id"],
        schema="trinity",
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.add_column("batch", sa.Column("parameters", postgresql.JSONB()), schema="trinity")
    op.add_column("batch", sa.Column("floor", sa.BigInteger()), schema="trinity")


def _passes() -> None:
    """What is adopted already gets its place; the order of the draws stays what it was."""
    for name, kind, formula in (
        ("seed", sa.BigInteger(), "COALESCE((config ->> 'seed'::text)::bigint, 0::bigint)"),
        ("derives_pairs", sa.Boolean(), "(config #>> '{processors,pair}'::text[]) IS NOT NULL"),
    ):
        column = sa.Column(name, kind, sa.Computed(formula, persisted=True), nullable=False)
        op.add_column("run", column, schema="trinity")
    for table, name in (("experience", "seed"), ("preference", "origin_id"), ("preference", "seed")):
        op.add_column(table, sa.Column(name, sa.BigInteger()), schema="trinity")
    op.execute(
        "UPDATE trinity.experience e SET seed = r.seed FROM trinity.run r"
        " WHERE r.id = e.run_id AND e.source_id IS NOT NULL AND NOT e.held_out"
        " AND NOT EXISTS (SELECT FROM trinity.preference p WHERE p.rejected_id = e.id)"
    )
    op.execute(
        "UPDATE trinity.preference p"
        " SET origin_id = coalesce(c.source_id, c.id),"
        " seed = CASE WHEN NOT p.held_out AND (p.source <> 'pair' OR c.reward > d.reward) THEN r.seed END"
        " FROM trinity.run r, trinity.experience c, trinity.experience d"
        " WHERE r.id = p.run_id AND r.kind = 'train' AND c.id = p.chosen_id AND d.id = p.rejected_id"
    )
    row = (
        "CASE WHEN prompt_length IS NOT NULL AND (reward IS NULL OR reward > 0::double precision)"
        " THEN hashint8extended(source_id, seed + use_count) ELSE NULL::bigint END"
    )
    pair = "hashint8extended(origin_id, seed + use_count)"
    for table, formula in (("experience", row), ("preference", pair)):
        place = sa.Column("place", sa.BigInteger(), sa.Computed(formula, persisted=True))
        op.add_column(table, place, schema="trinity")
    for table in ("experience", "preference"):
        op.create_index(
            f"{table}_place_idx",
            table,
            ["run_id", "use_count", "place", "id"],
            schema="trinity",
            postgresql_where=READY_WITH_PLACE,
        )


def _pairing() -> None:
    """Every group that may have pairs is looked at once more."""
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
    )
    op.execute("ALTER TABLE trinity.pairing SET (fillfactor = 70)")
    op.execute(
        "INSERT INTO trinity.pairing (run_id, group_id)"
        " SELECT DISTINCT e.run_id, e.group_id FROM trinity.experience e"
        " JOIN trinity.run r ON r.id = e.run_id"
        " WHERE r.derives_pairs AND e.group_id IS NOT NULL AND e.state IN ('ready', 'leased', 'trained')"
    )


def _writes() -> None:
    """Fewer look-ups and less compression for each rollout."""
    for table, column in IMPLIED:
        op.drop_constraint(f"{table}_{column}_fkey", table, schema="trinity")
    op.execute("ALTER TABLE trinity.experience_text SET (toast_tuple_target = 4080)")
    for name, columns in OF_ATTEMPTS.items():
        op.drop_index(name, "experience", schema="trinity")
        op.create_index(
            name,
            "experience",
            columns,
            unique=name.endswith("_key"),
            schema="trinity",
            postgresql_where=sa.text(f"{columns[0]} IS NOT NULL"),
        )


def _archive() -> None:
    op.alter_column("payload", "data", nullable=True, schema="trinity")
    op.add_column("payload", sa.Column("archive_row", sa.BigInteger()), schema="trinity")
    op.create_check_constraint(
        op.f("payload_in_one_place_check"), "payload", "num_nonnulls(data, archive_row) = 1", schema="trinity"
    )
    op.create_table(
        "archive",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.BigInteger()),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("archive_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["trinity.worker.id"], name=op.f("archive_worker_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("archive_pkey")),
        schema="trinity",
    )


def downgrade() -> None:
    for (table, column), (referred, action) in IMPLIED.items():
        op.create_foreign_key(
            op.f(f"{table}_{column}_fkey"),
            table,
            referred,
            [column],
            ["id"],
            source_schema="trinity",
            referent_schema="trinity",
            ondelete=action,
        )
    op.execute("ALTER TABLE trinity.experience_text RESET (toast_tuple_target)")
    for name, columns in OF_ATTEMPTS.items():
        op.drop_index(name, "experience", schema="trinity")
        op.create_index(name, "experience", columns, unique=name.endswith("_key"), schema="trinity")
    op.drop_table("archive", schema="trinity")
    # Fails on a payload that only the archive has: its bytes would be lost.
    op.alter_column("payload", "data", nullable=False, schema="trinity")
    op.drop_constraint("payload_in_one_place_check", "payload", schema="trinity")
    op.drop_column("payload", "archive_row", schema="trinity")
    for table in ("experience", "preference"):
        op.drop_index(f"{table}_place_idx", table, schema="trinity")
        op.drop_column(table, "place", schema="trinity")
    op.drop_table("pairing", schema="trinity")
    for table, name in (
        ("experience", "seed"),
        ("preference", "origin_id"),
        ("preference", "seed"),
        ("run", "seed"),
        ("run", "derives_pairs"),
    ):
        op.drop_column(table, name, schema="trinity")
    for column in ("floor", "parameters"):
        op.drop_column("batch", column, schema="trinity")
    for index in ("rollout_group_version_idx", "rollout_group_chance_idx"):
        op.drop_index(index, "rollout_group", schema="trinity")
    for column in ("octave", "priority"):
        op.drop_column("rollout_group", column, schema="trinity")
    for table in HOT_TABLES:
        op.execute(f"ALTER TABLE trinity.{table} RESET ({', '.join(VACUUM)})")
    op.execute("ALTER TABLE trinity.payload RESET (toast.autovacuum_vacuum_scale_factor)")
