"""Meaning of each key for a claim."""

from trinity_db.schema.states import LabelState
from trinity_db.store.verdicts import ReviewClaim

SKIP, DISCARD, UNDO, REWARDS = "s", "d", "u", "r"
MOVES = {SKIP: "skip", DISCARD: "discard", UNDO: "undo", REWARDS: "rewards"}
"""Keys that every claim accepts, with their actions."""
ENDS = {SKIP: LabelState.SKIPPED, DISCARD: LabelState.DISCARDED}
"""Keys that end a claim without a value."""
VALUES = {"a": 1, "t": 0, "g": 1}


def answers(claim: ReviewClaim) -> dict[str, str]:
    """Keys for verdicts with a value, and their labels; a grade has no label."""
    if claim.is_pair:
        return {"a": "A is better", "b": "B is better", "t": "tie"}
    if claim.is_graded:
        return {str(grade): "" for grade in range(claim.lowest, claim.highest + 1)}
    return {"g": "good", "b": "bad"}


def is_verdict(claim: ReviewClaim, key: str) -> bool:
    """Whether a key ends a claim."""
    return key in ENDS or key in answers(claim)


def value(claim: ReviewClaim, key: str) -> int | None:
    """Value of a verdict's key; None if it has none."""
    if key in ENDS:
        return None
    if key == "b":
        return -1 if claim.is_pair else 0
    return int(key) if key.isdecimal() else VALUES[key]


def description(claim: ReviewClaim, key: str) -> str:
    """Describe the verdict that a key gives."""
    return ENDS[key].value if key in ENDS else answers(claim)[key] or f"grade {key}"
