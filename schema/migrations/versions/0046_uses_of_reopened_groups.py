"""Rollout groups lose the uses of reopened batches that an older trainer left on them.

It passed over groups with uses left when it gave back the rows of a batch, so that their counts were higher
than those of their rows. Only groups of reopened batches are read. Older workers may keep running, but an
older trainer leaves such counts again.
"""

from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        UPDATE trinity.rollout_group g SET use_count = m.uses
        FROM (SELECT e.run_id, e.group_id, max(e.use_count) AS uses
              FROM trinity.batch b
              JOIN trinity.batch_item i ON i.batch_id = b.id
              JOIN trinity.experience e ON e.id = i.experience_id
              WHERE b.state = 'reopened' AND e.group_id IS NOT NULL
              GROUP BY e.run_id, e.group_id) m
        WHERE g.id = m.group_id AND g.run_id = m.run_id AND g.use_count <> m.uses
        """
    )


def downgrade() -> None:
    """The counts are right for older code too."""
