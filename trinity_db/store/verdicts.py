"""Verdicts of people on queued rows and pairs: claims, verdicts, and their effects.

A verdict changes rewards or preferences in the transaction that writes it, so the next draw uses them. Its
review is locked first, then data sets, groups, rows and pairs in the order given in `rewards`. A claim
expires when its holder stops renewing it, and passes to the next person.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from trinity_db.errors import ConfigError, LeaseLost, NotFound
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import LabelState
from trinity_db.schema.typed_rows import RewardPart
from trinity_db.store import pair_labels, rewards, runs

LEASE_SECONDS = 120.0  # a living session renews its claims several times within it


@dataclass(frozen=True)
class ReviewClaim:
    """A row or a pair claimed by one person."""

    label_id: int
    attempt: int
    """Fencing token: a verdict with an older number is refused."""
    review_id: int
    name: str
    lowest: int
    highest: int
    prompt: str
    messages: Any
    """The prompt as a list of messages; None if it was plain text."""
    responses: tuple[str, ...]
    """The response; for a pair, A and then B."""
    experience_ids: tuple[int, ...]
    swapped: bool | None
    """Whether A is the second row of the review; None for a single row."""

    @property
    def is_pair(self) -> bool:
        """Whether two rows are compared."""
        return len(self.responses) == 2

    @property
    def is_graded(self) -> bool:
        """Whether the scale has more values than good (1) and bad (0)."""
        return not self.is_pair and (self.lowest, self.highest) != (0, 1)


@dataclass(frozen=True)
class PersonVerdict:
    """A person's verdict on a claim."""

    state: LabelState
    value: int | None = None
    """For a pair 1: A is better, -1: B is better, 0: neither. None unless submitted."""
    seconds: float | None = None
    """Time that the person took."""
    blind: bool | None = None
    """Whether the rewards were hidden from the person; None: unknown."""


def claim(
    tx: Transaction, run_id: int, author: str, pairs: bool, lease_seconds: float = LEASE_SECONDS
) -> ReviewClaim | None:
    """Claim the oldest row or pair that waits for this person's verdict; None if none exists.

    Which response of a pair is A is random for each claim.
    """
    values = {"run_id": run_id, "author": author, "pairs": pairs, "lease_seconds": lease_seconds}
    after = 0
    while (row := tx.execute(query("lock_next_review"), values | {"after": after}).fetchone()) is not None:
        after = row["id"]
        lot = {"review_id": after, "swapped": random.SystemRandom().random() < 0.5}
        if (taken := tx.execute(query("claim_review"), values | lot).fetchone()) is not None:
            return read(tx, taken["id"])
    return None


