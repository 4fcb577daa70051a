"""What people say of the rows and pairs in a queue: claims, verdicts, and what follows from these.

A verdict changes rewards or preferences in the transaction that writes it, so the next draw knows it. Its
review is locked first, then data sets, groups, rows and pairs as `rewards` says. A claim ends by itself when
its holder stops renewing it, and goes to the next person.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from psycopg.rows import DictRow

from trinity_db.database import Transaction
from trinity_db.errors import ConfigError, LeaseLost, NotFound
from trinity_db.schema.queries import query
from trinity_db.schema.states import LabelState
from trinity_db.store import pair_labels, rewards, runs

LEASE_SECONDS = 120.0  # a living session renews its claims several times within it


@dataclass(frozen=True)
class Claim:
    """A row or a pair that one person has to judge."""

    label_id: int
    attempt: int
    """A verdict with an older number is refused."""
    review_id: int
    name: str
    lowest: int
    highest: int
    prompt: str
    messages: Any
    """The prompt as a list of messages; None where it was plain text."""
    responses: tuple[str, ...]
    """One; of a pair A, then B."""
    experience_ids: tuple[int, ...]
    swapped: bool | None
    """Whether A is the second row of the review; None: it is one row."""

    @property
    def is_pair(self) -> bool:
        """Whether two rows are compared."""
        return len(self.responses) == 2

    @property
    def is_graded(self) -> bool:
        """Whether it is judged by more than good (1) and bad (0)."""
        return not self.is_pair and (self.lowest, self.highest) != (0, 1)


@dataclass(frozen=True)
class Verdict:
    """What a person says of a claim."""

    state: LabelState
    value: int | None = None
    """Of a pair 1: A is better, -1: B is, 0: neither. None unless submitted."""
    seconds: float | None = None
    """How long the person looked at it."""
    blind: bool | None = None
    """Whether the person saw no rewards before; None: unknown."""


def claim(
    tx: Transaction, run_id: int, author: str, pairs: bool, lease_seconds: float = LEASE_SECONDS
) -> Claim | None:
    """Give a person the oldest row or pair that waits for a verdict of theirs; None: there is none.

    Which response of a pair is A is drawn by lot for each claim.
    """
    values = {"run_id": run_id, "author": author, "pairs": pairs, "lease_seconds": lease_seconds}
    after = 0
    while (row := tx.execute(query("lock_next_review"), values | {"after": after}).fetchone()) is not None:
        after = row["id"]
        lot = {"review_id": after, "swapped": random.SystemRandom().random() < 0.5}
        if (taken := tx.execute(query("claim_review"), values | lot).fetchone()) is not None:
            return read(tx, taken["id"])
    return None


def read(tx: Transaction, label_id: int) -> Claim:
    """A claim as its person sees it.

    Raises:
        NotFound: there is none.
    """
    row = tx.execute(query("read_claim"), {"label_id": label_id}).fetchone()
    if row is None:
        raise NotFound(f"There is no label {label_id}.")
    responses = [row["response"] or ""]
    if row["is_pair"]:
        responses.insert(0 if row["swapped"] else 1, row["other_response"] or "")
    return Claim(
        row["label_id"],
        row["attempt"],
        row["review_id"],
        row["name"],
        row["lowest"],
        row["highest"],
        row["prompt"] or "",
        row["messages"],
        tuple(responses),
        tuple(row["experience_ids"]),
        row["swapped"],
    )


def reward_parts(tx: Transaction, claim: Claim) -> list[DictRow]:
    """What the rewards of a claim's rows are made of, for a person who asks to see it."""
    return tx.execute(query("read_reward_parts"), {"ids": list(claim.experience_ids)}).fetchall()


def renew(tx: Transaction, claims: Sequence[Claim], lease_seconds: float = LEASE_SECONDS) -> set[int]:
    """Put off the end of claims; returns the labels of those that had not ended."""
    values = {"ids": [claim.label_id for claim in claims], "attempts": [claim.attempt for claim in claims]}
    rows = tx.execute(query("renew_claims"), values | {"lease_seconds": lease_seconds})
    return {row["id"] for row in rows}


