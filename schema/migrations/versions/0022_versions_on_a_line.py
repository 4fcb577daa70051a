"""A policy version may be weights alone, says when it was withdrawn, and has its place on the run's line.

Older workers may not run on: trainers would go on from weights without the trainer's state, and give versions
a wrong place. A version of before is weights and checkpoint in one. It was withdrawn if its files are gone
and no batch is included in it, as a pruned version includes at least one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

MARK_WITHDRAWN = """
UPDATE trinity.policy_version p SET withdrawn_at = p.published_at
WHERE p.version > 0 AND p.checkpoint IS NULL
  AND NOT EXISTS (SELECT FROM trinity.batch b WHERE b.run_id = p.run_id AND b.included_version = p.version)
  AND NOT EXISTS (SELECT FROM trinity.setback s
                  WHERE s.run_id = p.run_id AND s.resumed_version = p.version
                    AND s.adopted_version IS NOT NULL)
"""
# A kept version comes from the kept one before it, and so does the first withdrawn one that follows it.
COUNT_SKIPPED = """
UPDATE trinity.policy_version p SET skipped = p.version - place.place
FROM (SELECT v.run_id, v.version,
             v.kept - 1
             + CASE WHEN v.withdrawn_at IS NULL THEN 0 ELSE row_number() OVER gap - 1 END AS place
      FROM (SELECT q.*, count(*) FILTER (WHERE q.withdrawn_at IS NULL) OVER
                            (PARTITION BY q.run_id ORDER BY q.version) AS kept
            FROM trinity.policy_version q) v
      WINDOW gap AS (PARTITION BY v.run_id, v.kept ORDER BY v.version)) place
WHERE place.run_id = p.run_id AND place.version = p.version AND place.place <> p.version
"""


def upgrade() -> None:
    for column in (
        sa.Column("resumable", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("withdrawn_at", sa.DateTime(timezone=True)),
        sa.Column("skipped", sa.Integer(), server_default=sa.text("0"), nullable=False),
    ):
        op.add_column("policy_version", column, schema="trinity")
    op.execute(MARK_WITHDRAWN)
    op.execute(COUNT_SKIPPED)
    _check("skips_numbers_below", "skipped >= 0 AND skipped <= version")
    _check("withdrawn_has_no_files", "withdrawn_at IS NULL OR checkpoint IS NULL")


def downgrade() -> None:
    # Weights alone are nothing that a trainer of before goes on from.
    op.execute("UPDATE trinity.policy_version SET checkpoint = NULL WHERE NOT resumable")
    for column in ("skipped", "withdrawn_at", "resumable"):
        op.drop_column("policy_version", column, schema="trinity")


def _check(name: str, condition: str) -> None:
    op.create_check_constraint(
        op.f(f"policy_version_{name}_check"), "policy_version", condition, schema="trinity"
    )
