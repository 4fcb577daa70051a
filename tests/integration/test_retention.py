"""Retention: which rows processors remove by themselves, of which runs, and with which rights."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import Scene, payload, rolled_back, rollout
from tests.support.steps import processors
from tests.support.waiting import wait_until
from trinity_db.config import durations
from trinity_db.data.copies.exporter import export_run
from trinity_db.data.copies.importer import import_run
from trinity_db.postgres import logins
from trinity_db.postgres.connection import Transaction, connect
from trinity_db.processors.config import ProcessorsConfig, RetentionConfig
from trinity_db.processors.jobs import retention as turn
from trinity_db.processors.lists import lists
from trinity_db.processors.service import Processors
from trinity_db.store import calls, groups, pruning, retention, runs

PRUNED = "SELECT experience_id FROM trinity.payload WHERE pruned_at IS NOT NULL ORDER BY 1"
ROWS = "SELECT id FROM trinity.experience WHERE group_id = ANY(%s) ORDER BY 1"
COUNTS = "SELECT family, num_rows FROM trinity.retention WHERE num_rows > 0 ORDER BY 1"
ENDED = "SELECT count(*) FROM trinity.sweep WHERE after_id = 0 AND ended_at IS NOT NULL"
OLD = "- interval '2 hours'"


def configure(scene: Scene, **families: str) -> None:
    """The run's configuration says how long rows are kept."""
    config = json.dumps({"processors": {"retention": families}})
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.run SET config = %s WHERE id = %s", (config, scene.run.id))


def keep(scene: Scene, **families: str) -> None:
    """The same, and the run's processors start."""
    configure(scene, **families)
    with scene.database.transaction() as tx:
        retention.enter(tx, scene.run.id)


def make_old(scene: Scene) -> None:
    """All rows of the run were written two hours ago."""
    with scene.database.transaction() as tx:
        for table in ("experience", "metric"):
            tx.execute(
                f"UPDATE trinity.{table} SET created_at = created_at {OLD} WHERE run_id = %s", (scene.run.id,)
            )
        tx.execute(
            f"UPDATE trinity.processing SET created_at = created_at {OLD}"
            " WHERE experience_id IN (SELECT id FROM trinity.experience WHERE run_id = %s)",
            (scene.run.id,),
        )


def sweep(scene: Scene, role: str | None = None) -> int:
    """All looks that are due; how many transactions they took."""
    turns = 0
    while remove(scene, role):
        turns += 1
    return turns


def remove(scene: Scene, role: str | None = None) -> bool:
    with scene.database.transaction() as tx:
        if role is not None:
            tx.execute(f"SET LOCAL ROLE {role}")
        return retention.remove_next(tx)


@pytest.fixture
def trained(scene: Scene) -> list[int]:
    """Two groups that version 1 includes, and one that no step has drawn; all are old."""
    made = scene.make_ready(3)
    scene.train(1, 2)
    scene.publish(1, step=1)
    scene.record(1, {"loss": 1.0})
    make_old(scene)
    return made


def test_old_rows_of_each_family_go_and_are_counted(scene: Scene, trained: list[int]) -> None:
    keep(scene, payloads="1h", metrics="90m", processing="1d")
    scene.record(2, {"loss": 0.5})
    assert sweep(scene)
    assert scene.values(PRUNED) == scene.values(ROWS, trained[:2])
    assert scene.values("SELECT step FROM trinity.metric") == [2]
    assert scene.value("SELECT count(*) FROM trinity.processing") > 0, "they are kept for a day"
    assert scene.rows(COUNTS) == [("metrics", 1), ("payloads", 4)]
    assert scene.value("SELECT min(num_bytes) FROM trinity.retention WHERE num_rows > 0") > 0
    assert scene.value(ENDED) == 4
    assert not remove(scene), "no look is due"


def test_processing_records_go_of_rows_that_are_done_with(scene: Scene, trained: list[int]) -> None:
    keep(scene, processing="1h")
    sweep(scene)
    left = scene.values("SELECT DISTINCT experience_id FROM trinity.processing ORDER BY 1")
    assert left == scene.values(ROWS, trained[2:])
    assert scene.values(PRUNED) == []


