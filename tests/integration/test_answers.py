"""Rewards in the store of tasks with several accepted answers, or with one that no response can equal."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.rows import Scene, rollout, with_step
from tests.support.steps import process
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Task
from trinity_db.store import runs
from trinity_db.store.selection import TaskSelection


def rewards_of(
    scene: Scene, answer: Any, step: str, responses: list[str], prompt: str = "prompt"
) -> list[Any]:
    """Explore and score a task with this answer; return the rewards in the store."""
    open_writer(scene.database, "tasks", "answers")([Task({"prompt": "Which town?", "answer": answer})])
    with scene.database.transaction() as tx:
        selection = TaskSelection({runs.find_taskset(tx, "answers"): 1.0}, seed=0, walk="sequential")
    scene = replace(scene, selection=selection)
    [group] = scene.claim(1, group_size=len(responses))
    scene.write(
        [with_step(rollout(group, member, text), prompt=prompt) for member, text in enumerate(responses)]
    )
    process(scene, {"score": [step]})
    return scene.values("SELECT reward FROM trinity.experience ORDER BY id")


@pytest.mark.parametrize("answer", [["York", "york"], {"target": ["York", "york"]}])
def test_each_accepted_answer_earns_the_reward(scene: Scene, answer: Any) -> None:
    responses = ["York", "york", "<think>York?</think>York", "Leeds", "<think>York"]
    assert rewards_of(scene, answer, "exact_match", responses) == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_a_thought_that_the_prompt_opens_earns_nothing(scene: Scene) -> None:
    responses = ["York", "Leeds?</think>York"]
    assert rewards_of(scene, "York", "exact_match", responses, "prompt<think>\n") == [0.0, 1.0]


def test_an_answer_without_a_number_fails_the_rows_instead_of_scoring_0(scene: Scene) -> None:
    assert rewards_of(scene, "York", "number_match", ["18", "York"]) == [None, None]
    said = scene.values("SELECT DISTINCT error FROM trinity.processing WHERE error IS NOT NULL")
    assert said == ["number_match raised ValueError: the task's answer 'York' has no plain number"]
