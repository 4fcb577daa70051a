"""What each key says of a claim."""

from trinity_db.schema.states import LabelState
from trinity_db.store.verdicts import Claim

SKIP, DISCARD, UNDO, REWARDS = "s", "d", "u", "r"
MOVES = {SKIP: "skip", DISCARD: "discard", UNDO: "undo", REWARDS: "rewards"}
"""The keys that every claim takes, and what they do."""
ENDS = {SKIP: LabelState.SKIPPED, DISCARD: LabelState.DISCARDED}
"""Those of them that end a claim without a value."""
VALUES = {"a": 1, "t": 0, "g": 1}


def answers(claim: Claim) -> dict[str, str]:
    """The keys of verdicts with a value, and what they say; a grade says itself."""
    if claim.is_pair:
        return {"a": "A is better", "b": "B is better", "t": "tie"}
    if claim.is_graded:
        return {str(grade): "" for grade in range(claim.lowest, claim.highest + 1)}
    return {"g": "good", "b": "bad"}


def is_verdict(claim: Claim, key: str) -> bool:
    """Whether a key ends a claim."""
    return key in ENDS or key in answers(claim)


def value(claim: Claim, key: str) -> int | None:
    """The value that a key of a verdict gives; None: it gives none."""
    if key in ENDS:
        return None
    if key == "b":
        return -1 if claim.is_pair else 0
    return int(key) if key.isdecimal() else VALUES[key]


def said(claim: Claim, key: str) -> str:
    """What a key of a verdict said, in words."""
    return ENDS[key].value if key in ENDS else answers(claim)[key] or f"grade {key}"
