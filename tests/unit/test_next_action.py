"""What an explorer does with free slots, by what it has found in the store."""

import pytest

from trinity_db.explorer.loop.next_action import Action, Situation, next_action

TRAINING = Situation(
    trains=True,
    has_version=True,
    is_due=False,
    is_shared=False,
    is_evaluating=False,
    lacks_slots=False,
    pauses=False,
    is_turn_of_evaluation=False,
)


def training(**facts: bool) -> Situation:
    return Situation(**(vars(TRAINING) | facts))


@pytest.mark.parametrize(
    ("situation", "action"),
    [
        (training(), Action.TRAIN),
        (training(has_version=False), Action.WAIT),
        (training(is_due=True, is_shared=True), Action.SHARE),
        (training(is_due=True), Action.TRAIN),
        (training(is_due=True, is_turn_of_evaluation=True), Action.EVALUATE),
        (training(is_due=True, has_version=False), Action.WAIT),
        (training(trains=False, is_due=True), Action.EVALUATE),
        (training(trains=False, is_due=True, is_shared=True), Action.EVALUATE),
        (training(trains=False, is_evaluating=True), Action.WAIT),
    ],
)
def test_an_explorer_with_free_slots(situation: Situation, action: Action) -> None:
    assert next_action(situation) == action
    assert next_action(Situation(**(vars(situation) | {"pauses": True}))) == Action.WAIT
    full = Situation(**(vars(situation) | {"lacks_slots": True, "pauses": True}))
    assert next_action(full) == Action.WAIT_FOR_SLOTS, "it looks again once an attempt ends"


def test_an_explorer_ends_only_without_work_for_training_and_evaluations() -> None:
    assert training(trains=False).is_over
    for left in ("trains", "is_due", "is_evaluating"):
        assert not training(**({"trains": False} | {left: True})).is_over
