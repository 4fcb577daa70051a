"""Each task has a number in its taskset, and each run a place in its pass over it.

Older workers may run on; an older import fails. A run that is resumed begins a new pass: no row said how far
it was.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

NUMBER = """
UPDATE trinity.task t SET ordinal = n.ordinal
FROM (SELECT o.id, row_number() OVER (PARTITION BY o.taskset_id ORDER BY o.id) - 1 AS ordinal
      FROM trinity.task o) n
WHERE n.id = t.id
"""

RENAME = """
UPDATE trinity.{table}
SET config = jsonb_set(config #- '{{explorer,order}}', '{{explorer,tasks}}',
                       jsonb_build_object('name', CASE config #>> '{{explorer,order}}'
                                                  WHEN 'sequential' THEN 'sequential' ELSE 'shuffled' END))
WHERE config #> '{{explorer,order}}' IS NOT NULL
"""
RENAME_BACK = """
UPDATE trinity.{table}
SET config = jsonb_set(config #- '{{explorer,tasks}}', '{{explorer,order}}',
                       CASE config #>> '{{explorer,tasks,name}}'
                       WHEN 'sequential' THEN '"sequential"'::jsonb ELSE '"shuffle"'::jsonb END)
WHERE config #> '{{explorer,tasks}}' IS NOT NULL
"""


def upgrade() -> None:
    op.add_column("task", sa.Column("ordinal", sa.Integer()), schema="trinity")
    op.add_column(
        "task",
        sa.Column(
            "level",
            sa.Double(),
            sa.Computed(
                "CASE WHEN jsonb_typeof(payload -> 'level'::text) IS DISTINCT FROM 'number'::text"
                " THEN NULL::double precision"
                " WHEN abs((payload -> 'level'::text)::numeric) < '1000000000000000'::numeric"
                " THEN round((payload -> 'level'::text)::numeric, 15)::double precision"
                " ELSE NULL::double precision END",
                persisted=True,
            ),
        ),
        schema="trinity",
    )
    op.execute(NUMBER)
    op.alter_column("task", "ordinal", nullable=False, schema="trinity")
    op.create_unique_constraint(
        op.f("task_taskset_id_ordinal_key"), "task", ["taskset_id", "ordinal"], schema="trinity"
    )
    op.create_index(
        "task_level_idx",
        "task",
        ["taskset_id", sa.text("COALESCE(level, 'Infinity'::double precision)"), "ordinal"],
        schema="trinity",
    )
    _make_passes()
    for table in ("run", "run_setting"):
        op.get_bind().exec_driver_sql(RENAME.format(table=table))


def _make_passes() -> None:
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
        sa.Column("level", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "number >= 0 AND first >= 0 AND size >= 0 AND position >= 0",
            name=op.f("task_pass_place_in_order_check"),
        ),
        sa.CheckConstraint(
            "walk IN ('shuffled', 'sequential', 'easy_to_hard')", name=op.f("task_pass_known_walk_check")
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


def downgrade() -> None:
    for table in ("run", "run_setting"):
        op.get_bind().exec_driver_sql(RENAME_BACK.format(table=table))
    op.drop_table("task_pass", schema="trinity")
    op.drop_index("task_level_idx", table_name="task", schema="trinity")
    op.drop_constraint(op.f("task_taskset_id_ordinal_key"), "task", schema="trinity", type_="unique")
    op.drop_column("task", "level", schema="trinity")
    op.drop_column("task", "ordinal", schema="trinity")
