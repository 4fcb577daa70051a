"""Mistakes in configurations and around them: one line that names the thing, and nothing half-written."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals

GROUP_SIZE, MAX_ATTEMPTS = 8, 3
LONG, UNKNOWN = "0" * 20, "abc"

GRPO: dict[str, Any] = {"taskset": "reverse", "algorithm": "grpo", "trainer": {"steps": 3}}

REWARDS = """
def fussy(response, task):
    if response.startswith("0"):
        raise ValueError("no zeros, please")
    return float("nan") if response.startswith("1") else float(response == task["answer"])
"""


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("bad")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        (store.folder / "rewards.py").write_text(REWARDS)
        yield store


@pytest.fixture(scope="module")
def troubled(store: Store) -> Ended:
    """A run with prompts that its model cannot take, and a reward function that often fails."""
    hard = [{"prompt": prompt, "answer": "0"} for prompt in (LONG, UNKNOWN)]
    store.import_rows("hard", "tasks", hard + reversals(1))
    config = store.config(
        "troubled",
        taskset="hard",
        algorithm="grpo",
        explorer={
            "group_size": GROUP_SIZE,
            "concurrency": 4 * GROUP_SIZE,
            "tasks": "sequential",
            "max_new_tokens": 4,
        },
        processors={
            "max_attempts": MAX_ATTEMPTS,
            "score": [f"{store.folder / 'rewards.py'}:fussy"],
        },
        trainer={"steps": 3, "batch_size": 2, "learning_rate": 1e-3},
    )
    return store.run("run", config)


def test_a_mistake_gets_one_line(store: Store) -> None:
    ended = store.run("run", store.config("case", **GRPO | {"trainer": {"steps": 3, "learning_rte": 1}}))
    assert (ended.code, ended.stdout) == (1, "")
    (line,) = ended.error_lines
    assert line.startswith("error: ")
    assert "unknown key 'trainer.learning_rte'; did you mean 'learning_rate'?" in line
    assert store.rows("SELECT name FROM run WHERE name = 'case'") == []


def test_a_trainer_whose_data_have_no_pairs_ends_in_one_line_and_keeps_the_adopted_rows(store: Store) -> None:
    answers = [{"prompt": task["prompt"], "completion": task["answer"]} for task in reversals(1)]
    store.import_rows("answers", "demonstrations", answers)
    ended = store.run("train", store.config("no-pairs", data=["answers"], algorithm="dpo"))
    assert (ended.code, ended.stdout) == (1, "")
    (line,) = ended.error_lines
    assert line.startswith("error: ")
    assert "has no preferences" in line
    rows = "SELECT count(*) FROM experience e JOIN run r ON r.id = e.run_id WHERE r.name = 'no-pairs'"
    assert store.value(rows) == 5


def test_trouble_with_rows_does_not_end_a_run(troubled: Ended, store: Store) -> None:
    assert troubled.code == 0, troubled.stderr
    assert troubled.error_lines == []
    states = store.rows("SELECT step, state::text FROM batch_view WHERE run = 'troubled' ORDER BY step")
    assert states == [{"step": step, "state": "committed"} for step in (1, 2, 3)]


@pytest.mark.usefixtures("troubled")
def test_prompts_the_model_cannot_take_fail_with_the_reason(store: Store) -> None:
    failed = store.rows(
        """
        SELECT t.payload->>'prompt' AS prompt, o.error, count(*) AS members
        FROM rollout o JOIN rollout_group g ON g.id = o.group_id JOIN task t ON t.id = g.task_id
        WHERE o.state = 'failed' GROUP BY 1, 2
        """
    )
    errors = {row["prompt"]: row["error"] for row in failed}
    assert errors.keys() == {LONG, UNKNOWN}
    assert errors[LONG] == "A prompt of 21 tokens does not fit: this model accepts 1 to 15."
    assert errors[UNKNOWN].startswith("The tokenizer cannot encode 'abc='")
    assert all(row["members"] % GROUP_SIZE == 0 for row in failed)


@pytest.mark.usefixtures("troubled")
def test_groups_without_a_member_are_dropped_whole(store: Store) -> None:
    groups = store.rows(
        """
        SELECT g.state::text, g.arrived, g.failed, d.stage, d.reason, d.detail
        FROM rollout_group g JOIN task t ON t.id = g.task_id LEFT JOIN "drop" d ON d.group_id = g.id
        WHERE t.payload->>'prompt' = ANY(%(prompts)s) AND g.state <> 'complete'
        """,
        prompts=[LONG, UNKNOWN],
    )
    assert len(groups) >= 2
    for group in groups:
        assert (group["state"], group["arrived"], group["failed"]) == ("dropped", 0, GROUP_SIZE)
        assert (group["stage"], group["reason"]) == ("group", "group_too_small")
        assert group["detail"] == {"members": 0, "needed": 2, "scored": 0, "solved": 0}


@pytest.mark.usefixtures("troubled")
def test_rows_that_cannot_be_scored_are_dropped_with_the_error(store: Store) -> None:
    dropped = store.rows(
        """
        SELECT x.response, e.state::text, d.detail->>'error' AS error, array_agg(p.error) AS errors,
               count(DISTINCT p.attempt) AS attempts
        FROM "drop" d
        JOIN experience e ON e.id = d.experience_id
        JOIN experience_text x ON x.experience_id = e.id
        JOIN processing p ON p.experience_id = e.id AND p.processor = 'score' AND p.outcome = 'failed'
        WHERE d.reason = 'score_failed'
        GROUP BY d.id, e.id, x.response
        """
    )
    says = {
        "0": r"raised ValueError: no zeros, please \(.*, line \d+, in \w+\)$",
        "1": "returned nan, not a finite number$",
    }
    assert {row["response"][0] for row in dropped} == says.keys()
    for row in dropped:
        assert (row["state"], row["attempts"]) == ("dropped", MAX_ATTEMPTS)
        assert row["errors"] == [row["error"]] * MAX_ATTEMPTS
        assert re.search(says[row["response"][0]], row["error"])


@pytest.mark.usefixtures("troubled")
def test_rows_that_cannot_be_scored_are_never_trained_on(store: Store) -> None:
    used = store.rows(
        "SELECT DISTINCT left(x.response, 1) AS first FROM batch_item i "
        "JOIN experience_text x ON x.experience_id = i.experience_id"
    )
    assert used
    assert not {row["first"] for row in used} & {"0", "1"}
    statements = 'SELECT count(*) FROM reward_event v JOIN "drop" d USING (experience_id)'
    assert store.value(statements) == 0
