"""Which code of a response counts: the last that defines what is asked, or runs as a program.

The responses of `code_blocks.yaml` take some five seconds on two cores.
"""

from pathlib import Path

import pytest
import yaml

from tests.unit.test_code_forms import score, scores
from trinity_db.processors.children.blocks import code_of
from trinity_db.processors.lists.step import Answer

RESPONSES = yaml.safe_load(Path(__file__).with_name("code_blocks.yaml").read_text())
ADDITION = {"tests": ["assert add(1, 2) == 3", "assert add(5, -1) == 4"]}
SUM = {"tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "5 -1\n", "output": "4\n"}]}
ADD = "def add(a, b):\n    return a + b"
HOSTILE = {
    "parentheses": "```python\n" + "(" * 100_000 + "\n```",
    "signs": "```python\nadd = " + "-" * 100_000 + "1\n```",
    "brackets": "```python\nadd = " + "{1:[" * 90 + "\n```",
    "fences": "```python\n'''\n" * 20_000,
    "inline code": "``` ``` " * 50_000,
}


@pytest.mark.parametrize(
    ("kind", "task", "share"),
    [
        ("functions", ADDITION, 1.0),
        ("programs", SUM, 1.0),
        ("worthless", ADDITION, 0.0),
        ("hostile", ADDITION, 0.0),
    ],
)
def test_the_last_code_that_defines_what_is_asked_counts(
    kind: str, task: dict[str, object], share: float
) -> None:
    responses = HOSTILE if kind == "hostile" else RESPONSES[kind]
    outcomes = scores("tests", [(response, task) for response in responses.values()], seconds=5.0)
    different = {
        name: outcome
        for name, outcome in zip(responses, outcomes, strict=True)
        if not isinstance(outcome, Answer) or outcome.value != share
    }
    assert different == {}


def test_a_response_of_many_blocks_is_read_in_time() -> None:
    assert score(f"```python\n{ADD}\n```\n" * 2000, ADDITION).value == 1.0


def test_blocks_that_nothing_needs_do_not_run() -> None:
    response = (
        "```python\nraise SystemExit\n```\n```python\nx = 1\n```\n```python\ndef f():\n    return x\n```"
    )
    assert code_of(response, ["f"], has_input=False) == ["x = 1\n", "def f():\n    return x\n"]
