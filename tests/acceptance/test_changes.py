"""Runs whose configuration is changed, by the installed command: what the steps that follow are made with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals

ONLINE: dict[str, Any] = {
    "taskset": "reverse",
    "algorithm": "grpo",
    "explorer": {"group_size": 4, "concurrency": 16, "max_new_tokens": 4},
    "processors": {"score": ["position_match"]},
    "trainer": {"steps": 3, "batch_size": 2, "learning_rate": 1e-3},
}
MORE = ("--set", "trainer.steps=6", "--set", "trainer.learning_rate=1e-4", "--set", "trainer.schedule=linear")
REWARDS = "--set", "processors.score=[{name: exact_match, weight: 2}]"
RATES = """
SELECT m.step, m.value FROM metric m JOIN run r ON r.id = m.run_id
WHERE r.name = %(run)s AND m.name = 'learning_rate' ORDER BY m.step
"""


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("changes")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        demonstrations = [{"prompt": t["prompt"], "completion": t["answer"]} for t in reversals(1)]
        store.import_rows("answers", "demonstrations", demonstrations)
        yield store


@pytest.fixture(scope="module")
def config(store: Store) -> Path:
    """The configuration of a run that has finished three steps."""
    config = store.config("live", **ONLINE)
    ended = store.run("run", config)
    assert ended.code == 0, ended.stderr
    return config


@pytest.fixture(scope="module")
def refused(store: Store, config: Path) -> Ended:
    """Another configuration without the flag."""
    return store.run("run", config, *MORE)


@pytest.fixture(scope="module")
def prolonged(store: Store, config: Path, refused: Ended) -> Ended:
    """The same with the flag."""
    return store.run("run", config, *MORE, *REWARDS, "--change")


def test_another_configuration_is_refused_without_the_flag(refused: Ended) -> None:
    assert refused.code == 1
    (line,) = refused.error_lines
    assert (
        "trainer.learning_rate, trainer.schedule, trainer.steps may change for later steps, with --change"
        in line
    )
    assert "To continue with the run's values" not in line  # no key has to go back


def test_a_finished_run_goes_on_with_the_new_rate_over_the_new_number_of_steps(
    store: Store, prolonged: Ended
) -> None:
    assert prolonged.code == 0, prolonged.stderr
    rates = {row["step"]: row["value"] for row in store.rows(RATES, run="live")}
    falling = {step: 1e-4 * (1 - (step - 1) / 6) for step in (4, 5, 6)}
    assert rates == pytest.approx({1: 1e-3, 2: 1e-3, 3: 1e-3} | falling)
    assert store.value("SELECT state::text FROM run WHERE name = 'live'") == "finished"


def test_each_step_says_what_applied_and_what_was_changed_before_it(store: Store, prolonged: Ended) -> None:
    steps = store.rows(
        """
        SELECT b.step, s.config #>> '{trainer,schedule}' AS schedule
        FROM batch b JOIN run_setting s ON s.id = b.setting_id JOIN run r ON r.id = b.run_id
        WHERE r.name = 'live' AND b.state = 'committed' ORDER BY b.step
        """
    )
    assert [row["schedule"] for row in steps] == ["constant"] * 3 + ["linear"] * 3
    changes = store.rows("SELECT since_step, key FROM setting_view WHERE run = 'live' ORDER BY key")
    assert [(change["since_step"], change["key"]) for change in changes] == [
        (4, "processors.score"),
        (4, "trainer.learning_rate"),
        (4, "trainer.schedule"),
        (4, "trainer.steps"),
    ]


def test_another_reward_function_scores_the_rows_that_follow(store: Store, prolonged: Ended) -> None:
    # Groups that were explored ahead of the third step are trained in the fourth and fifth.
    scored = store.rows(
        """
        SELECT DISTINCT b.step = 6 AS is_last, v.name, v.weight
        FROM batch b JOIN batch_item i ON i.batch_id = b.id JOIN experience e ON e.id = i.experience_id
        JOIN reward_event v ON v.rollout_id = e.rollout_id JOIN run r ON r.id = b.run_id
        WHERE r.name = 'live' AND b.state = 'committed' AND b.step NOT IN (4, 5)
        ORDER BY is_last
        """
    )
    assert scored == [
        {"is_last": False, "name": "position_match", "weight": 1.0},
        {"is_last": True, "name": "exact_match", "weight": 2.0},
    ]


def test_draws_of_both_settings_can_be_run_again(store: Store, prolonged: Ended) -> None:
    for row in store.rows("SELECT id FROM batch WHERE state = 'committed' ORDER BY id"):
        ended = store.run("replay", str(row["id"]), "--check")
        assert ended.code == 0, ended.stderr


def test_fewer_steps_end_a_run_and_make_none(store: Store, config: Path, prolonged: Ended) -> None:
    ended = store.run("run", config, *MORE, *REWARDS, "--set", "trainer.steps=5", "--change")
    assert ended.code == 0, ended.stderr
    assert (
        store.value("SELECT max(step) FROM batch b JOIN run r ON r.id = b.run_id WHERE r.name = 'live'") == 6
    )
    assert store.value("SELECT state::text FROM run WHERE name = 'live'") == "finished"


def test_a_run_that_is_served_does_not_change_and_names_its_workers(store: Store) -> None:
    config = store.config("served", **ONLINE)
    train = store.start("train", config)
    store.wait_for(
        "SELECT count(*) = 1 FROM worker w JOIN run r ON r.id = w.run_id WHERE r.name = 'served'", train
    )
    ended = store.run("train", config, "--set", "trainer.steps=9", "--change")
    assert ended.code == 1
    assert f"pid {train.pid}): trinity-db stop " in ended.error_lines[0]
    train.clear_away()
    changed = store.start("train", config, "--set", "trainer.steps=9", "--change")
    store.wait_for("SELECT config #>> '{trainer,steps}' = '9' FROM run WHERE name = 'served'", changed)


def test_a_first_start_that_fails_does_not_use_up_the_name(store: Store) -> None:
    wrong = {"data": ["answers"], "algorithm": "sft", "trainer": {"lora": {"targets": ["nope"]}}}
    failed = store.run("train", store.config("mended", **wrong))
    assert failed.code == 1, failed
    right = store.config("mended", **wrong | {"trainer": {"lora": {}}, "seed": 5, "holdout": 0.2})
    mended = store.run("train", right)
    assert mended.code == 0, mended.stderr
    assert store.value("SELECT state::text FROM run WHERE name = 'mended'") == "finished"


def test_more_epochs_prolong_an_offline_run_and_fewer_end_it(store: Store) -> None:
    content = {"data": ["answers"], "algorithm": "sft", "trainer": {"batch_size": 2, "schedule": "linear"}}
    config = store.config("passes", **content)
    assert store.run("train", config).code == 0
    for epochs, steps in ((3, 9), (2, 9)):
        ended = store.run("train", config, "--set", f"trainer.epochs={epochs}", "--change")
        assert ended.code == 0, ended.stderr
        uses = "SELECT DISTINCT e.use_count, e.state::text FROM experience e JOIN run r ON r.id = e.run_id"
        assert store.rows(f"{uses} WHERE r.name = 'passes'") == [{"use_count": 3, "state": "trained"}]
        committed = "SELECT count(*) FROM batch b JOIN run r ON r.id = b.run_id WHERE r.name = 'passes'"
        assert store.value(committed) == steps
    rates = [row["value"] for row in store.rows(RATES, run="passes")]
    assert rates[3:] == pytest.approx([1e-5 * (1 - step / 9) for step in range(3, 9)])


def test_a_run_that_explores_nothing_has_processors_that_remove_old_rows(store: Store) -> None:
    content = {"data": ["answers"], "algorithm": "sft", "trainer": {"batch_size": 2}}
    config = store.config("kept", **content)
    entered = (
        "SELECT family FROM retention t JOIN run r ON r.id = t.run_id WHERE r.name = 'kept' ORDER BY family"
    )
    for more, families in (
        ((), []),
        (("--set", "trainer.epochs=2", "--set", "processors.retention.metrics=30d", "--change"), ["metrics"]),
    ):
        ended = store.run("run", config, *more)
        assert ended.code == 0, ended.stderr
        assert [row["family"] for row in store.rows(entered)] == families
    wrong = store.run("run", config, "--set", "processors.retention.metrics=1y", "--change")
    assert (wrong.code, len(wrong.error_lines)) == (1, 1), wrong.stderr
    assert "processors.retention.metrics: '1y' is not a duration; write it as 30d" in wrong.error_lines[0]
