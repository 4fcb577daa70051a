"""What moves of a row write into indexes: a row that was judged stays where they find it."""

from collections.abc import Callable
from typing import Any

from tests.support.rows import Scene, centered
from trinity_db.postgres.connection import Transaction
from trinity_db.store import batches, draws, finish_groups, processing

MOVES = """
SELECT n_tup_upd AS moves, n_tup_hot_upd AS alone FROM pg_stat_xact_user_tables
WHERE schemaname = 'trinity' AND relname = 'experience'
"""
# Columns that an index has in its key or names in its condition.
INDEXED = """
SELECT DISTINCT a.attname::text
FROM pg_index i
JOIN pg_depend d ON d.objid = i.indexrelid AND d.classid = 'pg_class'::regclass AND d.refobjid = i.indrelid
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
WHERE i.indrelid = 'trinity.experience'::regclass
"""


def test_a_row_that_was_judged_moves_on_without_an_entry_in_any_index(scene: Scene) -> None:
    scene.explore(4, (1.0, 0.0))
    scene.judge(processing.CLEAN)
    scene.judge(processing.SCORE)
    assert counted(
        scene, lambda tx: finish_groups.settle_groups(tx, scene.run.id, finish_groups.Rules(2), 100)
    ) == (
        8,
        8,
    )
    batch: list[batches.Batch | None] = []
    draw = scene._draw(1, 4)
    assert counted(scene, lambda tx: batch.append(draws.draw_groups(tx, draw, None, centered))) == (8, 8)
    [drawn] = batch
    assert drawn is not None
    assert counted(scene, lambda tx: batches.commit(tx, drawn, scene.trainer, 1)) == (8, 8)
    assert scene.values("SELECT DISTINCT state FROM trinity.experience") == ["trained"]


def test_no_index_names_what_every_move_changes(scene: Scene) -> None:
    indexed = set(scene.values(INDEXED))
    assert {"id", "group_id", "to_judge", "judge_id"} <= indexed
    assert not indexed & {"state", "worker_id", "attempt", "use_count", "reward", "priority"}


def counted(scene: Scene, verb: Callable[[Transaction], Any]) -> tuple[int, int]:
    """How many versions of rows a verb writes, and how many of them no index names."""
    with scene.database.transaction() as tx:
        before = tx.execute(MOVES).fetchone()
        verb(tx)
        after = tx.execute(MOVES).fetchone()
    assert before is not None
    assert after is not None
    return after["moves"] - before["moves"], after["alone"] - before["alone"]
