"""Rewards of real solutions to GSM8K by four models, against the labels that were published with them."""

import json
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from trinity_db.processors.steps.mathematics import MathMatch
from trinity_db.processors.steps.rewards import number_match

FILE = Path(ROOT, "../shared/data/gsm8k/example_model_solutions.jsonl")
EVERY = 20
"""math_match compares each twentieth solution, as one takes milliseconds."""


@pytest.fixture(scope="module")
def solutions() -> list[tuple[str, str, bool]]:
    """Solutions, right answers, and whether they are right."""
    if not FILE.exists():
        pytest.skip(f"there is no {FILE}")
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    return [
        (one["solution"], row["ground_truth"], one["is_correct"])
        for row in rows
        for one in row.values()
        if isinstance(one, dict)
    ]


def test_number_match_agrees_with_each_label(solutions: list[tuple[str, str, bool]]) -> None:
    assert len(solutions) == 5276
    for solution, answer, is_correct in solutions:
        assert number_match(solution, {"answer": answer}, after="A:") == is_correct, solution


def test_math_match_agrees_with_the_labels(solutions: list[tuple[str, str, bool]]) -> None:
    match = MathMatch(None, processes=1)  # type: ignore[arg-type]
    responses, answers, labels = zip(*solutions[::EVERY], strict=True)
    values = dict(match(responses, [{"answer": answer} for answer in answers], [""] * len(responses)))
    assert [values[place] for place in range(len(labels))] == list(labels)
