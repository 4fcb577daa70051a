"""Runs: the first role opens one, it finishes once, and roles that wait on it hear so."""

from contextlib import closing

import pytest

from tests.support.rows import WAIT_SECONDS, Scene, at_once, demonstration, import_records
from trinity_db.errors import ConfigError, NotFound
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.states import RunKind, RunState, WorkerRole
from trinity_db.store import adoption, runs
from trinity_db.store.metrics import record_metrics


def open_run(scene: Scene, name: str, config: dict[str, object], *data: str) -> runs.Run:
    with scene.database.transaction() as tx:
        return runs.open_run(tx, name, config, "rows", adoption.Sources(data))


def test_a_role_that_comes_later_joins_the_run(scene: Scene) -> None:
    config = {"seed": 1, "trainer": {"steps": 3, "rate": 1e-05, "path": None}}
    first = open_run(scene, "new", config)
    assert open_run(scene, "new", config) == first
    assert (first.name, first.kind, first.state, first.config) == (
        "new",
        RunKind.TRAIN,
        RunState.ACTIVE,
        config,
    )


def test_a_name_in_use_with_another_configuration_is_refused_with_the_difference(scene: Scene) -> None:
    open_run(scene, "new", {"seed": 1, "trainer": {"steps": 3}})
    with pytest.raises(ConfigError, match=r"'new' is in use .*trainer\.steps was 3, is 4.*--set name="):
        open_run(scene, "new", {"seed": 1, "trainer": {"steps": 4}})


def test_a_run_that_was_stored_before_a_key_was_known_is_joined(scene: Scene) -> None:
    first = open_run(scene, "new", {"seed": 1})
    now = {"seed": 1, "workflow": "single_turn"}
    with scene.database.transaction() as tx:
        joined = runs.open_run(
            tx, "new", now, "groups", adoption.Sources(), lambda stored: {"workflow": "single_turn", **stored}
        )
    assert joined.id == first.id


def test_roles_that_come_at_the_same_moment_open_one_run_and_adopt_its_rows_once(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(50)])

    def open_it(tx: Transaction) -> int:
        return runs.open_run(tx, "new", {"seed": 1}, "rows", adoption.Sources(["set"], 0.1)).id

    assert len(set(at_once(scene.database, [open_it] * 3))) == 1
    assert scene.value("SELECT count(*) FROM trinity.experience") == 100


def test_a_data_set_is_no_run_to_train(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(0)])
    with pytest.raises(ConfigError, match="'set' is the name of an imported data set"):
        open_run(scene, "set", {})


def test_a_data_set_that_does_not_exist_is_named_with_the_nearest_that_does(scene: Scene) -> None:
    import_records(scene.database, "gsm8k-train", [demonstration(0)])
    with pytest.raises(NotFound, match="no data set or run 'gsm8k-trian'; did you mean 'gsm8k-train'"):
        open_run(scene, "new", {}, "gsm8k-trian")
    assert scene.values("SELECT name FROM trinity.run ORDER BY id") == ["run", "gsm8k-train"]


def test_a_taskset_without_tasks_is_not_found(scene: Scene) -> None:
    with scene.database.transaction() as tx:
        tx.execute("INSERT INTO trinity.taskset (name) VALUES ('empty')")
        for name in ("empty", "missing"):
            with pytest.raises(NotFound, match=f"no taskset '{name}' with tasks; run: trinity-db import"):
                runs.find_taskset(tx, name)


def test_a_run_is_finished_once(scene: Scene) -> None:
    def finish() -> object:
        with scene.database.transaction() as tx:
            runs.finish(tx, scene.run.id)
            assert runs.is_finished(tx, scene.run.id)
        return scene.value("SELECT finished_at FROM trinity.run WHERE id = %s", scene.run.id)

    with scene.database.transaction() as tx:
        assert not runs.is_finished(tx, scene.run.id)
    assert finish() == finish()


def test_a_run_that_is_gone_is_not_finished(scene: Scene) -> None:
    with scene.database.transaction() as tx, pytest.raises(NotFound, match=r"has lost run 0.*from scratch"):
        runs.is_finished(tx, run_id=0)


def test_news_wakes_those_who_wait_once_a_transaction(scene: Scene) -> None:
    other = Scene.open(scene.database, "other")
    with closing(scene.database.listen(runs.channel(scene.run.id))) as listener:
        with scene.database.transaction() as tx:
            runs.announce(tx, other.run.id)
            runs.announce(tx, scene.run.id)
            runs.announce(tx, scene.run.id)
        with scene.database.transaction() as tx:
            runs.announce(tx, scene.run.id)
        heard = list(listener.notifies(timeout=WAIT_SECONDS, stop_after=2))
    assert [notify.channel for notify in heard] == [runs.channel(scene.run.id)] * 2


def test_metrics_are_kept_by_step(scene: Scene) -> None:
    with scene.database.transaction() as tx:
        record_metrics(tx, scene.run.id, WorkerRole.TRAIN, 3, {"loss": 0.5, "grad_norm": 2})
    assert scene.rows("SELECT role, step, name, value FROM trinity.metric ORDER BY id") == [
        ("train", 3, "loss", 0.5),
        ("train", 3, "grad_norm", 2.0),
    ]
