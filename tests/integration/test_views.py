"""What views say, against times and versions that the tests set."""

import random
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal

from psycopg.types.json import Jsonb

from tests.support.postgres import new_database
from tests.support.replays import adopted
from tests.support.rows import Scene, demonstration, import_records, preference
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import runs, workers

SILENT = "UPDATE trinity.worker SET heartbeat_at = now() - interval '1 min'"

STAYS = "SELECT state, rows, mean, median, round(p95::numeric, 2) FROM trinity.state_time_view WHERE run = %s"

# Seconds after midnight of two groups of two rows: what ended when.
TIMES = """
UPDATE trinity.rollout SET started_at = day + (id - (SELECT min(id) FROM trinity.rollout)) * second,
    finished_at = day + 10 * second;
UPDATE trinity.experience SET created_at = day + 11 * second;
UPDATE trinity.processing SET created_at = day +
    CASE processor WHEN 'clean' THEN 12
         ELSE 14 + experience_id - (SELECT min(id) FROM trinity.experience) END * second;
UPDATE trinity.rollout_group SET ready_at = day + 30 * second;
UPDATE trinity.batch SET created_at = day + (40 + 10 * place) * second,
    committed_at = day + (42 + 10 * place) * second,
    reopened_at = CASE WHEN reopened_at IS NOT NULL THEN day + 48 * second END
    FROM (SELECT id AS of, row_number() OVER (ORDER BY id) AS place FROM trinity.batch) b WHERE id = of;
UPDATE trinity.policy_version SET published_at = day + 250 * second;
""".replace("day", "timestamptz '2026-01-01 00:00Z'").replace("second", "interval '1 s'")


def set_times(scene: Scene) -> None:
    with scene.database.transaction() as tx:
        tx.execute(TIMES)


def test_the_status_of_a_run_follows_from_sign_offs_and_heartbeats(server: str, template: str) -> None:
    cases: dict[Sequence[str], str] = {
        (): "active",
        ("UPDATE trinity.worker SET stopped_at = now()",): "stopped",
        (SILENT,): "crashed",
        # One role was killed, the others signed off because of it.
        (SILENT, "UPDATE trinity.worker SET stopped_at = heartbeat_at WHERE role <> 'train'"): "crashed",
        # The page, or a restart, takes a silent worker for gone: the run has crashed all the same.
        (SILENT, "UPDATE trinity.worker SET stopped_at = now()"): "crashed",
        # A worker that was lost long before the others signed off.
        (
            "UPDATE trinity.worker SET stopped_at = now() WHERE role <> 'explore'",
            "UPDATE trinity.worker SET heartbeat_at = now() - interval '1 h' WHERE role = 'explore'",
        ): "stopped",
        (SILENT, "UPDATE trinity.worker SET heartbeat_at = now() WHERE role = 'process'"): "active",
        ("UPDATE trinity.run SET stop_asked_at = now()",): "stopping",
        ("UPDATE trinity.run SET stop_asked_at = now()", SILENT): "crashed",
        ("UPDATE trinity.run SET state = 'finished', finished_at = now()",): "finished",
        ("UPDATE trinity.run SET deleting_at = now()",): "being deleted",
        ("DELETE FROM trinity.worker",): "new",
    }
    with new_database(server, template) as url, closing(Database(url)) as database:
        with database.transaction() as tx:
            run = runs.open_run(tx, "run", {}, "groups")
            for role in WorkerRole:
                workers.register(tx, run, role)
        for changes, expected in cases.items():
            with database.transaction() as tx, tx.transaction(force_rollback=True):
                for change in changes:
                    tx.execute(change)
                row = tx.execute("SELECT status, state FROM trinity.run_view").fetchone()
            assert row == {"status": expected, "state": "finished" if expected == "finished" else "active"}


def test_the_time_that_rows_spend_in_each_state_is_told(scene: Scene) -> None:
    scene.make_ready(2)
    scene.train(1, 1)
    scene.publish(1, 1)
    scene.train(2, 1)  # in no version yet
    set_times(scene)
    assert scene.rows(STAYS, scene.run.name) == [
        ("exploring", 4, 8.5, 8.5, Decimal("9.85")),
        ("raw", 4, 1.0, 1.0, 1.0),
        ("clean", 4, 3.5, 3.5, Decimal("4.85")),
        ("scored", 4, 14.5, 14.5, Decimal("15.85")),
        ("ready", 4, 25.0, 25.0, 30.0),
        ("leased", 4, 2.0, 2.0, 2.0),
        ("trained", 2, 198.0, 198.0, 198.0),
    ]


def test_a_row_that_is_drawn_again_was_ready_since_it_came_back(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(1, 1)
    scene.reopen(0)
    scene.train(1, 1)
    set_times(scene)
    [ready] = [row for row in scene.rows(STAYS, scene.run.name) if row[0] == "ready"]
    assert ready[1:3] == (4, ((50 - 30) + (60 - 48)) / 2)


def test_rows_that_were_imported_are_ready_when_a_run_adopts_them(scene: Scene) -> None:
    import_records(scene.database, "answers", [demonstration(number) for number in range(2)])
    run = adopted(scene, "offline", "answers")
    batch = run.draw_rows(1, 2)
    run.commit(batch)
    set_times(run)
    assert [row[:2] for row in run.rows(STAYS, run.run.name)] == [("ready", 2), ("leased", 2)]


def test_pairs_are_ready_when_they_are_made(scene: Scene) -> None:
    import_records(scene.database, "pairs", [preference(number) for number in range(2)])
    run = adopted(scene, "offline", "pairs")
    run.commit(run.draw_pairs(1, 2))
    assert [row[:2] for row in run.rows(STAYS, run.run.name)] == [("ready", 4), ("leased", 4)]


def test_staleness_now_grows_and_staleness_at_the_draw_does_not(scene: Scene) -> None:
    scene.make_ready(1)
    scene.train(1, 1)
    for version in (1, 2):
        scene.publish(version, 1)
    assert scene.values("SELECT staleness_now FROM trinity.experience_view") == [2, 2]
    assert scene.values("SELECT staleness FROM trinity.batch_item") == [0, 0]
    assert scene.values("SELECT staleness FROM trinity.lineage(1)") == [0, 0]
    assert scene.values("SELECT staleness_max FROM trinity.batch_view") == [0]


def test_the_question_of_a_long_prompt_is_found_at_a_bounded_cost(scene: Scene) -> None:
    def question(prompt: str, messages: list[dict[str, str]] | None = None) -> str:
        content = None if messages is None else Jsonb(messages)
        with scene.database.transaction() as tx:
            tx.execute("CREATE TEMP TABLE asked (prompt text, messages jsonb) ON COMMIT DROP")
            tx.execute("INSERT INTO asked VALUES (%s, %s)", [prompt, content])
            row = tx.execute("SELECT trinity.question(prompt, messages) AS said FROM asked").fetchone()
        assert row is not None
        return str(row["said"])

    said = [{"role": "user", "content": "first?"}, {"role": "user", "content": "last?"}]
    marked = "<|im_start|>user\nmarked?<|im_end|>"
    assert question(marked, said) == "last?"
    noise = random.Random(7).randbytes(100_000).hex()  # it takes over 64 KiB in the table, compressed too
    assert question(marked, [{"role": "system", "content": noise}, *said]).strip() == "marked?"
    assert question(noise + marked).strip() == "marked?"
    assert question(marked + noise[:20_000]) == marked + noise[:20_000]
    assert question("a" * 1_000_001 + marked) == "a" * 20_000
