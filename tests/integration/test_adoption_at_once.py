"""What other sessions do while a run adopts rows: they judge them, prune them, change the run's settings."""

import os
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from tests.support.postgres import by_login, execute
from tests.support.rows import (
    WAIT_SECONDS,
    Scene,
    import_records,
    in_a_thread,
    preference,
    reward,
    wait_until_blocked,
)
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.postgres.connection import Database, Transaction, connect
from trinity_db.postgres.logins import make_login, open_to_roles
from trinity_db.schema.queries import query
from trinity_db.schema.states import Draws
from trinity_db.store import adoption, pruning, rewards, runs, settings

PRUNED = "SELECT count(*) FROM trinity.payload WHERE pruned_at IS NOT NULL"


def begin(scene: Scene, draws: Draws, data: str = "run") -> runs.Run:
    """A run that names another as data, and has adopted nothing yet."""
    with scene.database.transaction() as tx:
        return runs.open_run(
            tx, "learner", {"data": [data]}, draws, adoption.Sources([data], as_groups=draws == "groups")
        )


def adopt(database: Database, run: runs.Run, data: str = "run", as_groups: bool = False) -> int:
    """All that is left to adopt; how many rows."""
    hold = partial(runs.hold_adopter, run=run)
    return adoption.adopt_runs(database, run.id, hold, adoption.Sources([data], as_groups=as_groups))


def copy(tx: Transaction, run: runs.Run, source: runs.Run, what: str) -> None:
    """A slice of an adoption, within a transaction of the caller's."""
    values = {"run_id": run.id, "source_run_id": source.id, "holdout": 0.0, "after": 0, "limit": 9}
    ids = [row["id"] for row in tx.execute(query(f"{what}_to_adopt"), values)]
    tx.execute(query(f"adopt_{what}"), values | {"ids": ids})


def prune(scene: Scene) -> int:
    with scene.database.transaction() as tx:
        allowed = pruning.limits(tx, scene.run, timedelta(0), None)
    return pruning.prune(scene.database, scene.run, pruning.PAYLOADS, allowed, dry_run=False).rows


@pytest.fixture
def done(scene: Scene) -> Scene:
    """A run with two groups whose arrays no later step reads."""
    scene.make_ready(2)
    scene.train(step=1, size=2)
    scene.publish(1, step=1)
    return scene


@pytest.mark.parametrize("what", ["rows", "groups"])
def test_a_prune_waits_for_an_adoption_and_leaves_its_rows(done: Scene, what: Draws) -> None:
    run = begin(done, what)
    with done.database.transaction() as tx:
        copy(tx, run, done.run, what)
        pruning_meanwhile = in_a_thread(done.database, lambda: prune(done))
        wait_until_blocked(done.database, pruning_meanwhile)
    assert pruning_meanwhile.result(WAIT_SECONDS) == 0
    assert done.value(PRUNED) == 0
    assert done.value("SELECT count(*) FROM trinity.experience WHERE run_id = %s", run.id) == 4


@pytest.mark.parametrize("what", ["rows", "groups"])
def test_an_adoption_waits_for_a_prune_and_leaves_what_is_pruned(done: Scene, what: Draws) -> None:
    run = begin(done, what)
    [first, _] = done.values(
        "SELECT id FROM trinity.rollout_group WHERE run_id = %s ORDER BY id", done.run.id
    )
    ids = done.values("SELECT id FROM trinity.experience WHERE group_id = %s", first)
    with done.database.transaction() as tx:
        tx.execute(query("hold_groups_of"), {"ids": ids})
        adopting = in_a_thread(done.database, lambda: adopt(done.database, run, as_groups=what == "groups"))
        wait_until_blocked(done.database, adopting)
        tx.execute(query("prune_payloads"), {"ids": ids})
    assert adopting.result(WAIT_SECONDS) == 2
    origins = (
        "SELECT DISTINCT o.group_id FROM trinity.experience e JOIN trinity.experience o ON o.id = e.source_id"
        " WHERE e.run_id = %s"
    )
    assert done.value(origins, run.id) > first


def test_a_reward_that_waits_for_the_copy_of_its_group_reaches_its_statistics(scene: Scene) -> None:
    [group] = scene.make_ready(1, rewards=(1.0, 0.0))
    second = scene.value("SELECT max(id) FROM trinity.rollout WHERE group_id = %s", group)
    run = begin(scene, "groups")

    def judge() -> None:
        with scene.database.transaction() as tx:
            rewards.record(tx, scene.run.id, "human", [reward(second, 3.0)])

    with scene.database.transaction() as tx:
        copy(tx, run, scene.run, "groups")
        judging = in_a_thread(scene.database, judge)
        wait_until_blocked(scene.database, judging)
    judging.result(WAIT_SECONDS)
    statistics = "SELECT run_id, reward_mean, reward_variance FROM trinity.rollout_group ORDER BY id"
    assert scene.rows(statistics) == [(scene.run.id, 2.0, 2.0), (run.id, 2.0, 2.0)]


