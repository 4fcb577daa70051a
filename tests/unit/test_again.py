"""With which arguments a command starts itself again."""

import pytest

from trinity_db.run.restart_command import _without_allowed_once

PROGRAM = ["-m", "trinity_db", "train", "run.yaml"]


@pytest.mark.parametrize("once", [["--from-start"], ["--from-version", "3"], ["--from-version=3"]])
def test_what_a_person_allowed_for_one_start_is_not_allowed_again(once: list[str]) -> None:
    kept = ["--change", "--set", "trainer.steps=5"]
    assert _without_allowed_once([*PROGRAM, *once, *kept]) == [*PROGRAM, *kept]
    assert _without_allowed_once([*PROGRAM, *kept, *once]) == [*PROGRAM, *kept]


def test_all_other_arguments_stay_as_they_are() -> None:
    given = [*PROGRAM, "--from-startle", "x --from-start", "", "--set", "name=--from-version"]
    assert _without_allowed_once(given) == given
