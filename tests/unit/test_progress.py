"""The lines that `trinity-db run` prints."""

from typing import Any

import pytest

from trinity_db.cli.progress import SAMPLE_WIDTH, describe, shortened

EMPTY = dict.fromkeys(
    ("reward", "length", "staleness", "reward_change", "steps_between", "seconds_between", "version")
) | {"step": 0, "groups": 0, "dropped": 0}
LEARNS = {
    "step": 30,
    "reward": 0.75,
    "reward_change": 0.25,
    "steps_between": 20,
    "seconds_between": 600.0,
    "length": 11.6,
    "staleness": 1,
    "version": 29,
    "groups": 250,
    "dropped": 20,
}


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({}, "no version yet"),
        ({"version": 0, "groups": 3}, "version 0, 3 groups"),
        (
            LEARNS,
            "35 min left, version 29, reward 0.750 (+0.250 in 20), length 12, 250 groups, 1% dropped, "
            "staleness 1",
        ),
        (
            LEARNS | {"step": 100, "dropped": 0},
            "version 29, reward 0.750 (+0.250 in 20), length 12, 250 groups, staleness 1",
        ),
    ],
)
def test_a_line_has_what_is_known(row: dict[str, Any], line: str) -> None:
    assert describe(EMPTY | row, total=100, group_size=8) == line


def test_a_sample_is_one_line_with_its_beginning_and_its_end() -> None:
    text = shortened("First\n\nthink. " + "x " * 200 + "\x1b[31m#### 42")
    assert text.startswith("First think. x")
    assert text.endswith("#### 42")
    assert len(text) <= SAMPLE_WIDTH
    assert "\x1b" not in text
    assert shortened(" ") == "(empty)"
