"""`trinity-db prune`: what goes, what stays, and what is said of what is gone."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.command_line import CommandLine
from tests.support.postgres import by_login
from tests.support.rows import (
    WAIT_SECONDS,
    Scene,
    demonstration,
    import_records,
    in_a_thread,
    members,
    payload,
    rollout,
    wait_until_blocked,
)
from trinity_db.data.copies.exporter import export_run
from trinity_db.data.copies.importer import import_run
from trinity_db.errors import NotFound, TrinityError
from trinity_db.postgres.connection import Database, connect
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, calls, evaluations, payloads, processing, pruning
from trinity_db.store import groups as store

PRUNED = "SELECT experience_id FROM trinity.payload WHERE pruned_at IS NOT NULL ORDER BY 1"
ROWS = "SELECT id FROM trinity.experience WHERE group_id = ANY(%s) ORDER BY 1"

Run = Callable[..., tuple[Any, str]]


@pytest.fixture
def prune(scene: Scene, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command on the scene's database, with a yes; exit code and stdout."""

    def prune(*arguments: str, url: str = scene.database.url) -> tuple[Any, str]:
        monkeypatch.setenv("TRINITY_DB_URL", url)
        done = command_line("prune", *arguments, "--yes")
        return done.code, done.stdout

    return prune


@pytest.fixture
def trained(scene: Scene) -> list[int]:
    """Three groups: the first is included in version 1, the second is trained on since, the third ready."""
    groups = scene.make_ready(3)
    scene.train(1, 1)
    scene.publish(1, step=1)
    scene.train(2, 1)
    return groups


def test_payloads_go_that_the_oldest_checkpoint_includes_and_rows_and_texts_stay(
    scene: Scene, trained: list[int], prune: Run
) -> None:
    code, out = prune("run", "--payloads", "--keep-versions", "0", "--json")
    assert code == 0
    [said] = json.loads(out)
    assert said["payloads"]["rows"] == 2
    assert said["payloads"]["bytes"] > 50
    assert scene.values(PRUNED) == scene.values(ROWS, trained[:1])
    assert scene.value("SELECT count(*) FROM trinity.experience_text") == 6
    assert json.loads(prune("run", "--payloads", "--keep-versions", "0", "--json")[1])[0]["payloads"] == {
        "rows": 0,
        "bytes": 0,
        "archived": 0,
    }


def test_a_row_stays_while_an_older_checkpoint_is_kept_that_does_not_include_its_batch(
    scene: Scene, trained: list[int], prune: Run
) -> None:
    scene.publish(2, step=2)
    prune("run", "--payloads", "--keep-versions", "0")
    assert scene.values(PRUNED) == scene.values(ROWS, trained[:1])
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.policy_version SET checkpoint = NULL, resume_from = NULL WHERE version = 1"
        )
    prune("run", "--payloads", "--keep-versions", "0")
    assert scene.values(PRUNED) == scene.values(ROWS, trained[:2])


def test_without_a_checkpoint_but_the_first_only_what_was_never_drawn_goes(scene: Scene, prune: Run) -> None:
    scene.make_ready(2)
    scene.train(1, 1)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'dropped' WHERE state = 'ready'")
    prune("run", "--payloads", "--keep-versions", "0")
    never = "SELECT id FROM trinity.experience WHERE state = 'dropped' ORDER BY id"
    assert scene.values(PRUNED) == scene.values(never)
    assert len(scene.values(PRUNED)) == 2


def test_newest_versions_and_younger_rows_stay(scene: Scene, trained: list[int], prune: Run) -> None:
    prune("run", "--payloads", "--keep-versions", "2")
    prune("run", "--payloads", "--older-than", "1d")
    assert scene.values(PRUNED) == []
    with scene.database.transaction() as tx:
        old = "UPDATE trinity.experience SET created_at = now() - interval '25 h'"
        tx.execute(f"{old} WHERE group_id = %s AND reward = 1".encode(), trained[:1])
    prune("run", "--payloads", "--older-than", "1d")
    assert len(scene.values(PRUNED)) == 1


def test_rows_of_pairs_stay_until_the_pair_is_dropped(scene: Scene, prune: Run) -> None:
    groups = scene.make_ready(2)
    scene.train(1, 2)
    scene.publish(1, step=1)
    others = scene.values(ROWS, groups[:1])
    chosen, rejected = scene.values(ROWS, groups[1:])
    with scene.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.preference (run_id, chosen_id, rejected_id, source, state)"
            " VALUES (%s, %s, %s, 'ann', 'trained')",
            [scene.run.id, chosen, rejected],
        )
    prune("run", "--payloads", "--keep-versions", "0")
    assert scene.values(PRUNED) == others
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.preference SET state = 'dropped'")
    prune("run", "--payloads", "--keep-versions", "0")
    assert scene.values(PRUNED) == [*others, chosen, rejected]


