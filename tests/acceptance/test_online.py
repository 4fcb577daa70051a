"""Online runs by the installed command: which roles overlap, and what the store says of it afterwards."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.acceptance.command import Ended, Process, Store, new_store, reversals
from tests.support.imported_modules import ImportedModules

GROUP_SIZE, BATCH_SIZE = 4, 4
ONLINE: dict[str, Any] = {
    "taskset": "reverse",
    "algorithm": "grpo",
    "explorer": {"group_size": GROUP_SIZE, "concurrency": 4 * GROUP_SIZE, "max_new_tokens": 4},
    "processors": {"score": ["position_match", {"name": "exact_match", "weight": 0.5}]},
}


class Finished(NamedTuple):
    """A run that is over."""

    run: str
    steps: int


PACKAGES = {"explore": "explorer", "process": "processors", "train": "trainer"}
"""The package of each role."""
SETTINGS = {
    *("explorer", "explorer.config", "explorer.engines", "explorer.engines.settings"),
    *("processors", "processors.config", "processors.lists", "processors.lists.limits"),
    *("trainer", "trainer.config", "ray.config", "insight.sinks.config"),
}
"""Modules with settings, which every role reads. Those of algorithms are in trainer.recipes."""

ASYNC, SYNC = Finished("async", 12), Finished("sync", 4)

# A rollout and a batch at the same time, of the run %(run)s.
OVERLAPS = """
SELECT count(*) FROM rollout o JOIN run r ON r.id = o.run_id JOIN batch b ON b.run_id = r.id
WHERE r.name = %(run)s AND o.started_at < b.committed_at AND b.created_at < o.finished_at
"""
METRICS = """
SELECT m.role::text AS role, m.name, m.step, m.value FROM metric m JOIN run r ON r.id = m.run_id
WHERE r.name = %(run)s ORDER BY m.id
"""
STALENESS = """
SELECT i.staleness, count(*) FROM batch_item i JOIN batch b ON b.id = i.batch_id JOIN run r ON r.id = b.run_id
WHERE r.name = %(run)s GROUP BY i.staleness ORDER BY i.staleness
"""


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("online")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


def shown(store: Store) -> dict[str, str]:
    """Where metrics are shown."""
    return {"tensorboard": str(store.folder / "tensorboard")}


@pytest.fixture(scope="module")
def imported(store: Store) -> ImportedModules:
    return ImportedModules(store.folder / "imported")


@pytest.fixture(scope="module")
def asynchronous(store: Store, imported: ImportedModules) -> Ended:
    """A supervised run that allows one version of staleness."""
    trainer = {"steps": ASYNC.steps, "batch_size": BATCH_SIZE, "learning_rate": 1e-3}
    config = store.config(ASYNC.run, max_staleness=1, trainer=trainer, metrics=shown(store), **ONLINE)
    return store.run("run", config, PYTHONPATH=str(imported.folder))


@pytest.fixture(scope="module")
def synchronous(store: Store) -> list[Ended]:
    """A run that allows none, by three commands: first who consumes, and the explorer last."""
    trainer = {"steps": SYNC.steps, "batch_size": BATCH_SIZE, "learning_rate": 1e-3}
    config = store.config(SYNC.run, max_staleness=0, trainer=trainer, metrics=shown(store), **ONLINE)
    consumers: list[Process] = [store.start("train", config), store.start("process", config)]
    store.wait_for(
        "SELECT count(*) = 2 FROM worker w JOIN run r ON r.id = w.run_id WHERE r.name = %(run)s",
        *consumers,
        run=SYNC.run,
    )
    return [process.wait() for process in [*consumers, store.start("explore", config)]]


@pytest.fixture(scope="module", params=[ASYNC, SYNC], ids=["async", "sync"])
def finished(request: pytest.FixtureRequest) -> Finished:
    """Either run, when it is over."""
    finished: Finished = request.param
    request.getfixturevalue("asynchronous" if finished is ASYNC else "synchronous")
    return finished


def test_a_supervised_run_ends_well(asynchronous: Ended) -> None:
    assert asynchronous.code == 0, asynchronous.stderr
    assert "needs up to " in asynchronous.stderr, "how much disk versions and checkpoints need"
    assert asynchronous.error_lines == []


@pytest.mark.parametrize("role", PACKAGES)
@pytest.mark.usefixtures("asynchronous")
def test_a_role_imports_only_the_settings_of_other_roles(imported: ImportedModules, role: str) -> None:
    names = imported.of(role)
    assert "ray" not in names
    inner = {name.removeprefix("trinity_db.") for name in names if name.startswith("trinity_db.")}
    assert f"{PACKAGES[role]}.service" in inner
    others = tuple(package for other, package in PACKAGES.items() if other != role)
    foreign = {name for name in inner if name.startswith((*others, "insight.sinks.", "ray."))}
    assert {name for name in foreign - SETTINGS if not name.startswith("trainer.recipes")} == set()


def test_roles_started_one_by_one_end_with_their_run(synchronous: list[Ended], store: Store) -> None:
    assert [ended.code for ended in synchronous] == [0, 0, 0], [ended.stderr for ended in synchronous]
    assert store.value("SELECT state::text FROM run WHERE name = %(run)s", run=SYNC.run) == "finished"


def test_every_step_is_one_committed_batch(store: Store, finished: Finished) -> None:
    batches = store.rows(
        "SELECT step, state::text, size FROM batch_view WHERE run = %(run)s ORDER BY step", run=finished.run
    )
    assert batches == [
        {"step": step, "state": "committed", "size": BATCH_SIZE} for step in range(1, finished.steps + 1)
    ]


def test_every_batch_is_in_a_version(store: Store, finished: Finished) -> None:
    included = store.rows(
        "SELECT b.step, b.included_version, p.step AS version_step FROM batch b "
        "JOIN run r ON r.id = b.run_id LEFT JOIN policy_version p "
        "ON p.run_id = b.run_id AND p.version = b.included_version WHERE r.name = %(run)s",
        run=finished.run,
    )
    assert len(included) == finished.steps
    assert all(batch["included_version"] == batch["step"] == batch["version_step"] for batch in included)


def test_batches_hold_whole_groups(store: Store, finished: Finished) -> None:
    groups = store.rows(
        """
        SELECT i.batch_id, g.expected, count(*) AS drawn,
               (SELECT count(*) FROM experience m WHERE m.group_id = g.id) AS written,
               (SELECT count(*) FROM experience m WHERE m.group_id = g.id AND m.state = 'dropped') AS dropped
        FROM batch_item i
        JOIN experience e ON e.id = i.experience_id
        JOIN rollout_group g ON g.id = e.group_id
        JOIN run r ON r.id = e.run_id
        WHERE r.name = %(run)s
        GROUP BY i.batch_id, g.id
        """,
        run=finished.run,
    )
    assert len(groups) == finished.steps * BATCH_SIZE
    assert all(group["written"] == group["expected"] == GROUP_SIZE for group in groups)
    assert all(group["drawn"] == group["written"] - group["dropped"] for group in groups)


def test_no_experience_is_in_two_batches(store: Store, finished: Finished) -> None:
    used = store.rows(
        "SELECT e.id, e.state::text, e.use_count, count(*) AS batches FROM batch_item i "
        "JOIN batch b ON b.id = i.batch_id JOIN experience e ON e.id = i.experience_id "
        "JOIN run r ON r.id = b.run_id WHERE r.name = %(run)s GROUP BY e.id",
        run=finished.run,
    )
    assert len(used) >= 2 * BATCH_SIZE * finished.steps
    assert {(row["state"], row["use_count"], row["batches"]) for row in used} == {("trained", 1, 1)}


def test_rewards_are_the_weighted_sum_of_their_events(store: Store, finished: Finished) -> None:
    rewards = store.rows(
        """
        SELECT e.reward, sum(v.value * v.weight) AS said, count(*) AS events
        FROM experience e
        JOIN run r ON r.id = e.run_id
        JOIN reward_event v ON v.rollout_id = e.rollout_id
        WHERE r.name = %(run)s AND e.state = 'trained'
        GROUP BY e.id
        """,
        run=finished.run,
    )
    assert len(rewards) >= 2 * BATCH_SIZE * finished.steps
    assert all(row["events"] == 2 and abs(row["reward"] - row["said"]) < 1e-9 for row in rewards)


def test_group_statistics_follow_the_rewards(store: Store, finished: Finished) -> None:
    groups = store.rows(
        """
        SELECT g.reward_count = count(e.reward) AS counted,
               abs(g.reward_mean - avg(e.reward)) < 1e-9 AS averaged,
               abs(g.reward_variance - var_samp(e.reward)) < 1e-9 AS spread
        FROM rollout_group g
        JOIN experience e ON e.group_id = g.id AND e.state = 'trained'
        JOIN run r ON r.id = g.run_id
        WHERE r.name = %(run)s
        GROUP BY g.id
        """,
        run=finished.run,
    )
    assert len(groups) == finished.steps * BATCH_SIZE
    assert all(group == {"counted": True, "averaged": True, "spread": True} for group in groups)


def test_batches_keep_the_advantages_they_used(store: Store, finished: Finished) -> None:
    sums = store.rows(
        "SELECT abs(sum(i.advantage)) AS advantage FROM batch_item i "
        "JOIN experience e ON e.id = i.experience_id JOIN run r ON r.id = e.run_id "
        "WHERE r.name = %(run)s GROUP BY e.group_id",
        run=finished.run,
    )
    assert len(sums) == finished.steps * BATCH_SIZE
    assert all(group["advantage"] < 1e-6 for group in sums)


def test_the_explorer_follows_the_trainer_while_it_runs(store: Store, finished: Finished) -> None:
    by_worker = store.rows(
        "SELECT o.worker_id, count(DISTINCT o.version_min) AS versions FROM rollout o "
        "JOIN run r ON r.id = o.run_id WHERE r.name = %(run)s GROUP BY o.worker_id",
        run=finished.run,
    )
    assert len(by_worker) == 1
    assert by_worker[0]["versions"] >= 3


def test_every_worker_said_goodbye(store: Store, finished: Finished) -> None:
    workers = store.rows(
        "SELECT w.role::text AS role, w.stopped_at IS NOT NULL AS gone FROM worker w "
        "JOIN run r ON r.id = w.run_id WHERE r.name = %(run)s ORDER BY w.role",
        run=finished.run,
    )
    assert workers == [{"role": role, "gone": True} for role in ("explore", "process", "train")]


@pytest.mark.usefixtures("asynchronous")
def test_staleness_stays_within_the_limit_and_uses_it(store: Store) -> None:
    assert [row["staleness"] for row in store.rows(STALENESS, run=ASYNC.run)] == [0, 1]


@pytest.mark.usefixtures("asynchronous")
def test_exploring_and_training_overlap(store: Store) -> None:
    assert store.value(OVERLAPS, run=ASYNC.run) > 0


@pytest.mark.usefixtures("synchronous")
def test_without_staleness_every_row_is_of_the_latest_version(store: Store) -> None:
    assert [row["staleness"] for row in store.rows(STALENESS, run=SYNC.run)] == [0]


@pytest.mark.usefixtures("synchronous")
def test_without_staleness_each_step_measures_that_engine_and_trainer_compute_the_same(store: Store) -> None:
    found = [
        (row["step"], row["value"])
        for row in store.rows(METRICS, run=SYNC.run)
        if row["name"] == "sampling/engine_logp_difference/max"
    ]
    assert [step for step, _ in found] == [*range(1, SYNC.steps + 1)]
    assert max(value for _, value in found) < 1e-3


@pytest.mark.usefixtures("synchronous")
def test_without_staleness_exploring_and_training_alternate(store: Store) -> None:
    assert store.value(OVERLAPS, run=SYNC.run) == 0


@pytest.mark.usefixtures("asynchronous")
def test_status_tells_of_a_finished_run(store: Store) -> None:
    ended = store.run("status", ASYNC.run, "--json")
    assert ended.code == 0, ended.stderr
    status = json.loads(ended.stdout)
    assert (status["run"], status["state"], status["step"]) == (ASYNC.run, "finished", ASYNC.steps)
    assert status["policy_version"] == ASYNC.steps
    assert status["workers"] == []
    assert status["experiences"]["trained"] == store.value(
        "SELECT count(*) FROM experience e JOIN run r ON r.id = e.run_id "
        "WHERE r.name = %(run)s AND e.state = 'trained'",
        run=ASYNC.run,
    )
    assert status["staleness"]["max"] == 1


@pytest.mark.usefixtures("asynchronous")
def test_show_tells_all_of_a_trained_row(store: Store) -> None:
    row = store.rows(
        "SELECT v.*, i.advantage FROM experience_view v JOIN batch_item i ON i.experience_id = v.id "
        "WHERE v.run = %(run)s ORDER BY v.id LIMIT 1",
        run=ASYNC.run,
    )[0]
    ended = store.run("show", str(row["id"]), "--json")
    assert ended.code == 0, ended.stderr
    shown = json.loads(ended.stdout)
    assert (shown["prompt"], shown["response"]) == (row["prompt"], row["response"])
    assert {event["name"] for event in shown["rewards"]} == {"position_match", "exact_match"}
    assert [step["processor"] for step in shown["processing"]] == ["clean", "score"]
    assert [batch["advantage"] for batch in shown["batches"]] == [row["advantage"]]
    tokens = shown["tokens"]
    assert sum(tokens["action_mask"]) == len(tokens["logprobs"]) == row["response_length"]
    assert set(tokens["versions"]) == {row["version_min"]}


def test_tensorboard_has_what_the_table_has(store: Store, finished: Finished) -> None:
    folder = store.folder / "tensorboard" / finished.run
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    expected: dict[str, list[tuple[int, Any]]] = {}
    for row in store.rows(METRICS, run=finished.run):
        name = row["name"] if row["name"].startswith(row["role"]) else f"{row['role']}/{row['name']}"
        name = "train/clip_ratio/region_mean" if name == "train/clip_ratio" else name
        expected.setdefault(name, []).append((row["step"], pytest.approx(row["value"], rel=1e-6)))
    if finished is SYNC:  # by its own command; what others measure after its end is not shown
        found = {name: points for name, points in found.items() if name.startswith("train/")}
        expected = {name: points for name, points in expected.items() if name.startswith("train/")}
    assert len(expected["train/loss"]) == finished.steps
    assert found == expected
