"""A run says what its batches are made of: no statement knows an algorithm by its name any more.

Older workers may run on. Older code opens no new run, since it does not say what the run draws.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

LABELS = (
    """config @> '{"algorithm": {"name": "kto"}}'::jsonb"""
    """ OR config @> '{"algorithm": "kto"}'::jsonb"""
)

# The recipes of this version by what they draw; all others draw groups. Where a run is so old that it stored
# the name of its recipe alone, `algorithm` is that name.
FILL = f"""
UPDATE trinity.run r
SET draws = CASE
    WHEN {LABELS} THEN 'labels'
    WHEN a.name IN ('dpo', 'orpo', 'simpo', 'cpo') THEN 'pairs'
    WHEN a.name IN ('sft', 'dft') AND coalesce(a.reward_above, 'null') = 'null' THEN 'rows'
    WHEN a.name = 'raft' AND a.reward_above = 'null' THEN 'rows'
    ELSE 'groups' END
FROM (SELECT o.id, coalesce(o.config #>> '{{algorithm,name}}', o.config ->> 'algorithm') AS name,
             o.config #> '{{algorithm,reward_above}}' AS reward_above
      FROM trinity.run o) a
WHERE a.id = r.id AND r.kind = 'train'
"""


def upgrade() -> None:
    op.add_column("run", sa.Column("draws", sa.Text()), schema="trinity")
    op.get_bind().exec_driver_sql(FILL)
    op.create_check_constraint(
        op.f("run_draws_iff_train_check"),
        "run",
        "(kind = 'train') = (draws IS NOT NULL)",
        schema="trinity",
    )
    op.create_check_constraint(
        op.f("run_known_draws_check"),
        "run",
        "draws IN ('groups', 'rows', 'labels', 'pairs')",
        schema="trinity",
    )
    op.drop_column("run", "draws_labels", schema="trinity")


def downgrade() -> None:
    op.add_column(
        "run",
        sa.Column("draws_labels", sa.Boolean(), sa.Computed(LABELS, persisted=True), nullable=False),
        schema="trinity",
    )
    for name in ("run_known_draws_check", "run_draws_iff_train_check"):
        op.drop_constraint(op.f(name), "run", schema="trinity", type_="check")
    op.drop_column("run", "draws", schema="trinity")