def test_rows_of_evaluations_go_once_they_are_judged_or_refused(scene: Scene, prune: Run) -> None:
    settings = evaluations.Settings(scene.value("SELECT id FROM trinity.taskset"), 1, 0.5, 4)
    with scene.database.transaction() as tx:
        evaluation = evaluations.begin(tx, scene.run.id, 0, settings)
        assert evaluation is not None
        claimed = evaluations.claim(tx, scene.explorer, evaluation, 2)
    scene.write([member for group in claimed for member in members(group)])
    scene.judge(processing.SCORE)
    late = scene.new_worker(WorkerRole.EXPLORE)
    with scene.database.transaction() as tx:
        [lost, waiting] = evaluations.claim(tx, scene.explorer, evaluation, 2)
    assert scene.write(members(lost), worker=late) == 1
    scene.write(members(waiting))
    states = "SELECT state FROM trinity.experience ORDER BY id"
    assert scene.values(states) == ["evaluated", "evaluated", "dropped", "clean"]
    prune("run", "--payloads", "--older-than", "0m")
    assert scene.values(PRUNED) == scene.values(
        "SELECT id FROM trinity.experience WHERE state <> 'clean' ORDER BY 1"
    )


def test_calls_that_became_no_rollout_go_once_their_agents_have_ended(scene: Scene, prune: Run) -> None:
    [group] = scene.claim(1, group_size=2)

    def ask(member: int, retry: int) -> int:
        with scene.database.transaction() as tx:
            agent = calls.begin(tx, scene.explorer, group, member, retry, key=f"{member} {retry}")
            asked = calls.Call(agent, 0, b"digest", "prompt", payload((0, 0)), "stop")
            assert calls.record(tx, scene.explorer, [asked])
        return agent

    tried, live, done = ask(0, 0), ask(0, 1), ask(1, 0)
    with scene.database.transaction() as tx:
        written = [rollout(group, 1)]
        store.write_rollouts(tx, scene.run.id, scene.explorer, written)
        calls.end(tx, scene.explorer, written)
    left = "SELECT agent_id FROM trinity.call WHERE data IS NOT NULL ORDER BY 1"
    assert scene.values(left) == [tried, live], f"{done} is in the payload"
    prune("run", "--payloads", "--older-than", "1d")
    assert scene.values(left) == [tried, live]
    prune("run", "--payloads", "--older-than", "0m")
    assert scene.values(left) == [live]
    assert scene.values("SELECT prompt FROM trinity.call") == ["prompt"] * 2


def test_imported_rows_stay_and_a_data_set_is_refused(scene: Scene, prune: Run) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(3)])
    scene.beside("user", {"data": ["set"]}, ["set"])
    with scene.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.payload (experience_id, codec, num_tokens, data)"
            " SELECT id, 'compact-1', 1, 'x' FROM trinity.experience"
        )
        tx.execute("UPDATE trinity.experience SET state = 'trained', version_max = 0")
    assert prune("--keep-versions", "0")[0] == 0
    assert scene.values(PRUNED) == []
    assert "'set' is a data set" in prune("set", "--keep-versions", "0")[0]


def test_a_run_does_not_go_back_behind_what_was_pruned(scene: Scene, trained: list[int], prune: Run) -> None:
    prune("run", "--payloads", "--keep-versions", "0")
    before = scene.rows("SELECT id, state::text, included_version FROM trinity.batch ORDER BY id")
    with (
        pytest.raises(
            TrinityError, match=r"cannot go back to version 0: the arrays of 2 rows .* were pruned"
        ),
        scene.database.transaction() as tx,
    ):
        batches.reopen(tx, scene.run.id, scene.trainer, 0)
    assert before == scene.rows("SELECT id, state::text, included_version FROM trinity.batch ORDER BY id")
    with scene.database.transaction() as tx:
        assert batches.reopen(tx, scene.run.id, scene.trainer, 1) == 1


