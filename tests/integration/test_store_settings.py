"""Another configuration for a run that exists: what may change when, and what says so afterwards."""

from typing import Any

import psycopg
import pytest

from tests.support.rows import (
    Scene,
    at_once,
    demonstration,
    import_records,
    in_a_thread,
    rollout,
    wait_until_blocked,
)
from trinity_db.errors import ConfigError, LeaseLost
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.run.changes import change
from trinity_db.run.configuration import RunConfig
from trinity_db.schema.states import WorkerRole
from trinity_db.store import adoption, replay, runs, workers
from trinity_db.worker.service import LEASE_SECONDS

SETTINGS = "SELECT config FROM trinity.run_setting WHERE run_id = %s ORDER BY id"
CHANGES = """
SELECT since_step, key, before, after, changed_by = session_user, host IS NOT NULL
FROM trinity.setting_view WHERE run = %s ORDER BY setting_id, key
"""


def online(**changes: Any) -> RunConfig:
    trainer = {"steps": 3, "batch_size": 2} | changes.pop("trainer", {})
    content = {"name": "live", "model": {"path": "model"}, "taskset": "tasks", "algorithm": "grpo"}
    return RunConfig.model_validate(content | {"trainer": trainer} | changes)


def offline(**changes: Any) -> RunConfig:
    content = {"name": "imitation", "model": {"path": "model"}, "data": ["set"], "algorithm": "sft"}
    return RunConfig.model_validate(content | changes)


def join(tx: Transaction, config: RunConfig, asked_for: bool = False) -> runs.Run:
    return runs.open_run(
        tx,
        config.name,
        config.stored(),
        config.algorithm.draws,
        adoption.Sources(config.data, config.holdout),
        RunConfig.completed,
        lambda tx, run, differences: change(tx, run, config, differences, asked_for=asked_for),
    )


def joined(database: Database, config: RunConfig, asked_for: bool = False) -> runs.Run:
    with database.transaction() as tx:
        return join(tx, config, asked_for)


@pytest.fixture
def live(scene: Scene) -> Scene:
    """An online run at version 0, with one worker of each role."""
    run = joined(scene.database, online())
    with scene.database.transaction() as tx:
        roles = [workers.register(tx, run, role) for role in WorkerRole]
    live = Scene(scene.database, run, scene.selection, *roles)
    live.publish(0, step=0)
    return live


def go(scene: Scene) -> None:
    """All workers say goodbye."""
    with scene.database.transaction() as tx:
        for worker in (scene.explorer, scene.processor, scene.trainer):
            workers.stop(tx, worker)


def trained(scene: Scene, step: int = 1) -> None:
    """One step of two groups."""
    scene.explore(2)
    scene.process()
    scene.train(step, 2)


def test_a_change_is_a_dated_row_and_names_what_was_changed(live: Scene) -> None:
    trained(live)
    go(live)
    changed = joined(live.database, online(trainer={"learning_rate": 1e-4, "steps": 9}), asked_for=True)
    assert changed.id == live.run.id
    assert changed.setting_id != live.run.setting_id
    assert [config["trainer"]["steps"] for config in live.values(SETTINGS, live.run.id)] == [3, 9]
    assert live.rows(CHANGES, "live") == [
        (None, "trainer.learning_rate", 1e-5, 1e-4, True, True),
        (None, "trainer.steps", 3, 9, True, True),
    ]


def test_each_batch_names_the_setting_it_was_drawn_under(live: Scene) -> None:
    trained(live)
    go(live)
    changed = joined(live.database, online(max_staleness=4), asked_for=True)
    with live.database.transaction() as tx:
        roles = [workers.register(tx, changed, role) for role in WorkerRole]
    later = Scene(live.database, changed, live.selection, *roles)
    trained(later, step=2)
    named = live.rows("SELECT step, setting_id FROM trinity.batch_view WHERE run = 'live' ORDER BY step")
    assert named == [(1, live.run.setting_id), (2, changed.setting_id)]
    assert live.rows(CHANGES, "live") == [(2, "max_staleness", 1, 4, True, True)]
    with live.database.transaction() as tx:
        ids = live.values("SELECT id FROM trinity.batch ORDER BY step")
        assert [replay.find(tx, id).setting for id in ids] == [setting for _, setting in named]


