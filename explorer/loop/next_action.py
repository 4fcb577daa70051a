"""Decides what an explorer does after it has looked at the store."""

from dataclasses import dataclass
from enum import Enum, auto


class Action(Enum):
    """What to do with free slots."""

    WAIT = auto()
    """Nothing, until something changes."""
    WAIT_FOR_SLOTS = auto()
    """Nothing, until an attempt ends; then look again."""
    TRAIN = auto()
    """Start attempts for training."""
    EVALUATE = auto()
    """Start attempts of an evaluation, in all slots."""
    SHARE = auto()
    """Start attempts of an evaluation in a share of the slots, and for training in the rest."""


@dataclass(frozen=True)
class Situation:
    """What the decision depends on."""

    trains: bool
    """Whether the run is unfinished, and this explorer explores for its trainer."""
    has_version: bool
    """Whether the run has a policy version."""
    is_due: bool
    """Whether an evaluation has groups to claim."""
    is_shared: bool
    """Whether this evaluation and training need the same version."""
    is_evaluating: bool
    """Whether attempts of evaluations are in progress."""
    lacks_slots: bool
    """Whether attempts are in progress, and the free slots are too few for a claim."""
    pauses: bool
    """Whether attempts could not start here lately."""
    is_turn_of_evaluation: bool
    """Whether the engine loads versions of evaluations, if training needs another version."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: the run and its evaluations are finished."""
        return not self.trains and not self.is_due and not self.is_evaluating


def next_action(situation: Situation) -> Action:
    """Decide what to do, if the work is not over."""
    if situation.lacks_slots:
        return Action.WAIT_FOR_SLOTS
    if situation.pauses:
        return Action.WAIT
    may_train = situation.trains and situation.has_version
    if situation.is_due:
        if not situation.trains:
            return Action.EVALUATE
        if situation.is_shared:
            return Action.SHARE
        if situation.is_turn_of_evaluation:
            return Action.EVALUATE
    return Action.TRAIN if may_train else Action.WAIT