def test_arrays_of_calls_go_with_payloads(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=2)
    with scene.database.transaction() as tx:
        agent = calls.begin(tx, scene.explorer, group, 0, 0, key="one")
        assert calls.record(
            tx, scene.explorer, [calls.Call(agent, 0, b"digest", "prompt", payload((0, 0)), "stop")]
        )
        written = [rollout(group, 0), rollout(group, 1)]
        groups.write_rollouts(tx, scene.run.id, scene.explorer, written)
        tx.execute(f"UPDATE trinity.agent SET ended_at = now() {OLD}")
    keep(scene, payloads="1d")
    sweep(scene)
    assert scene.value("SELECT count(data) FROM trinity.call") == 1
    keep(scene, payloads="1h")
    look_again(scene)
    sweep(scene)
    assert scene.value("SELECT count(data) FROM trinity.call") == 0
    assert scene.values("SELECT prompt FROM trinity.call") == ["prompt"]


def look_again(scene: Scene) -> None:
    """Days have passed since the last look."""
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.sweep SET ended_at = now() - interval '2 days'")


def test_the_next_look_is_due_after_a_24th_of_the_shortest_time(scene: Scene, trained: list[int]) -> None:
    keep(scene, metrics="24h")
    sweep(scene)
    for minutes, is_due in ((59, False), (61, True)):
        with scene.database.transaction() as tx:
            tx.execute(f"UPDATE trinity.sweep SET ended_at = now() - interval '{minutes} minutes'")
        assert remove(scene) is is_due


def test_a_run_that_says_nothing_keeps_everything_beside_one_that_does(
    scene: Scene, trained: list[int]
) -> None:
    other = scene.beside("other")
    other.publish(0, step=0)
    other.make_ready(2)
    make_old(other)
    keep(other, payloads="1h", metrics="1h", processing="1h")
    keep(scene)
    sweep(scene)
    assert scene.values(PRUNED) == []
    assert scene.values("SELECT DISTINCT run_id FROM trinity.retention") == [other.run.id]
    assert scene.value("SELECT count(*) FROM trinity.metric") == 1