def test_a_change_without_the_flag_is_refused_and_the_flag_is_named(live: Scene) -> None:
    trained(live)
    go(live)
    with pytest.raises(
        ConfigError, match=r"trainer\.steps was 3, is 9\)\. trainer\.steps may change .*--change"
    ):
        joined(live.database, online(trainer={"steps": 9}))
    assert len(live.values(SETTINGS, live.run.id)) == 1


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("seed", {"seed": 1}),
        ("model.path", {"model": {"path": "another"}}),
        ("algorithm.loss.clip_high", {"algorithm": {"name": "grpo", "clip_high": 0.3}}),
        ("explorer.temperature", {"explorer": {"temperature": 0.5}}),
        ("trainer.lora", {"trainer": {"lora": {}}}),
        ("processors.score", {"processors": {"score": ["exact_match", {"name": "teacher", "path": "t"}]}}),
    ],
)
def test_a_key_that_rows_depend_on_may_not_change_and_the_error_says_why(
    live: Scene, key: str, changes: dict[str, Any]
) -> None:
    trained(live)
    go(live)
    with pytest.raises(ConfigError, match=rf"{key}\S* may not change: \w+ .*--set name="):
        joined(live.database, online(max_staleness=3, **changes), asked_for=True)
    assert len(live.values(SETTINGS, live.run.id)) == 1


def test_the_error_says_how_a_run_goes_on_that_began_before_a_default_changed(live: Scene) -> None:
    """As trainer.dtype, which was float32."""
    trained(live)
    go(live)
    with pytest.raises(
        ConfigError, match=r"values: --set trainer\.dtype=auto\. For a new run, .* --set name="
    ):
        joined(live.database, online(trainer={"dtype": "float32"}), asked_for=True)
    with pytest.raises(ConfigError, match=r"trainer\.lora\S* may not change: [^.]*\. For a new run,"):
        joined(live.database, online(trainer={"dtype": "auto", "lora": {}}), asked_for=True)


def test_nothing_changes_while_workers_are_alive(live: Scene) -> None:
    trained(live)
    with pytest.raises(
        ConfigError, match=r"alive \(explore on \S+, pid \d+; .*\): trinity-db stop \S+, then"
    ):
        joined(live.database, online(max_staleness=3), asked_for=True)


def test_a_worker_that_is_silent_is_taken_for_gone_and_hears_it(live: Scene) -> None:
    trained(live)
    with live.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET heartbeat_at = now() - interval '1 min'")
    joined(live.database, online(max_staleness=3), asked_for=True)
    for worker in (live.explorer, live.processor, live.trainer):
        with pytest.raises(LeaseLost), live.database.transaction() as tx:
            workers.beat(tx, worker, LEASE_SECONDS)


def test_a_process_that_read_the_run_before_the_change_does_not_serve_it(live: Scene) -> None:
    trained(live)
    go(live)
    joined(live.database, online(max_staleness=3), asked_for=True)
    with pytest.raises(ConfigError, match="changed meanwhile"), live.database.transaction() as tx:
        workers.register(tx, live.run, WorkerRole.PROCESS)


def test_a_process_that_enters_during_the_change_waits_and_does_not_serve_it(live: Scene) -> None:
    trained(live)
    go(live)

    def enter() -> None:
        with live.database.transaction() as tx:
            workers.register(tx, live.run, WorkerRole.PROCESS)

    with live.database.transaction() as tx:
        join(tx, online(max_staleness=3), asked_for=True)
        entering = in_a_thread(live.database, enter)
        wait_until_blocked(live.database, entering)
    with pytest.raises(ConfigError, match="changed meanwhile"):
        entering.result()