def begin_again(tx: Transaction, run: runs.Run, data: str) -> None:
    settings.hold(tx, run, lease_seconds=30)
    settings.begin_again(tx, run, {"data": [data]}, "rows")


def test_a_role_adopts_nothing_more_once_the_run_names_other_data(scene: Scene) -> None:
    scene.make_ready(2)
    other = scene.beside("other")
    other.publish(0, 0)
    other.make_ready(1)
    first = begin(scene, "rows")
    with scene.database.transaction() as tx:
        begin_again(tx, first, "other")
    assert adopt(scene.database, begin(scene, "rows", "other"), "other") == 2
    with pytest.raises(ConfigError, match="settings of run 'learner' were changed meanwhile: start again"):
        adopt(scene.database, first)
    sources = (
        "SELECT DISTINCT o.run_id FROM trinity.experience e JOIN trinity.experience o ON o.id = e.source_id"
        " WHERE e.run_id = %s"
    )
    assert scene.values(sources, first.id) == [other.run.id]


def test_a_run_that_begins_again_waits_for_an_adoption_and_takes_its_rows_away(scene: Scene) -> None:
    scene.make_ready(2)
    run = begin(scene, "rows")

    def change() -> None:
        with scene.database.transaction() as tx:
            begin_again(tx, run, "nothing")

    with scene.database.transaction() as tx:
        runs.hold_adopter(tx, run)
        copy(tx, run, scene.run, "rows")
        changing = in_a_thread(scene.database, change)
        wait_until_blocked(scene.database, changing)
    changing.result(WAIT_SECONDS)
    assert scene.value("SELECT count(*) FROM trinity.experience WHERE run_id = %s", run.id) == 0


def test_a_login_of_a_trainer_lets_labels_follow_from_pairs_and_sets_no_rewards(scene: Scene) -> None:
    login, url = f"unpairs_{os.getpid()}", scene.database.url
    with closing(connect(url)) as owner:
        open_to_roles(owner)
        make_login(owner, login, "trinity_trainer")
    import_records(scene.database, "pairs", [preference(0), preference(1)])
    try:
        with closing(Database(by_login(url, login))) as bound:
            run = begin(replace(scene, database=bound), "labels", "pairs")
            with pytest.raises(TrinityError, match="permission denied"), bound.transaction() as tx:
                tx.execute("UPDATE trinity.experience SET reward = 1")
    finally:
        execute(url, "DROP ROLE {}", login)
    labels = "SELECT reward FROM trinity.experience WHERE run_id = %s ORDER BY reward"
    assert scene.values(labels, run.id) == [0.0, 0.0, 1.0, 1.0]
    may = "SELECT has_function_privilege('trinity_reader', 'trinity.follow_labels(bigint[])', 'EXECUTE')"
    assert scene.value(may) is False


def test_a_login_of_a_trainer_adopts_groups_and_makes_none_of_its_own(scene: Scene) -> None:
    login, url = f"adopter_{os.getpid()}", scene.database.url
    with closing(connect(url)) as owner:
        open_to_roles(owner)
        make_login(owner, login, "trinity_trainer")
    [group] = scene.make_ready(1, rewards=(1.0, 0.0, 0.5))
    with scene.database.transaction() as tx:
        last = "(SELECT max(id) FROM trinity.experience)"
        tx.execute(f"UPDATE trinity.experience SET state = 'dropped' WHERE id = {last}")
    made = (
        "INSERT INTO trinity.rollout_group (run_id, source_id, task_id, state, expected)"
        " SELECT g.run_id, {}, g.task_id, 'ready', 1 FROM trinity.rollout_group g WHERE g.id = %s"
    )
    try:
        with closing(Database(by_login(url, login))) as bound:
            run = begin(replace(scene, database=bound), "groups")
            assert adopt(bound, run, as_groups=True) == 2
            with scene.database.transaction() as tx:
                tx.execute("UPDATE trinity.experience SET state = 'ready' WHERE state = 'dropped'")
            assert adopt(bound, run, as_groups=True) == 1
            for source in ("NULL", "g.id"):
                with pytest.raises(TrinityError, match="row-level security"), bound.transaction() as tx:
                    tx.execute(made.format(source).encode(), [group])
    finally:
        execute(url, "DROP ROLE {}", login)
    assert scene.values("SELECT source_id FROM trinity.rollout_group WHERE run_id = %s", run.id) == [group]
