"""Every built-in reward gives a number to responses that are empty, white space or cut off."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.judge_server import JudgeServer, judge_server, marks
from tests.steps import load, verdicts
from tests.unit.test_reward_model import build
from trinity_db.config import ModelConfig
from trinity_db.processors import lists
from trinity_db.processors.step import Answer, Context, Step
from trinity_db.schema.states import Outcome

SCORE = lists.LISTS["score"]
REWARDS = [name for name in SCORE.known if SCORE.says(name) is None]
"""The steps that give rewards. A teacher gives none."""
CUT_OFF = "The answer is \\boxed{\\frac{1"
RESPONSES = ["", " \n\t", CUT_OFF, "```python\ndef f("]
RUBRIC = '{version: 1, criteria: [{name: right, question: "Is it right?"}]}'
CONTEXT = Context(None, ModelConfig.model_validate({"path": "none"}), 1.0)  # type: ignore[arg-type]


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
        "model_judge": {"rubric": str(folder / "rubric.yaml"), "url": judge.url, "model": "judge"},
        "reward_model": {"path": str(build(folder / "reward-model", chat=True))},
    }


def row(response: str) -> dict[str, Any]:
    task = {"prompt": "What is 1/2?", "answer": "0.5", "tests": [{"call": "f()", "result": 1}]}
    return {
        "task": task,
        "prompt": task["prompt"],
        "messages": None,
        "response": response,
        "response_length": len(response),
        "finish_reason": "length" if response in RESPONSES[2:] else "stop",
    }


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_is_a_number(name: str, options: dict[str, dict[str, Any]], judge: JudgeServer) -> None:
    [step] = load("score", {"name": name, **options.get(name, {})})
    ready = step.prepared(CONTEXT)
    if not step.is_async:
        said = verdicts("score", [ready], *map(row, RESPONSES))
        assert [(verdict.outcome, verdict.error) for verdict in said] == [(Outcome.PASSED, None)] * len(
            RESPONSES
        )
        values = [event.value for verdict in said for event in verdict.events]
        assert len(values) == len(RESPONSES)
    else:
        judge.says = {response: [marks(right=0)] for response in RESPONSES}
        values = [asyncio.run(_asked(ready, response)) for response in RESPONSES]
    assert all(isinstance(value, float) for value in values)
    if name not in ("reward_model", "overlong_penalty"):
        assert values == [0.0] * len(RESPONSES), "none of them is right"


async def _asked(step: Step, response: str) -> float:
    try:
        answer = await step(row(response))
    finally:
        await step.call.close()  # type: ignore[union-attr]
    assert isinstance(answer, Answer)
    return float(answer.value["right"].value)
