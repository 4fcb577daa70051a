"""Experiences in processing: claim, pass, drop, retry, and finally pair."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from psycopg.rows import DictRow

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import queries, query
from trinity_db.schema.states import Outcome
from trinity_db.store import rewards, runs, scores


@dataclass(frozen=True)
class Stage:
    """A processor's stage: its steps move rows from one state to the next.

    The states' names are part of the statements' text, so that each stage can use a partial index.
    """

    processor: str
    state: str
    next_state: str
    version: int = 1
    """Version of its list of steps in this run (step_list.version)."""
    columns: tuple[str, ...] = ()
    """Columns that its steps read: names from `columns()`."""


CLEAN = Stage("clean", "raw", "clean")
SCORE = Stage("score", "clean", "scored")
STAGES = (CLEAN, SCORE)
"""All stages, in the order in which a row passes them."""

ARRAYS = {
    "payload": "the arrays of the row together, as trinity_db.arrays.codec.Payload",
    "token_ids": "[n] tokens of prompt and response",
    "action_mask": "[n] true for a token that is trained",
    "logprobs": "[k] log-probability with which each trained token was sampled; None if no policy did",
    "versions": "[k] policy version that sampled each trained token; None if no policy did",
    "temperatures": "[k] temperature of each trained token; None if all have that of the run",
}
"""Columns decoded from the bytes of the row's payload, with their meaning."""

OF_GROUPS = ("attempt_reward", "group_mean", "group_deviation", "task_groups", "staleness")
"""Columns that exist only for rows of a ready group."""

_COLUMN = re.compile(r" AS (\w+),? -- (.*)$", re.MULTILINE)
_ALWAYS = ("id", "attempt", "unanswered", "group_id", "rollout_id")
PACKED = ("codec", "num_tokens", "data")


@cache
def columns() -> dict[str, str]:
    """Columns of a row that a step may read, with their meaning; parsed from comments in `read_claimed`."""
    return dict(_COLUMN.findall(queries()["read_claimed"])) | ARRAYS


@cache
def reading(wanted: tuple[str, ...]) -> str:
    """Build the statement that reads these columns of claimed rows; bytes are read only for arrays."""
    stored = [name for name in wanted if name not in ARRAYS]
    packed = PACKED if len(stored) < len(wanted) else ()
    selected = ", ".join(dict.fromkeys((*_ALWAYS, *stored, *packed)))
    return f"SELECT {selected} FROM ({query('read_claimed')}) AS claimed ORDER BY id"


@dataclass(frozen=True)
class StepVerdict:
    """A processor's decision on one row."""

    id: int
    attempt: int
    outcome: Outcome = Outcome.PASSED
    reason: str | None = None
    detail: Mapping[str, Any] | None = None
    events: Sequence[rewards.RewardEvent] = ()
    """Rewards recorded with it."""
    model_scores: Sequence[scores.Score] = ()
    """Scores from other models, recorded with it."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Findings of steps by name, for a row that passes."""
    step: str | None = None
    """Step that dropped or failed the row."""
    priority: float | None = None
    """Product of the priority steps' results; None without priority steps."""
    made: Sequence[Any] = ()
    """Results that steps of `synthesis` made from the row."""

    @property
    def error(self) -> str | None:
        """Message of a failure."""
        return str((self.detail or {}).get("error", self.reason)) if self.outcome == Outcome.FAILED else None


@dataclass(frozen=True)
class Passed:
    """Verdicts of the previous stage on rows that it passed under the same lease."""

    stage: Stage
    verdicts: Sequence[StepVerdict]


@dataclass(frozen=True)
class Drop:
    """Reason why a row will not be trained on."""

    id: int
    reason: str
    detail: Mapping[str, Any] | None = None
    step: str | None = None
    """Processing step that dropped it."""