def read(tx: Transaction, label_id: int) -> ReviewClaim:
    """Read a claim as shown to its person.

    Raises:
        NotFound: if the claim does not exist.
    """
    row = tx.execute(query("read_claim"), {"label_id": label_id}).fetchone()
    if row is None:
        raise NotFound(f"There is no label {label_id}.")
    responses = [row["response"] or ""]
    if row["is_pair"]:
        responses.insert(0 if row["swapped"] else 1, row["other_response"] or "")
    return ReviewClaim(
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


def reward_parts(tx: Transaction, claim: ReviewClaim) -> list[RewardPart]:
    """Return the parts of the rewards of a claim's rows, for a person who asks to see them."""
    return cast(
        list[RewardPart],
        tx.execute(query("read_reward_parts"), {"ids": list(claim.experience_ids)}).fetchall(),
    )


def renew(tx: Transaction, claims: Sequence[ReviewClaim], lease_seconds: float = LEASE_SECONDS) -> set[int]:
    """Extend claims; returns the labels of claims that had not expired."""
    values = {"ids": [claim.label_id for claim in claims], "attempts": [claim.attempt for claim in claims]}
    rows = tx.execute(query("renew_claims"), values | {"lease_seconds": lease_seconds})
    return {row["id"] for row in rows}


def release(tx: Transaction, claim: ReviewClaim) -> None:
    """Release a claim, for another person or the same one later. Idempotent."""
    tx.execute(query("release_claim"), {"label_id": claim.label_id, "attempt": claim.attempt})


def decide(tx: Transaction, claim: ReviewClaim, author: str, verdict: PersonVerdict) -> None:
    """Write a verdict on a claim and apply its effects. Idempotent.

    Raises:
        LeaseLost: if the claim expired, and another person or session has it.
        NotFound: if the row left the queue, for example because its run was deleted.
        ConfigError: if the value is outside the scale.
    """
    value = _check(verdict, claim.lowest, claim.highest)
    if value is not None and claim.swapped:
        value = -value
    tx.execute(query("lock_review"), {"label_id": claim.label_id})
    values = {"label_id": claim.label_id, "attempt": claim.attempt, "answer": verdict.state, "value": value}
    manner = {"seconds": verdict.seconds, "blind": verdict.blind}
    if tx.execute(query("decide_label"), values | manner).fetchone() is None:
        label = tx.execute(query("find_label"), {"label_id": claim.label_id}).fetchone()
        if label == {"attempt": claim.attempt, "state": verdict.state.value, "value": value}:
            return  # written by a transaction with an unknown commit outcome
        if label is None:
            raise NotFound("It is no longer in a queue: its run was deleted or pruned.")
        raise LeaseLost("Another person judges this now: your claim has expired.")
    _follow(tx, claim.review_id, author, verdict.state == LabelState.SUBMITTED)


def submit(
    tx: Transaction, claim: ReviewClaim, author: str, value: int, seconds: float | None = None
) -> None:
    """Judge a claim: a row with a value of its scale; a pair with 1 for A, -1 for B, 0 for neither."""
    decide(tx, claim, author, PersonVerdict(LabelState.SUBMITTED, value, seconds))


def discard(tx: Transaction, claim: ReviewClaim, author: str, seconds: float | None = None) -> None:
    """Mark a claim as impossible to judge: it counts as an answer without a value."""
    decide(tx, claim, author, PersonVerdict(LabelState.DISCARDED, seconds=seconds))


def skip(tx: Transaction, claim: ReviewClaim, author: str, seconds: float | None = None) -> None:
    """Leave a claim to other people; this person is not asked about it again."""
    decide(tx, claim, author, PersonVerdict(LabelState.SKIPPED, seconds=seconds))


def last_decided(tx: Transaction, run_id: int, author: str, pairs: bool) -> int | None:
    """Return the label of a person's last verdict in a queue; None if none exists."""
    values = {"run_id": run_id, "author": author, "pairs": pairs}
    last = tx.execute(query("last_decided"), values).fetchone()
    return None if last is None else int(last["id"])


def undo(tx: Transaction, label_id: int, author: str, lease_seconds: float = LEASE_SECONDS) -> ReviewClaim:
    """Take a person's verdict back with its effects; returns the claim again.

    Idempotent: a verdict that was taken back already stays so.

    Raises:
        ConfigError: if a group that is drawn by its rewards would be left without one of them.
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
    tx: Transaction,
    run_id: int,
    review_id: int,
    author: str,
    verdict: PersonVerdict,
    swapped: bool | None = None,
) -> Literal["new", "changed", "known"]:
    """Write a verdict from another program; a person's last verdict counts.

    Args:
        swapped: whether the person saw the second row of the pair as A; None for a single row.

    Raises:
        NotFound: if the run has no such review.
        ConfigError: if the value is outside the review's scale, or it is a row's for a pair, or vice versa.
    """
    review = tx.execute(query("lock_given_review"), {"review_id": review_id, "run_id": run_id}).fetchone()
    if review is None:
        raise NotFound(
            f"The run has no review {review_id}: give the file to the run that it was exported from"
        )
    if review["is_pair"] != (swapped is not None):
        kind = "a pair" if review["is_pair"] else "one row"
        raise ConfigError(f"Review {review_id} is about {kind}, and the verdict is not")
    value = _check(verdict, review["lowest"], review["highest"])
    value = -value if value is not None and swapped else value
    about = {"review_id": review_id, "author": author}
    before = tx.execute(query("read_given"), about).fetchone()
    if before == {"state": verdict.state.value, "value": value}:
        return "known"
    decision = {"answer": verdict.state, "value": value, "swapped": swapped, "seconds": verdict.seconds}
    tx.execute(query("give_verdict"), about | decision)
    had_value = before is not None and before["value"] is not None
    _follow(tx, review_id, author, had_value or value is not None, takes_back=value is None)
    return "changed" if before is not None and before["state"] != LabelState.DRAFT else "new"


def _check(verdict: PersonVerdict, lowest: int, highest: int) -> int | None:
    """Check a verdict's value against its state and the scale, and return it."""
    value = verdict.value
    assert (value is not None) == (verdict.state == LabelState.SUBMITTED)
    if value is not None and not lowest <= value <= highest:
        raise ConfigError(f"The verdict {value} is not between {lowest} and {highest}.")
    return value


def _follow(
    tx: Transaction, review_id: int, author: str, has_other_values: bool, takes_back: bool = False
) -> None:
    """Count the verdicts on a locked review, and update rewards or preferences if values changed."""
    tally = tx.execute(query("tally_review"), {"review_id": review_id}).fetchone()
    assert tally is not None
    if not has_other_values:
        runs.announce(tx, tally["run_id"])  # a group may be waiting for it
    elif tally["other_id"] is None:
        _reward(tx, tally, author, takes_back)
    else:
        _prefer(tx, tally)


def _reward(tx: Transaction, tally: Mapping[str, Any], author: str, takes_back: bool) -> None:
    """Set the reward to the mean of the verdicts.

    If a verdict was taken back, a reward of the same name given since then outside the review is kept.
    """
    detail: dict[str, Any] = {"review": tally["id"], "verdicts": tally["verdicts"]}
    value, weight = tally["mean"], tally["weight"]
    if not tally["verdicts"]:
        value, weight, detail["taken_back"] = 0.0, 0.0, True
    judgement = rewards.Judgement(
        tally["experience_id"], value, tally["name"], tally["source"], author, weight, detail
    )
    if takes_back:
        rewards.hold(tx, [judgement])  # blocks concurrent corrections
        values = {"review_id": tally["id"]}
        if tx.execute(query("find_correction"), values).fetchone() is not None:
            runs.announce(tx, tally["run_id"])
            return
    rewards.judge(tx, [judgement])


def _prefer(tx: Transaction, tally: Mapping[str, Any]) -> None:
    """Prefer the side with most verdicts."""
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
    # Lock them only now: an adoption that writes this very pair locks these rows after it.
    rows = (tally["experience_id"], tally["other_id"])
    pair_labels.hold(tx, rows)
    tx.execute(query("uphold_preferences"), values)
    pair_labels.follow(tx, rows)
    runs.announce(tx, tally["run_id"])
