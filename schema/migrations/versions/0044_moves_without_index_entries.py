"""No index names a row's state, lease or uses, so that most of its moves write no entry in any index.

Older workers may run on, but their claims read every row of the store, so restart processors and trainers
soon. The table of rows is written anew once, which takes about a minute for ten million.
"""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

STATE = "trinity.experience_state"
UNJUDGED = f"state = ANY (ARRAY['raw'::{STATE}, 'clean'::{STATE}])"
HAS_PLACE = (
    "prompt_length IS NOT NULL AND (reward > 0::double precision OR (reward IS NOT NULL) = draws_labels)"
)


def upgrade() -> None:
    _drop("experience_open_idx", "experience_place_idx", "experience_ready_idx", "experience_worker_idx")
    op.get_bind().exec_driver_sql(
        f"""
        ALTER TABLE trinity.experience
            ADD COLUMN to_judge {STATE}
                GENERATED ALWAYS AS (CASE WHEN {UNJUDGED} THEN state ELSE NULL::{STATE} END) STORED,
            ADD COLUMN judge_id bigint
                GENERATED ALWAYS AS (CASE WHEN {UNJUDGED} THEN worker_id ELSE NULL::bigint END) STORED,
            ADD COLUMN is_offered boolean
                GENERATED ALWAYS AS (state = 'ready'::{STATE} AND version_min IS NULL) STORED NOT NULL,
            ADD COLUMN pass_number integer
                GENERATED ALWAYS AS (CASE WHEN state = 'ready'::{STATE} AND {HAS_PLACE}
                                               AND source_id IS NOT NULL AND seed IS NOT NULL
                                          THEN use_count ELSE NULL::integer END) STORED
        """
    )
    _index("experience_open_idx", ["run_id", "to_judge", "id"], "to_judge IS NOT NULL")
    _index("experience_place_idx", ["run_id", "pass_number", "place", "id"], "pass_number IS NOT NULL")
    _index("experience_ready_idx", ["run_id", "id"], "is_offered")
    _index("experience_judge_idx", ["judge_id"], "judge_id IS NOT NULL")


def downgrade() -> None:
    _drop("experience_open_idx", "experience_place_idx", "experience_ready_idx", "experience_judge_idx")
    for column in ("to_judge", "judge_id", "is_offered", "pass_number"):
        op.drop_column("experience", column, schema="trinity")
    _index(
        "experience_open_idx",
        ["run_id", "state", "id"],
        "state IN ('raw', 'clean', 'scored') AND worker_id IS NULL",
    )
    _index(
        "experience_place_idx",
        ["run_id", "use_count", "place", "id"],
        "state = 'ready' AND place IS NOT NULL",
    )
    _index("experience_ready_idx", ["run_id", "id"], "state = 'ready'")
    _index("experience_worker_idx", ["worker_id"], "worker_id IS NOT NULL")


def _drop(*names: str) -> None:
    for name in names:
        op.drop_index(name, table_name="experience", schema="trinity")


def _index(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "experience", columns, schema="trinity", postgresql_where=sa.text(where))
