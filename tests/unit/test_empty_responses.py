"""The table of the reference: what each built-in reward gives to responses without an answer."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.documents import ROOT
from tests.support.judge_server import JudgeServer, judge_server, marks
from tests.support.steps import load, verdicts
from tests.unit.test_reward_model import build
from trinity_db.config.shared import ModelConfig
from trinity_db.processors.config import TEACHER
from trinity_db.processors.judging.question import tamed
from trinity_db.processors.lists import lists
from trinity_db.processors.lists.step import Answer, Context, Step

SCORE = lists.LISTS["score"]
REWARDS = [name for name in SCORE.known if name != TEACHER]
"""The steps that give rewards. A teacher gives none."""
KINDS = {
    "empty": ["", " \n\t"],
    "thought only": ["<think>It is 0.5", "<think>It is \\boxed{0.5}", "<think>0.5</think>"],
    "cut off": ["The answer is \\boxed{\\frac{1", "```python\ndef f("],
    "hostile": ["\\boxed{9^{9^{9^{9}}}}", "9" * 5000, "```python\nwhile True: pass\n```"],
}
RUBRIC = '{version: 1, criteria: [{name: right, question: "Is it right?"}]}'
CONTEXT = Context(None, ModelConfig.model_validate({"path": "none"}), 1.0)  # type: ignore[arg-type]
TASK = {"prompt": "What is 1/2?", "answer": "0.5", "tests": [{"call": "f()", "result": 1}]}


def documented() -> dict[str, dict[str, str]]:
    """The table's cells by step and kind of response."""
    page = (ROOT / "docs/reference/steps.md").read_text().partition("## Responses without an answer")[2]
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    names, _, *rows = lines[: 2 + len(REWARDS)]
    return {cells[0].strip("`"): dict(zip(names[1:], cells[1:], strict=True)) for cells in rows}


@pytest.fixture(scope="module")
def judge() -> Iterator[JudgeServer]:
    with judge_server() as server:
        yield server


@pytest.fixture(scope="module")
def options(judge: JudgeServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What steps need besides their name."""
    folder = tmp_path_factory.mktemp("judges")
    (folder / "rubric.yaml").write_text(RUBRIC)
    return {
        "regex_match": {"pattern": "<answer>(.*?)</answer>"},
        "overlong_penalty": {"max_response_length": 8, "buffer_length": 4},
        "math_match": {"seconds": 2.0},
        "code_tests": {"seconds": 0.5},
        "model_judge": {"rubric": str(folder / "rubric.yaml"), "url": judge.url, "model": "judge"},
        "reward_model": {"path": str(build(folder / "reward-model", chat=True))},
    }


def row(response: str, kind: str) -> dict[str, Any]:
    return {
        "task": TASK,
        "prompt": TASK["prompt"],
        "messages": None,
        "response": response,
        "response_length": len(response),
        "finish_reason": "length" if kind == "cut off" else "stop",
    }


def test_the_table_has_each_reward() -> None:
    assert list(documented()) == REWARDS
    assert all(list(cells) == list(KINDS) for cells in documented().values())


@pytest.mark.parametrize("name", REWARDS)
def test_a_response_without_an_answer_gets_what_the_table_shows(
    name: str, options: dict[str, dict[str, Any]], judge: JudgeServer
) -> None:
    [step] = load("score", {"name": name, **options.get(name, {})})
    ready = step.prepared(CONTEXT)
    for kind, responses in KINDS.items():
        cell = documented()[name][kind]
        fails = cell.startswith("fails")
        rows = [row(response, kind) for response in responses[: 1 if fails else None]]
        if ready.is_async:
            judge.says = {tamed(response): [marks(right=0)] for response in responses}
            values = [asyncio.run(_asked(ready, one)) for one in rows]
        else:
            said = verdicts("score", [ready], *rows)
            assert [verdict.error is not None for verdict in said] == [fails] * len(rows), (kind, said)
            values = [event.value for verdict in said for event in verdict.events]
        assert all(isinstance(value, float) for value in values)
        if cell == "0":
            assert values == [0.0] * len(rows), (kind, responses)
        elif not fails and "dropped" not in cell:
            assert len(values) == len(rows)


async def _asked(step: Step, columns: dict[str, Any]) -> float:
    try:
        answer = await step(columns)
    finally:
        await step.call.close()  # type: ignore[union-attr]
    assert isinstance(answer, Answer)
    return float(answer.value["right"].value)
