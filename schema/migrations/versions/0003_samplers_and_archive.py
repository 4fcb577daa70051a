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


def upgrade() -> None:
    _samplers()
    _passes()
    _archive()
    settings = ", ".join(f"{name} = {value}" for name, value in VACUUM.items())
    for table in HOT_TABLES:
        op.execute(f"ALTER TABLE trinity.{table} SET ({settings})")
    op.execute("ALTER TABLE trinity.payload SET (toast.autovacuum_vacuum_scale_factor = 0.05)")


def _samplers() -> None:
    op.add_column(
        "rollout_group",
        sa.Column("priority", sa.Double(), server_default="1", nullable=False),
        schema="trinity",
    )
    octave = "ceil(ln(NULLIF(priority, 0::double precision)) / ln(2::double precision))::smallint"
    op.add_column(
        "rollout_group",
        sa.Column("octave", sa.SmallInteger(), sa.Computed(octave, persisted=True)),
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
    op.add_column("batch", sa.Column("parameters", postgresql.JSONB()), schema="trinity")
    op.add_column("batch", sa.Column("floor", sa.BigInteger()), schema="trinity")


def _passes() -> None:
    """What is adopted already gets its place; the order of the draws stays what it was."""
    for table in ("experience", "preference"):
        op.add_column(table, sa.Column("place", sa.BigInteger()), schema="trinity")
    op.execute(
        "UPDATE trinity.experience e"
        " SET place = hashint8extended(e.source_id, coalesce((r.config ->> 'seed')::bigint, 0) + e.use_count)"
        " FROM trinity.run r"
        " WHERE r.id = e.run_id AND r.kind = 'train' AND e.source_id IS NOT NULL AND NOT e.held_out"
    )
    op.execute(
        "UPDATE trinity.preference p"
        " SET place = hashint8extended(coalesce(c.source_id, c.id),"
        " coalesce((r.config ->> 'seed')::bigint, 0) + p.use_count)"
        " FROM trinity.run r, trinity.experience c"
        " WHERE r.id = p.run_id AND r.kind = 'train' AND c.id = p.chosen_id AND NOT p.held_out"
    )
    for table in ("experience", "preference"):
        op.create_index(
            f"{table}_place_idx",
            table,
            ["run_id", "use_count", "place", "id"],
            schema="trinity",
            postgresql_where=READY_WITH_PLACE,
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
        sa.Column("tended_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["trinity.run.id"], name=op.f("archive_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["trinity.worker.id"], name=op.f("archive_worker_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("archive_pkey")),
        schema="trinity",
    )


def downgrade() -> None:
    op.drop_table("archive", schema="trinity")
    # Fails on a payload that only the archive has: its bytes would be lost.
    op.alter_column("payload", "data", nullable=False, schema="trinity")
    op.drop_constraint("payload_in_one_place_check", "payload", schema="trinity")
    op.drop_column("payload", "archive_row", schema="trinity")
    for table in ("experience", "preference"):
        op.drop_index(f"{table}_place_idx", table, schema="trinity")
        op.drop_column(table, "place", schema="trinity")
    for column in ("floor", "parameters"):
        op.drop_column("batch", column, schema="trinity")
    op.drop_index("rollout_group_chance_idx", "rollout_group", schema="trinity")
    for column in ("octave", "priority"):
        op.drop_column("rollout_group", column, schema="trinity")
    for table in HOT_TABLES:
        op.execute(f"ALTER TABLE trinity.{table} RESET ({', '.join(VACUUM)})")
    op.execute("ALTER TABLE trinity.payload RESET (toast.autovacuum_vacuum_scale_factor)")