def test_of_two_changes_at_once_one_is_made(live: Scene) -> None:
    trained(live)
    go(live)

    def change(tx: Transaction) -> str:
        try:
            join(tx, online(max_staleness=3), asked_for=True)
        except ConfigError as error:
            return str(error)
        return "joined"

    assert all(
        said == "joined" or "changed meanwhile" in said for said in at_once(live.database, [change] * 3)
    )
    assert len(live.values(SETTINGS, live.run.id)) == 2


def test_more_steps_prolong_a_finished_run_and_another_rate_does_not(live: Scene) -> None:
    trained(live)
    with live.database.transaction() as tx:
        runs.finish(tx, live.run.id)
    go(live)
    assert joined(live.database, online(trainer={"learning_rate": 1e-3}), asked_for=True).state == "finished"
    more = online(trainer={"learning_rate": 1e-3, "steps": 9})
    assert joined(live.database, more, asked_for=True).state == "active"


def test_before_the_first_step_what_only_steps_depend_on_may_change_unasked(live: Scene) -> None:
    live.explore(1)
    go(live)
    changed = joined(live.database, online(trainer={"lora": {"targets": ["q_proj"]}, "steps": 4}))
    assert live.value("SELECT count(*) FROM trinity.rollout") == 2
    assert changed.config["trainer"]["lora"]["targets"] == ["q_proj"]
    with pytest.raises(ConfigError, match="seed may not change"):
        joined(live.database, online(seed=1))


def test_a_run_without_rows_begins_again_with_any_configuration(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(20)])
    first = joined(scene.database, offline())
    scene.beside("imitation", first.config)  # workers of its own
    stale = Scene(scene.database, first, scene.selection, 0, 0, 0)
    stale.publish(0, step=0)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET stopped_at = now()")
    second = joined(scene.database, offline(seed=5, holdout=0.5, algorithm="dpo"))
    assert (second.id, second.created_at, second.seed) == (first.id, first.created_at, 5)
    assert scene.value("SELECT count(*) FROM trinity.policy_version WHERE run_id = %s", first.id) == 0
    own = "SELECT count(*), count(*) FILTER (WHERE held_out), bool_and(coalesce(seed = 5, held_out)) "
    [(count, held_out, seeds)] = scene.rows(own + "FROM trinity.experience WHERE run_id = %s", first.id)
    assert (count, seeds) == (20, True)
    assert 0 < held_out < 20
    assert len(scene.values(SETTINGS, first.id)) == 2


def test_failed_attempts_do_not_use_up_a_name_and_a_response_does(live: Scene) -> None:
    [group] = live.claim(1)
    live.write([rollout(group, 0, error="the prompt does not fit")])
    go(live)
    again = joined(live.database, online(model={"path": "another"}))
    assert live.value("SELECT count(*) FROM trinity.rollout") == 0
    with live.database.transaction() as tx:
        roles = [workers.register(tx, again, role) for role in WorkerRole]
    second = Scene(live.database, again, live.selection, *roles)
    second.publish(0, step=0)
    second.explore(1)
    go(second)
    with pytest.raises(ConfigError, match=r"model\.path may not change"):
        joined(live.database, online())
    assert live.value("SELECT count(*) FROM trinity.rollout") == 2


def test_a_reward_of_a_row_uses_up_a_name(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(0)])
    first = joined(scene.database, offline())
    with scene.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.reward_event (run_id, experience_id, source, name, value)"
            " SELECT run_id, id, 'human', 'human', 1 FROM trinity.experience WHERE run_id = %s",
            [first.id],
        )
    with pytest.raises(ConfigError, match="seed may not change"):
        joined(scene.database, offline(seed=1))


def test_workers_and_batches_cannot_name_the_setting_of_another_run(live: Scene) -> None:
    other = live.value("SELECT id FROM trinity.run_setting WHERE run_id <> %s", live.run.id)
    with pytest.raises(psycopg.errors.ForeignKeyViolation), live.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET setting_id = %s WHERE run_id = %s", [other, live.run.id])