def claim(
    tx: Transaction,
    stage: Stage,
    run_id: int,
    worker_id: int,
    limit: int,
    max_attempts: int = 3,
    after: int = 0,
    evaluated: bool = False,
) -> list[DictRow]:
    """Lease up to `limit` rows for a stage, oldest first after the id `after`; read the columns of its steps.

    A row whose claims end without a verdict may be killing its processor. It moves to the end of the queue,
    and its last attempt is made alone, so that it takes no other rows down with it; only a claim with `after`
    0 can see that no others are left.

    Args:
        evaluated: claim only rows of evaluations.
    """
    values = {
        "after": after,
        "evaluated": evaluated,
        "run_id": run_id,
        "worker_id": worker_id,
        "limit": limit,
        "suspect": max(max_attempts - 1, 1),
    }
    claimed = tx.execute(query("claim_rows", state=stage.state), values).fetchall()
    if not claimed and not after:
        claimed = tx.execute(query("claim_suspect", state=stage.state), values).fetchall()
    return read(tx, stage.columns, [row["id"] for row in claimed])


def read(tx: Transaction, wanted: tuple[str, ...], ids: Sequence[int]) -> list[DictRow]:
    """Read these columns of rows, in order of id."""
    return tx.execute(reading(wanted), {"ids": list(ids)}, binary=True).fetchall() if ids else []


def give_up(stage: Stage, row: DictRow, max_attempts: int) -> StepVerdict | None:
    """Return the verdict on a row after too many claims without one; None: judge it."""
    if row["unanswered"] < max(max_attempts, 2):  # one crash may be caused by another row
        return None
    error = f"{row['unanswered']} times in a row the {stage.processor} processor ended before its verdict"
    return StepVerdict(
        row["id"],
        row["attempt"],
        Outcome.DROPPED,
        reason=f"{stage.processor}_crashed",
        detail={"error": error},
    )


def record_steps(tx: Transaction, run_id: int, processor: str, steps: Sequence[Mapping[str, Any]]) -> int:
    """Record a processor's list of steps; returns the version of the list in this run."""
    tx.execute(query("lock_step_lists"), {"run_id": run_id})
    values = {"run_id": run_id, "processor": processor, "steps": json.dumps(steps)}
    row = tx.execute(query("record_step_list"), values).fetchone()
    assert row is not None
    return int(row["version"])


def finish(
    tx: Transaction,
    stage: Stage,
    run_id: int,
    worker_id: int,
    verdicts: Sequence[StepVerdict],
    max_attempts: int,
    before: Passed | None = None,
) -> set[int]:
    """Move claimed rows according to their verdicts; returns the ids that this worker still held.

    A failed row is returned to the queue or, at its last attempt, dropped with its error (a dead letter). For
    a row whose lease was lost, the verdict is recorded as refused and changes nothing. No notification is
    sent: the caller's next turns process the rows further, and announce groups.

    Args:
        before: the rows are still in the state of this earlier stage, which passed all of them. They move
            once, past both stages; a failed row is returned to `stage`.
    """
    state = before.stage.state if before is not None else stage.state
    give_back = query("release_held")
    if before is not None:
        give_back = query("pass_rows", state=state, next_state=stage.state)
    locked = rewards.lock(tx, [event for verdict in verdicts for event in verdict.events])  # before the rows
    held_ids = _hold(tx, worker_id, verdicts)
    with tx.pipeline():  # one round trip
        if before is not None:
            _record(tx, before.stage, before.verdicts, held_ids)
        _record(tx, stage, verdicts, held_ids)
        judged = _bury(tx, stage, [verdict for verdict in verdicts if verdict.id in held_ids], max_attempts)
        events = [event for verdict in judged for event in verdict.events]
        rewards.write(tx, run_id, stage.processor, events, processor_version=stage.version)
        rewarded = [verdict.id for verdict in judged if verdict.events]
        for statement, outcome in (
            (query("pass_rows", state=state, next_state=stage.next_state), Outcome.PASSED),
            (query("drop_held"), Outcome.DROPPED),
            (give_back, Outcome.FAILED),
        ):
            if chosen := [verdict.id for verdict in judged if verdict.outcome == outcome]:
                tx.execute(statement, {"ids": chosen, "rewarded": rewarded})
        drops = [_drop(verdict) for verdict in judged if verdict.outcome == Outcome.DROPPED]
        record_drops(tx, run_id, stage.processor, drops)
        if events:
            if len(held_ids) < len(verdicts):
                locked = rewards.lock(tx, events)  # without the rows of refused verdicts
            rewards.follow(tx, run_id, *locked)
        if judged_scores := [score for verdict in judged for score in verdict.model_scores]:
            scores.write(tx, judged_scores)
    return held_ids


