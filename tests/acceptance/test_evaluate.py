"""Evaluations by the installed command: within a run, afterwards, and of a model in a folder."""

import json
import signal
from collections.abc import Iterator

import pytest

from tests.acceptance.command import Store, new_store, reversals, reversing

STEPS = 3
TEST_TASKS = reversals(1)  # five

EVALUATIONS = """
SELECT v.version, v.judged + v.failed AS ended, v.waiting, v.finished_at IS NOT NULL AS is_finished, v.error
FROM evaluation_view v WHERE v.run = %(run)s ORDER BY v.id
"""
OTHER_TOKENS = """
SELECT count(*) FROM rollout_group g JOIN evaluation v ON v.id = g.evaluation_id
WHERE v.version NOT IN (g.version_min, g.version_max)
"""
TRAINED = """
SELECT count(*) FROM batch_item i JOIN experience e ON e.id = i.experience_id
JOIN rollout_group g ON g.id = e.group_id WHERE g.evaluation_id IS NOT NULL
"""
ANSWERS = """
SELECT g.task_id, m.ordinal, x.response
FROM evaluation v
JOIN run r ON r.id = v.run_id
JOIN taskset s ON s.id = v.taskset_id
JOIN rollout_group g ON g.evaluation_id = v.id
JOIN rollout m ON m.group_id = g.id
JOIN experience e ON e.rollout_id = m.id
JOIN experience_text x ON x.experience_id = e.id
WHERE s.name = 'test' AND r.name = %(run)s AND v.version = %(version)s
ORDER BY g.task_id, m.ordinal
"""


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A run that was evaluated while it trained. One of the test's tasks is trained on too."""
    with new_store(server, template, tmp_path_factory.mktemp("evaluate")) as store:
        store.import_rows("reverse", "tasks", [*reversals(2), TEST_TASKS[0]])
        store.import_rows("test", "tasks", TEST_TASKS)
        config = store.config(
            "run",
            **reversing(STEPS, batch_size=2, keep_checkpoints=2),
            evaluation={"taskset": "test", "every": 2, "samples": 2},
        )
        ended = store.run("run", config)
        assert ended.code == 0, ended.stderr
        assert "1 tasks of 'test' are in 'reverse' too, which is trained on" in ended.stderr
        yield store


def test_a_run_ends_when_its_versions_are_evaluated_each_by_itself(store: Store) -> None:
    found = store.rows(EVALUATIONS, run="run")
    assert [row["version"] for row in found] == [0, 2, 3]
    for row in found:
        assert row["ended"] == 2 * len(TEST_TASKS)
        assert (row["waiting"], row["is_finished"], row["error"]) == (0, True, None)
    assert store.value(OTHER_TOKENS) == 0
    assert store.value(TRAINED) == 0
    named = "SELECT step, name FROM metric WHERE name LIKE 'eval/test/mean@%%' ORDER BY step"
    assert store.rows(named) == [{"step": step, "name": "eval/test/mean@2"} for step in (0, 2, 3)]
    shown = json.loads(store.run("status", "run", "--json").stdout)
    assert [row["version"] for row in shown["evaluations"]] == [3]


def test_a_command_that_was_killed_is_repeated_and_goes_on(store: Store) -> None:
    command = (
        "evaluate",
        "run",
        "--taskset",
        "reverse",
        "--version",
        "0",
        "--version",
        "3",
        "--samples",
        "4",
    )
    killed = store.start(*command)
    store.wait_for("SELECT count(*) > 0 FROM rollout_group WHERE expected = 4 AND evaluation_id > 3", killed)
    killed.signal(signal.SIGKILL)
    killed.wait()
    ended = store.run(*command, "--json")
    assert ended.code == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert [(row["version"], row["tasks"], row["waiting"]) for row in said["evaluations"]] == [
        (0, 26, 0),
        (3, 26, 0),
    ]
    [difference] = said["differences"]
    assert (difference["before"], difference["after"], difference["tasks"]) == (0, 3, 26)
    assert difference["mean_low"] <= difference["mean"] <= difference["mean_high"]
    counted = (
        "SELECT count(*) FROM rollout m JOIN rollout_group g ON g.id = m.group_id WHERE g.evaluation_id > 3"
    )
    assert store.value(counted) == 2 * 26 * 4
    assert store.value(OTHER_TOKENS) == 0
    again = store.run(*command)
    assert again.code == 0
    assert "version 3 minus version 0, 26 tasks" in again.stdout


def test_a_model_in_a_folder_is_evaluated_and_answers_as_the_version_that_it_is(store: Store) -> None:
    folder = store.value("SELECT checkpoint FROM policy_version WHERE version = 3")
    ended = store.run(
        *("evaluate", folder, "--taskset", "test", "--samples", "2", "--json"),
        *("--config", store.folder / "run.yaml", "--set", "name=copy"),
    )
    assert ended.code == 0, ended.stderr
    [of_model] = json.loads(ended.stdout)["evaluations"]
    [of_version] = [
        row
        for row in store.rows("SELECT run, version, mean, best FROM evaluation_view WHERE taskset = 'test'")
        if (row["run"], row["version"]) == ("run", 3)
    ]
    assert (of_model["mean"], of_model["best"]) == (of_version["mean"], of_version["best"])
    assert store.rows(ANSWERS, run="copy", version=0) == store.rows(ANSWERS, run="run", version=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--version", "1"), "run 'run' has no checkpoint of it; available: 0, 2, 3."),
        (("rnu",), "There is no run 'rnu'; did you mean 'run'?"),
        (("/",), "/ is a model: define its workflow and rewards with --config."),
        (("reverse",), "There is no run 'reverse'"),
    ],
)
def test_a_mistake_is_one_line(store: Store, arguments: tuple[str, ...], message: str) -> None:
    ended = store.run("evaluate", *arguments, "--taskset", "test")
    assert ended.code == 1
    assert message in ended.error_lines[-1]
