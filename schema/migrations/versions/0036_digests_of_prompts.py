"""Tasks keep a digest of their prompt, by which a made task is found in its taskset.

Older workers may keep running: tasks that they import get the digest when a step makes a task for their
taskset, as those that are there do. That takes a minute or two for a million tasks, once.
"""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("task", sa.Column("prompt_digest", sa.LargeBinary()), schema="trinity")
    op.create_index(
        "task_taskset_id_prompt_digest_idx", "task", ["taskset_id", "prompt_digest"], schema="trinity"
    )


def downgrade() -> None:
    op.drop_index("task_taskset_id_prompt_digest_idx", table_name="task", schema="trinity")
    op.drop_column("task", "prompt_digest", schema="trinity")
