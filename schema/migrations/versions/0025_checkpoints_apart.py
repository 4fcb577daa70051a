"""A checkpoint, which the trainer goes on from, lies apart from the weights of its version.

Older workers may not run on: trainers would write checkpoints that this table cannot name. A checkpoint of
before is in the same folder as its version's weights, and is gone on from there.
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

IN_ONE_FOLDER = """
UPDATE trinity.policy_version
SET resume_from = checkpoint, resume_hash = checkpoint_hash
WHERE resumable AND version > 0
"""


def upgrade() -> None:
    for name in ("resume_from", "resume_hash"):
        op.add_column("policy_version", sa.Column(name, sa.Text()), schema="trinity")
    op.execute(IN_ONE_FOLDER)
    op.drop_column("policy_version", "resumable", schema="trinity")
    op.create_check_constraint(
        op.f("policy_version_checkpoint_has_weights_check"),
        "policy_version",
        "resume_from IS NULL OR checkpoint IS NOT NULL AND resume_hash IS NOT NULL",
        schema="trinity",
    )


def downgrade() -> None:
    op.add_column(
        "policy_version",
        sa.Column("resumable", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        schema="trinity",
    )
    # A trainer of before finds no state in a folder of weights.
    op.execute(
        "UPDATE trinity.policy_version"
        " SET resumable = version = 0 OR resume_from IS NOT DISTINCT FROM checkpoint"
    )
    for name in ("resume_hash", "resume_from"):
        op.drop_column("policy_version", name, schema="trinity")
