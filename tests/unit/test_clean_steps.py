"""Clean steps that look at the whole response: loops and scripts."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.steps import load, verdicts
from trinity_db.processors.lists.step import Drop
from trinity_db.processors.steps.clean import in_script, not_repetitive


def by_hand(sampled: Sequence[int], length: int) -> float:
    """The share of tokens in runs that stood further left, found by looking at each."""
    seen, covered = set(), set()
    for start in range(len(sampled) - length + 1):
        run = tuple(sampled[start : start + length])
        if run in seen:
            covered |= set(range(start, start + length))
        seen.add(run)
    return len(covered) / len(sampled)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(2, 7), st.integers(0, 5))
def test_the_share_in_repeated_runs_is_that_of_a_count_by_hand(
    sampled: list[int], length: int, prompt: int
) -> None:
    token_ids = np.array([7] * prompt + sampled, np.int32)
    mask = np.arange(len(token_ids)) >= prompt
    expected = by_hand(sampled, length)
    found = not_repetitive(token_ids, mask, tokens=length, share=0.3)
    if expected > 0.3:
        assert found == Drop("repetitive", {"share": round(expected, 4)})
    else:
        assert found is None


def test_a_loop_of_one_token_is_repetitive_and_as_many_different_ones_are_not() -> None:
    mask = np.ones(200, dtype=bool)
    assert not_repetitive(np.full(200, 5, np.int32), mask) is not None
    assert not_repetitive(np.arange(200, dtype=np.int32), mask) is None


LATIN = {"scripts": ["latin"]}


@pytest.mark.parametrize(
    ("response", "options", "others"),
    [
        ("It is four: 4 = 2 + 2 €", LATIN, None),
        ("Ça va, déjà?", LATIN, None),
        ("𝐚𝑏𝔠 are letters of a formula", LATIN, None),
        ("1 + 1 = 2 🎉", LATIN, None),
        ("", LATIN, None),
        ("答案是四", LATIN, {"cjk": 4}),
        ("the answer 是", LATIN, {"cjk": 1}),
        ("データベースのサーバー、人々", {"scripts": ["cjk", "hiragana", "katakana"]}, None),
        ("答えは四です", {"scripts": ["cjk", "hiragana", "katakana"]}, None),
        ("ответ", {"scripts": ["latin", "greek"]}, {"cyrillic": 5}),
        ("the angle α", {"scripts": ["latin", "greek"]}, None),
        ("angle α", {"scripts": ["latin"], "share": 0.2}, None),
        ("ﾃｽﾄ", {"scripts": ["katakana"]}, None),
    ],
)
def test_letters_are_counted_by_the_script_that_they_are_of(
    response: str, options: dict[str, object], others: dict[str, int] | None
) -> None:
    found = in_script(response, **options)  # type: ignore[arg-type]
    assert (found and found.detail and found.detail["scripts"]) == others


def test_a_script_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValidationError, match=r"clean step 'in_script': scripts.0: .* 'latin', .*got 'latn'"):
        load("clean", {"name": "in_script", "scripts": ["latn"]})


def test_a_row_that_is_dropped_for_its_script_keeps_what_was_found() -> None:
    [verdict] = verdicts("clean", load("clean", {"name": "in_script", **LATIN}), {"response": "да"})
    assert (verdict.reason, verdict.detail) == ("other_script", {"share": 1.0, "scripts": {"cyrillic": 2}})