def test_rows_of_a_run_that_has_ended_go_by_another_runs_processors(
    scene: Scene, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(scene, payloads="3h")
    with scene.database.transaction() as tx:
        runs.finish(tx, scene.run.id)
    sweep(scene)
    assert scene.values(PRUNED) == []
    make_old(scene)  # now four hours ago
    look_again(scene)
    monkeypatch.setattr(turn, "SHARE", 1.0)
    remover = turn.Remover(scene.beside("other").database)

    def looked() -> bool:
        remover.work()
        return bool(
            scene.value(
                "SELECT ended_at > now() - interval '1 day' FROM trinity.sweep WHERE family = 'payloads'"
            )
        )

    wait_until(looked, "all payloads were looked at")
    assert scene.values(PRUNED) == scene.values(ROWS, trained[:2])


def test_a_run_that_is_being_deleted_is_left_to_its_deletion(scene: Scene, trained: list[int]) -> None:
    keep(scene, payloads="1h")
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.run SET deleting_at = now()")
    sweep(scene)
    assert scene.values(PRUNED) == []


def test_a_copy_of_a_run_keeps_all_rows_until_its_own_processors_start(
    scene: Scene, trained: list[int], tmp_path: Path
) -> None:
    keep(scene, metrics="1h")
    export_run(scene.database, "run", tmp_path / "copy", False, lambda table, count: None)
    sweep(scene)
    import_run(scene.database, tmp_path / "copy", "again", lambda table, count: None)
    with scene.database.transaction() as tx:
        copy = runs.find(tx, "again")
    look_again(scene)
    sweep(scene)
    left = "SELECT count(*) FROM trinity.metric WHERE run_id = %s"
    assert (scene.value(left, scene.run.id), scene.value(left, copy.id)) == (0, 1)
    with scene.database.transaction() as tx:
        retention.enter(tx, copy.id)
    look_again(scene)
    sweep(scene)
    assert scene.value(left, copy.id) == 0


def test_what_is_removed_and_how_far_the_look_has_come_are_one_transaction(
    scene: Scene, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(scene, payloads="1h")
    small = replace(pruning.PAYLOADS, size=2)
    monkeypatch.setattr(pruning, "PAYLOADS", small)
    monkeypatch.setattr(retention, "FAMILIES", retention.FAMILIES | {"payloads": small})
    seen = list[tuple[int, int]]()
    for _ in range(50):
        with rolled_back(scene.database) as tx:  # as by a crash before the commit
            retention.remove_next(tx)
        more = remove(scene)
        after = scene.value("SELECT max(after_id) FROM trinity.sweep WHERE family = 'payloads'")
        seen.append((after, len(scene.values(PRUNED))))
        if not more:
            break
    first, *_ = scene.values(ROWS, trained)
    assert seen[:2] in ([(first + 1, 2), (first + 3, 4)], [(0, 0), (first + 1, 2)])
    assert scene.rows(COUNTS) == [("payloads", 4)]


def test_processors_remove_old_rows_between_their_other_work(
    scene: Scene, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "SHARE", 1.0)
    configure(scene, payloads="1h", metrics="1h")
    role = processors(scene, {})

    def all_looked_at() -> bool:
        role.work()
        return bool(scene.value(ENDED) >= 3)

    wait_until(all_looked_at, "payloads, calls and metrics were looked at")
    assert scene.values(PRUNED) == scene.values(ROWS, trained[:2])
    assert scene.value("SELECT count(*) FROM trinity.metric") == 0


def test_processors_of_an_evaluation_alone_do_not_begin_with_a_run(scene: Scene) -> None:
    configure(scene, payloads="1h")
    settings = ProcessorsConfig()
    Processors(scene.database, scene.run, settings, lists.load(settings), only=[1]).start()
    assert scene.value("SELECT count(*) FROM trinity.retention") == 0
    Processors(scene.database, scene.run, settings, lists.load(settings)).start()
    assert scene.values("SELECT family FROM trinity.retention ORDER BY 1") == ["calls", "payloads"]


def test_two_processors_never_look_at_the_same_rows(scene: Scene, trained: list[int]) -> None:
    keep(scene, metrics="1h")
    with closing(connect(scene.database.url)) as other, other.transaction():
        held = [other.execute("SELECT family FROM trinity.sweep FOR UPDATE").fetchall()]
        assert len(held[0]) == 4
        assert not remove(scene)
    assert remove(scene)


def test_a_processor_waits_for_no_session_that_stands_still(
    scene: Scene, trained: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep(scene, payloads="1h")
    monkeypatch.setattr(retention, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(turn, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(turn, "SHARE", 1.0)
    remover = turn.Remover(scene.database)

    def refused() -> bool:
        remover.work()
        return "another session holds them" in caplog.text

    with closing(connect(scene.database.url)) as other:
        other.execute("SELECT FROM trinity.rollout_group WHERE id = %s FOR UPDATE", [trained[0]])
        wait_until(refused, "it gives up")
        remover.work()
        other.rollback()
    assert scene.values(PRUNED) == []
    assert caplog.text.count("old rows stay") == 1

    def removed() -> bool:
        remover.work()
        return bool(scene.values(PRUNED))

    wait_until(removed, "it tries again")
    assert scene.values(PRUNED) == scene.values(ROWS, trained[:2])


def of_a_processor(scene: Scene) -> Transaction:
    with closing(connect(scene.database.url)) as owner, owner.transaction():
        logins.open_to_roles(owner)
    connection = connect(scene.database.url, autocommit=True)
    connection.execute("SET ROLE trinity_processor")
    return connection


def test_a_processors_login_removes_what_the_configuration_keeps_no_longer(
    scene: Scene, trained: list[int]
) -> None:
    of_a_processor(scene).close()
    keep(scene, payloads="1h", metrics="1h", processing="1h")
    assert sweep(scene, role="trinity_processor")
    assert scene.values(PRUNED) == scene.values(ROWS, trained[:2])
    assert scene.rows(COUNTS) == [("metrics", 1), ("payloads", 4), ("processing", 8)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trinity.payload SET data = NULL, pruned_at = now()",
        "UPDATE trinity.call SET data = ''",
        "UPDATE trinity.policy_version SET step = 9",
        "UPDATE trinity.policy_version SET checkpoint = ''",
        "UPDATE trinity.run SET config = '{}'",
    ],
)
def test_a_processors_login_may_not_do_more(scene: Scene, trained: list[int], statement: str) -> None:
    keep(scene, payloads="3h", metrics="3h")
    [group] = scene.claim(1)
    with scene.database.transaction() as tx:
        agent = calls.begin(tx, scene.explorer, group, 0, 0, key="one")
        asked = calls.Call(agent, 0, b"digest", "prompt", payload((0, 0)), "stop")
        assert calls.record(tx, scene.explorer, [asked])
        tx.execute(f"UPDATE trinity.agent SET ended_at = now() {OLD} {OLD}")
    with closing(of_a_processor(scene)) as login, pytest.raises(psycopg.errors.InsufficientPrivilege):
        login.execute(statement.encode())


def test_a_processors_login_deletes_no_younger_row(scene: Scene, trained: list[int]) -> None:
    keep(scene, payloads="3h", metrics="3h", processing="3h")
    with closing(of_a_processor(scene)) as login:
        for table in ("metric", "processing"):
            assert login.execute(f"DELETE FROM trinity.{table}".encode()).rowcount == 0


def test_a_login_without_the_right_says_so_once_and_tries_again_later(
    scene: Scene, trained: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep(scene, metrics="1h")
    of_a_processor(scene).close()
    remove_next = retention.remove_next

    def as_a_reader(tx: Transaction) -> bool:
        tx.execute("SET LOCAL ROLE trinity_reader")
        return remove_next(tx)

    monkeypatch.setattr(turn, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(retention, "remove_next", as_a_reader)
    remover = turn.Remover(scene.database)
    remover.work()
    remover.work()
    assert caplog.text.count("old rows stay") == 1
    assert "trinity-db db roles" in caplog.text
    assert scene.value("SELECT count(*) FROM trinity.metric") == 1
    monkeypatch.setattr(retention, "remove_next", remove_next)
    monkeypatch.setattr(turn, "SHARE", 1.0)

    def removed() -> bool:
        remover.work()
        return bool(scene.value("SELECT count(*) FROM trinity.metric") == 0)

    wait_until(removed, "it has the right now")


@pytest.mark.parametrize("age", ["30", "", "1y", "30s", "0m", "99999999d", "-1d"])
def test_an_age_that_is_none_is_refused(age: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write it as 30d, 12h|less than a minute"):
        RetentionConfig(payloads=age)


def test_postgres_reads_the_ages_as_we_do(scene: Scene) -> None:
    for text in ("1m", "90m", "12h", "30d", "36500d"):
        assert (
            scene.value("SELECT extract(epoch FROM %s::interval)", text)
            == durations.parse(text).total_seconds()
        )


def test_status_says_how_long_rows_are_kept_and_what_went(
    scene: Scene, trained: list[int], command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(scene, payloads="1h", metrics="30d")
    sweep(scene)
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    done = command_line("status", "run", "--json")
    assert done.code == 0, done
    said: Any = json.loads(done.stdout)["retention"]
    assert [(one["family"], one["kept_for"], one["rows"]) for one in said] == [
        ("calls", "1h", 0),
        ("metrics", "30d", 0),
        ("payloads", "1h", 4),
    ]
    assert all(one["looked_at"] for one in said)
    out = command_line("status", "run").stdout
    assert "payloads 1h, 4 rows removed" in " ".join(out.split())