def record_drops(tx: Transaction, run_id: int, stage: str, drops: Sequence[Drop]) -> None:
    """Record why rows will not be trained on; the caller changes their state in the same transaction."""
    if drops:
        tx.execute(
            query("record_drops"),
            {
                "run_id": run_id,
                "stage": stage,
                "ids": [drop.id for drop in drops],
                "steps": [drop.step for drop in drops],
                "reasons": [drop.reason for drop in drops],
                "details": [json.dumps(drop.detail) if drop.detail else None for drop in drops],
            },
        )


def pair_groups(tx: Transaction, run_id: int, margin: float, limit: int) -> int | None:
    """Derive preferences from the rewards inside changed groups, for up to `limit` changes.

    Returns the number of new preferences; None if no change is left that no other processor has claimed.
    """
    due = tx.execute(query("take_pairings"), {"run_id": run_id, "limit": limit}).fetchall()
    if not due:
        return None
    group_ids = list({row["group_id"] for row in due})
    tx.execute(query("lock_paired_groups"), {"group_ids": group_ids})
    values = {"run_id": run_id, "margin": margin, "group_ids": group_ids}
    row = tx.execute(query("pair_groups"), values).fetchone()
    assert row is not None
    if row["pairs"]:
        runs.announce(tx, run_id)
    return int(row["pairs"])


def count_unprocessed(tx: Transaction, run_id: int, requires_reward: str | None = None) -> int:
    """Count the rows that processors can still move.

    Rows that wait for a required reward, or for the rest of their group, do not count.
    """
    values = {"run_id": run_id, "requires_reward": requires_reward}
    row = tx.execute(query("count_unprocessed"), values).fetchone()
    assert row is not None
    return int(row["rows"])


def all_judged(tx: Transaction, run_id: int) -> bool:
    """Whether no row is left to clean or score, and no processor holds one."""
    row = tx.execute(query("all_judged"), {"run_id": run_id}).fetchone()
    assert row is not None
    return bool(row["all_judged"])


def _hold(tx: Transaction, worker_id: int, verdicts: Sequence[StepVerdict]) -> set[int]:
    values = {"ids": [verdict.id for verdict in verdicts], "worker_id": worker_id}
    attempts = {verdict.id: verdict.attempt for verdict in verdicts}
    rows = tx.execute(query("hold_rows"), values)
    return {row["id"] for row in rows if row["attempt"] == attempts[row["id"]]}


def _bury(
    tx: Transaction, stage: Stage, verdicts: Sequence[StepVerdict], max_attempts: int
) -> list[StepVerdict]:
    """Turn failures without attempts left into drops; they are already recorded as failures."""
    failed = [verdict.id for verdict in verdicts if verdict.outcome == Outcome.FAILED]
    if not failed:
        return list(verdicts)
    rows = tx.execute(
        query("count_failures"),
        {"ids": failed, "processor": stage.processor, "processor_version": stage.version},
    )
    failures = {row["id"]: row["failures"] for row in rows}
    return [
        replace(v, outcome=Outcome.DROPPED, reason=f"{stage.processor}_failed", detail={"error": v.error})
        if v.outcome == Outcome.FAILED and failures[v.id] >= max_attempts
        else v
        for v in verdicts
    ]


def _record(
    tx: Transaction, stage: Stage, verdicts: Sequence[StepVerdict], held_ids: Collection[int]
) -> None:
    """Record the verdict on each row; for a row no longer held, record only that it was too late."""
    by = {"processor": stage.processor, "processor_version": stage.version}
    if late := [v for v in verdicts if v.id not in held_ids]:
        refused = {"ids": [v.id for v in late], "attempts": [v.attempt for v in late]}
        tx.execute(query("record_refused"), by | refused)
    if timely := [v for v in verdicts if v.id in held_ids]:
        values: dict[str, list[Any]] = {
            "ids": [v.id for v in timely],
            "attempts": [v.attempt for v in timely],
            "outcomes": [v.outcome.value for v in timely],
            "steps": [v.step for v in timely],
            "errors": [v.error for v in timely],
            "details": [json.dumps(v.notes) if v.notes else None for v in timely],
        }
        tx.execute(query("record_processing"), by | values)


def _drop(verdict: StepVerdict) -> Drop:
    assert verdict.reason is not None, "a row is not dropped without one"
    return Drop(verdict.id, verdict.reason, verdict.detail, verdict.step)