def release(tx: Transaction, claim: Claim) -> None:
    """Give a claim back, for another person or for the same one later. Harmless when repeated."""
    tx.execute(query("release_claim"), {"label_id": claim.label_id, "attempt": claim.attempt})


def decide(tx: Transaction, claim: Claim, author: str, verdict: Verdict) -> None:
    """Write a verdict on a claim, and everything that follows from it. Harmless when repeated.

    Raises:
        LeaseLost: the claim ended, and another person or session has it.
        NotFound: the row left the queue, as with its run.
        ConfigError: the value is out of the scale.
    """
    value = _check(verdict, claim.lowest, claim.highest)
    if value is not None and claim.swapped:
        value = -value
    tx.execute(query("lock_review"), {"label_id": claim.label_id})
    values = {"label_id": claim.label_id, "attempt": claim.attempt, "answer": verdict.state, "value": value}
    said = {"seconds": verdict.seconds, "blind": verdict.blind}
    if tx.execute(query("decide_label"), values | said).fetchone() is None:
        found = tx.execute(query("find_label"), {"label_id": claim.label_id}).fetchone()
        if found == {"attempt": claim.attempt, "state": verdict.state.value, "value": value}:
            return  # it was written by a transaction whose commit was unclear
        if found is None:
            raise NotFound("It is in no queue any more: its run was deleted, or pruned.")
        raise LeaseLost("Another person judges this by now: your claim had ended.")
    _follow(tx, claim.review_id, author, verdict.state == LabelState.SUBMITTED)


def submit(tx: Transaction, claim: Claim, author: str, value: int, seconds: float | None = None) -> None:
    """Judge a claim: a row by a value of its scale; a pair by 1 for A, -1 for B, 0 for neither."""
    decide(tx, claim, author, Verdict(LabelState.SUBMITTED, value, seconds))


def discard(tx: Transaction, claim: Claim, author: str, seconds: float | None = None) -> None:
    """Say that a claim cannot be judged: it counts as an answer that has no value."""
    decide(tx, claim, author, Verdict(LabelState.DISCARDED, seconds=seconds))


def skip(tx: Transaction, claim: Claim, author: str, seconds: float | None = None) -> None:
    """Leave a claim to other people; this one is not asked about it again."""
    decide(tx, claim, author, Verdict(LabelState.SKIPPED, seconds=seconds))


def last_decided(tx: Transaction, run_id: int, author: str, pairs: bool) -> int | None:
    """The label of a person's last verdict in a queue; None: there is none."""
    values = {"run_id": run_id, "author": author, "pairs": pairs}
    last = tx.execute(query("last_decided"), values).fetchone()
    return None if last is None else int(last["id"])


def undo(tx: Transaction, label_id: int, author: str, lease_seconds: float = LEASE_SECONDS) -> Claim:
    """Take a person's verdict back, with all that followed from it; returns the claim anew.

    May be repeated: a verdict that was taken back already stays so.

    Raises:
        ConfigError: a group that is drawn by its rewards would be left without one of them.
    """
    about = {"label_id": label_id, "lease_seconds": lease_seconds}
    review = tx.execute(query("lock_review"), about).fetchone()
    assert review is not None
    before = tx.execute(query("find_label"), about).fetchone()
    assert before is not None
    if before["state"] != LabelState.DRAFT:
        tx.execute(query("take_back"), about)
        _follow(tx, review["id"], author, before["state"] == LabelState.SUBMITTED, takes_back=True)
    return read(tx, label_id)