def test_readers_say_that_arrays_were_pruned(
    scene: Scene,
    trained: list[int],
    prune: Run,
    tmp_path: Path,
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [first, _] = scene.values(ROWS, trained[:1])
    prune("run", "--payloads", "--keep-versions", "0")
    with pytest.raises(NotFound, match=f"experience {first} were pruned on"):
        payloads.read(scene.database, [first])
    batch = scene.value("SELECT id FROM trinity.batch WHERE step = 1")
    monkeypatch.setenv("TRINITY_DB_READ_URL", by_login(scene.database.url))
    refused = command_line("replay", str(batch), "--to", str(tmp_path / "b.jsonl"))
    assert "of 1 others were pruned on" in refused.complaint
    assert command_line("show", str(first)).code == 0
    assert command_line("replay", str(batch), "--check").code == 0


def test_a_copy_has_what_is_left_and_says_what_was_pruned(
    scene: Scene, trained: list[int], prune: Run, tmp_path: Path
) -> None:
    prune("run", "--payloads", "--keep-versions", "0")
    export_run(scene.database, "run", tmp_path / "copy", False, lambda table, count: None)
    import_run(scene.database, tmp_path / "copy", "again", lambda table, count: None)
    states = (
        "SELECT p.data, p.pruned_at FROM trinity.payload p"
        " JOIN trinity.experience e ON e.id = p.experience_id"
        " JOIN trinity.run r ON r.id = e.run_id WHERE r.name = %s ORDER BY e.id"
    )
    assert scene.rows(states, "again") == scene.rows(states, "run")


def test_metrics_and_processing_records_go_by_version(scene: Scene, trained: list[int], prune: Run) -> None:
    for step in (1, 2):
        scene.record(step, {"loss": 1.0})
        scene.record(step, {"tokens": 1.0}, WorkerRole.EXPLORE)
    scene.publish(2, step=2)
    records = scene.value("SELECT count(*) FROM trinity.processing")
    [said] = json.loads(prune("run", "--metrics", "--processing", "--keep-versions", "1", "--json")[1])
    assert "payloads" not in said
    assert said["metrics"]["rows"] == 2
    assert scene.rows("SELECT step, name FROM trinity.metric ORDER BY name") == [(2, "loss"), (2, "tokens")]
    assert said["processing records"]["rows"] == 8
    assert scene.value("SELECT count(*) FROM trinity.processing") == records - 8, "those of the ready rows"


def test_a_dry_run_counts_the_same_and_changes_nothing(scene: Scene, trained: list[int], prune: Run) -> None:
    scene.record(1, {"loss": 1.0})
    would = json.loads(prune("run", "--keep-versions", "0", "--dry-run", "--json")[1])
    assert scene.values(PRUNED) == []
    did = json.loads(prune("run", "--keep-versions", "0", "--json")[1])
    assert [of | {"dry_run": False} for of in would] == did


def test_a_prune_that_was_killed_is_repeated(
    scene: Scene, trained: list[int], prune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(name: str, count: int) -> None:
        raise KeyboardInterrupt

    with scene.database.transaction() as tx:
        allowed = pruning.limits(tx, scene.run, None, 0)
    with pytest.raises(KeyboardInterrupt):
        pruning.prune(scene.database, scene.run, pruning.PAYLOADS, allowed, False, die)
    assert prune("run", "--keep-versions", "0")[0] == 0
    assert len(scene.values(PRUNED)) == 2


def test_archived_payloads_lose_their_pointer_and_are_counted_off(
    scene: Scene, trained: list[int], prune: Run
) -> None:
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.payload SET data = NULL, archive_row = experience_id")
        tx.execute(
            "INSERT INTO trinity.archive (run_id, number, store, name, num_rows, num_bytes)"
            " SELECT %(id)s, 0, gen_random_uuid(), 'payload_' || %(id)s::text || '_0', 6, 600",
            {"id": scene.run.id},
        )
    _, out = prune("run", "--payloads", "--keep-versions", "0")
    assert "2 more in the archive" in out
    assert scene.rows("SELECT num_rows, num_bytes FROM trinity.archive") == [(4, 400)]


def test_a_payload_is_in_one_place_or_pruned(scene: Scene, trained: list[int]) -> None:
    for change in ("pruned_at = now()", "data = NULL", "data = NULL, archive_row = 1, pruned_at = now()"):
        with pytest.raises(psycopg.errors.CheckViolation), scene.database.transaction() as tx:
            tx.execute(f"UPDATE trinity.payload SET {change}".encode())


def test_a_login_that_does_not_own_the_tables_may_not_prune(
    scene: Scene, trained: list[int], prune: Run
) -> None:
    url = scene.database.url
    with closing(connect(url, autocommit=True)) as session:
        session.execute("CREATE ROLE no_pruner LOGIN")
        try:
            session.execute("GRANT USAGE ON SCHEMA trinity TO no_pruner")
            session.execute("GRANT SELECT ON ALL TABLES IN SCHEMA trinity TO no_pruner")
            code, _ = prune("run", "--keep-versions", "0", url=by_login(url, "no_pruner"))
            assert prune("run", "--keep-versions", "0", "--dry-run", url=by_login(url, "no_pruner"))[0] == 0
        finally:
            session.execute("DROP OWNED BY no_pruner")
            session.execute("DROP ROLE no_pruner")
    assert "may not prune" in code
    assert "only the owner of the tables may" in code


def test_a_run_that_goes_back_meanwhile_waits_for_a_prune_and_is_refused(
    scene: Scene, trained: list[int]
) -> None:
    def go_back() -> int:
        with scene.database.transaction() as tx:
            return batches.reopen(tx, scene.run.id, scene.trainer, 0)

    with closing(Database(scene.database.url)) as second, second.transaction() as tx:
        tx.execute(query("hold_oldest_checkpoint"), {"run_id": scene.run.id})
        tx.execute(query("prune_payloads"), {"ids": scene.values(ROWS, trained[:1])})
        going = in_a_thread(scene.database, go_back)
        wait_until_blocked(scene.database, going)
    with pytest.raises(TrinityError, match="were pruned"):
        going.result(WAIT_SECONDS)


@pytest.mark.parametrize("age", ["30", "-1d", "99999999d", "d", "1.5d"])
def test_an_age_that_is_none_is_refused(prune: Run, age: str) -> None:
    assert prune("run", f"--older-than={age}")[0] == 2
    assert prune("run")[0] == 2