def give(
    tx: Transaction, run_id: int, review_id: int, author: str, verdict: Verdict, swapped: bool | None = None
) -> Literal["new", "changed", "known"]:
    """Write a verdict that was given in another program; of a person the last one counts.

    Args:
        swapped: Whether the person saw the second row of the pair as A; None: it is one row.

    Raises:
        NotFound: the run has no such review.
        ConfigError: the value is out of the review's scale, or it is of a row where a pair was compared.
    """
    found = tx.execute(query("lock_given_review"), {"review_id": review_id, "run_id": run_id}).fetchone()
    if found is None:
        raise NotFound(
            f"The run has no review {review_id}: give the file to the run that it was exported from"
        )
    if found["is_pair"] != (swapped is not None):
        kind = "a pair" if found["is_pair"] else "one row"
        raise ConfigError(f"Review {review_id} is about {kind}, and the verdict is not")
    value = _check(verdict, found["lowest"], found["highest"])
    value = -value if value is not None and swapped else value
    about = {"review_id": review_id, "author": author}
    before = tx.execute(query("read_given"), about).fetchone()
    if before == {"state": verdict.state.value, "value": value}:
        return "known"
    said = {"answer": verdict.state, "value": value, "swapped": swapped, "seconds": verdict.seconds}
    tx.execute(query("give_verdict"), about | said)
    had_value = before is not None and before["value"] is not None
    _follow(tx, review_id, author, had_value or value is not None, takes_back=value is None)
    return "changed" if before is not None and before["state"] != LabelState.DRAFT else "new"


def _check(verdict: Verdict, lowest: int, highest: int) -> int | None:
    """The value of a verdict, which fits its state and the scale."""
    value = verdict.value
    assert (value is not None) == (verdict.state == LabelState.SUBMITTED)
    if value is not None and not lowest <= value <= highest:
        raise ConfigError(f"The verdict {value} is not between {lowest} and {highest}.")
    return value


def _follow(
    tx: Transaction, review_id: int, author: str, has_other_values: bool, takes_back: bool = False
) -> None:
    """Count the verdicts on a locked review, and let rewards or preferences follow where values changed."""
    tally = tx.execute(query("tally_review"), {"review_id": review_id}).fetchone()
    assert tally is not None
    if not has_other_values:
        runs.announce(tx, tally["run_id"])  # a group may have waited for it
    elif tally["other_id"] is None:
        _reward(tx, tally, author, takes_back)
    else:
        _prefer(tx, tally)


def _reward(tx: Transaction, tally: Mapping[str, Any], author: str, takes_back: bool) -> None:
    """The mean of the verdicts is the reward of their name.

    A verdict that is taken back leaves alone what was said under the name since, outside the review.
    """
    detail: dict[str, Any] = {"review": tally["id"], "verdicts": tally["verdicts"]}
    value, weight = tally["mean"], tally["weight"]
    if not tally["verdicts"]:
        value, weight, detail["taken_back"] = 0.0, 0.0, True
    judgement = rewards.Judgement(
        tally["experience_id"], value, tally["name"], tally["source"], author, weight, detail
    )
    if takes_back:
        rewards.hold(tx, [judgement])  # so that no correction comes between
        values = {"review_id": tally["id"]}
        if tx.execute(query("find_correction"), values).fetchone() is not None:
            runs.announce(tx, tally["run_id"])
            return
    rewards.judge(tx, [judgement])


def _prefer(tx: Transaction, tally: Mapping[str, Any]) -> None:
    """The side that most verdicts are for is preferred."""
    values = {
        "review_id": tally["id"],
        "run_id": tally["run_id"],
        "first_id": tally["experience_id"],
        "other_id": tally["other_id"],
        "source": tally["source"],
        "side": tally["side"],
    }
    if tx.execute(query("record_decision"), values).fetchone() is None:
        return
    if tally["side"]:
        tx.execute(query("prefer"), values)
    # Not before: an adoption that writes this very pair locks these rows after it.
    rows = (tally["experience_id"], tally["other_id"])
    pair_labels.hold(tx, rows)
    tx.execute(query("uphold_preferences"), values)
    pair_labels.follow(tx, rows)
    runs.announce(tx, tally["run_id"])
