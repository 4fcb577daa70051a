"""Rescoring: which rows are due, which worker holds them, and their new rewards.

The unit is the rollout group. One worker scores its rows, and its new rewards are written in one transaction
or not at all, so a draw never compares rewards of two versions of the steps. Rows are not leased meanwhile:
they are drawn and trained on with the rewards that they have at the draw.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import DictRow

from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import Outcome
from trinity_db.store import processing, rewards
from trinity_db.store.processing import StepVerdict
from trinity_db.store.rewards import RewardEvent

SOURCE = "rescore"  # source of reward events, and processor in `processing`
JUDGES = ("score", SOURCE)  # sources that rescoring replaces, in addition to workflows
REPLACED = ("explore", *JUDGES)
WITHDRAWN = {"withdrawn": "no current step gives this reward"}


@dataclass(frozen=True)
class Plan:
    """List of steps to rescore a run with, and the lists that it had."""

    run_id: int
    steps: str
    """JSON: for each step its name, the list versions that name it, and the versions with the same step."""
    is_whole: bool
    """Whether this list alone scores the run's rows: rewards from other steps no longer count."""
    names: Sequence[str]
    version: int | None
    """Version of the list; None until it is recorded, since a plan changes nothing."""


@dataclass(frozen=True)
class RescoreSelection:
    """Rows of a run to rescore: complete groups, each with a row that meets all conditions."""

    versions: Sequence[int] | None = None
    """Policy versions that sampled a row's oldest token; None: all."""
    tasksets: Sequence[str] | None = None
    where: str | None = None
    """SQL condition on the columns of experience_view, and on taskset."""

    @property
    def is_all(self) -> bool:
        """Whether it includes all rows."""
        return self.versions is None and self.tasksets is None and self.where is None


@dataclass(frozen=True)
class RescoreClaim:
    """A group held by a worker, with its due rows."""

    group_id: int
    attempt: int
    due: Mapping[int, tuple[str, ...]]
    """Rows to score, each with the names of its due steps. A row without names is due because its reward
    includes steps that no longer exist."""


@dataclass
class Counted:
    """Progress of a rescore."""

    groups: int = 0
    rows: int = 0
    changed: int = 0
    """Rows whose reward changed."""
    kept: int = 0
    """Rows with a reward that a person or a program put in place of a step's; it is kept."""
    failed: int = 0
    """Rows that could not be scored. Their groups keep their rewards."""
    refused: int = 0
    """Groups that another worker had taken over."""
    failed_groups: set[int] = field(default_factory=set)

    def add(self, other: "Counted") -> None:
        """Add the counts of another part."""
        for name in ("groups", "rows", "changed", "kept", "failed", "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failed_groups |= other.failed_groups


def plan(
    tx: Transaction,
    run_id: int,
    records: Sequence[Mapping[str, Any]],
    is_whole: bool,
    is_recorded: bool = True,
) -> Plan:
    """Plan the rescoring of a run with a list of steps, given as `Step.record` describes them.

    Args:
        is_recorded: record the list as a version of the run's scoring steps, if it is new.
    """
    version = None
    if is_recorded:
        version = processing.record_steps(tx, run_id, processing.SCORE.processor, records)
    lists = {
        row["version"]: {step["name"]: step for step in row["steps"]}
        for row in tx.execute(query("read_step_lists"), {"run_id": run_id})
    }
    stored = json.loads(json.dumps(list(records)))
    steps = [
        {
            "name": step["name"],
            "held": [number for number, by_name in lists.items() if step["name"] in by_name],
            "same": [number for number, by_name in lists.items() if by_name.get(step["name"]) == step],
        }
        for step in stored
    ]
    return Plan(run_id, json.dumps(steps), is_whole, [step["name"] for step in stored], version)


def select(tx: Transaction, run: str, selection: RescoreSelection) -> list[int]:
    """Return the groups with a selected row.

    Raises:
        ConfigError: if the server cannot evaluate the condition.
    """
    conditions = []
    if selection.versions is not None:
        conditions.append("version_min = ANY(%(versions)s)")
    if selection.tasksets is not None:
        conditions.append("taskset = ANY(%(tasksets)s)")
    if selection.where is not None:
        conditions.append(f"({selection.where.replace('%', '%%')}\n)")
    rows = f"SELECT DISTINCT group_id FROM ({query('selectable_rows')}) AS experience_view"
    values = {"run": run, "versions": selection.versions, "tasksets": selection.tasksets}
    try:
        selected = tx.execute(f"{rows} WHERE {' AND '.join(conditions)} ORDER BY group_id".encode(), values)
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate[:2] not in ("22", "25", "42"):
            raise
        raise ConfigError(f"--where {selection.where}: {error.diag.message_primary}") from None
    return [row["group_id"] for row in selected]


def last_group(tx: Transaction, run_id: int) -> int:
    """Return the newest rollout group; the run's processors score later ones."""
    row = tx.execute(query("last_group"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["id"])


def due_groups(tx: Transaction, plan: Plan, until: int, among: Sequence[int] | None = None) -> dict[int, int]:
    """Return the groups with due rows, with the number of these rows.

    Args:
        until: groups up to this id.
        among: only these groups; None: all.
    """
    counted = f"SELECT group_id, count(*) AS rows FROM ({query('due_rows')}) AS due GROUP BY group_id"
    rows = tx.execute(f"{counted} ORDER BY group_id", _values(plan, until, among))
    return {row["group_id"]: row["rows"] for row in rows}


def claim(
    tx: Transaction,
    plan: Plan,
    worker_id: int,
    group_ids: Sequence[int],
    limit: int,
    suspect: int = 2**31 - 1,
) -> list[RescoreClaim]:
    """Lease up to `limit` of these groups with due rows.

    The due rows are read under the lease: another worker may have scored a group since it was listed.

    Args:
        suspect: exclude groups claimed at least this often without a verdict.
    """
    values = {"worker_id": worker_id, "group_ids": list(group_ids), "limit": limit, "suspect": suspect}
    attempts = {row["group_id"]: row["attempt"] for row in tx.execute(query("claim_rescore"), values)}
    if not attempts:
        return []
    due: dict[int, dict[int, tuple[str, ...]]] = {id: {} for id in attempts}
    for row in tx.execute(query("due_rows"), _values(plan, max(attempts), list(attempts))):
        due[row["group_id"]][row["id"]] = tuple(row["steps"])
    tx.execute(query("end_rescore"), {"group_ids": [id for id in attempts if not due[id]]})
    return [RescoreClaim(id, attempts[id], rows) for id, rows in due.items() if rows]


def _values(plan: Plan, until: int, among: Sequence[int] | None) -> dict[str, Any]:
    values = {"run_id": plan.run_id, "steps": plan.steps, "whole": plan.is_whole}
    return values | {"until": until, "among": among}


def processors_are_behind(tx: Transaction, run_id: int) -> bool:
    """Whether a new row waits for its first scoring."""
    return tx.execute(query("unprocessed_row"), {"run_id": run_id}).fetchone() is not None


def finish(
    tx: Transaction,
    plan: Plan,
    worker_id: int,
    claims: Sequence[RescoreClaim],
    verdicts: Mapping[int, Sequence[StepVerdict]],
) -> Counted:
    """Write the verdicts on the due rows of complete groups; returns the counts.

    If each of a group's due rows was scored, the new rewards follow its old ones. Otherwise the failures are
    recorded, and the group keeps its rewards.

    Args:
        verdicts: verdicts by group.
    """
    held_claims = _hold(tx, worker_id, claims)
    failed = {
        claim.group_id
        for claim in held_claims
        if any(v.outcome != Outcome.PASSED for v in verdicts[claim.group_id])
    }
    whole = [claim for claim in held_claims if claim.group_id not in failed]
    errors = [v for id in failed for v in verdicts[id] if v.outcome != Outcome.PASSED]
    done = Counted(
        len(whole), failed=len(errors), refused=len(claims) - len(held_claims), failed_groups=failed
    )
    if whole:
        tx.execute(query("lock_rescored"), {"group_ids": [claim.group_id for claim in whole]})
    due = {id: names for claim in whole for id, names in claim.due.items()}
    passed = [verdict for claim in whole for verdict in verdicts[claim.group_id]]
    rewards.record(tx, plan.run_id, SOURCE, _events(tx, plan, passed, due, done), None, plan.version)
    _record(tx, plan, [*passed, *errors])
    tx.execute(query("end_rescore"), {"group_ids": [claim.group_id for claim in held_claims]})
    done.rows = len(passed)
    return done


def _hold(tx: Transaction, worker_id: int, claims: Sequence[RescoreClaim]) -> list[RescoreClaim]:
    values = {"worker_id": worker_id, "group_ids": [claim.group_id for claim in claims]}
    attempts = {row["group_id"]: row["attempt"] for row in tx.execute(query("hold_rescore"), values)}
    return [claim for claim in claims if attempts.get(claim.group_id) == claim.attempt]


def _record(tx: Transaction, plan: Plan, verdicts: Sequence[StepVerdict]) -> None:
    if verdicts:
        tx.execute(
            query("record_rescored"),
            {
                "version": plan.version,
                "ids": [verdict.id for verdict in verdicts],
                "outcomes": [verdict.outcome.value for verdict in verdicts],
                "steps": [verdict.step for verdict in verdicts],
                "errors": [verdict.error for verdict in verdicts],
            },
        )


def _events(
    tx: Transaction,
    plan: Plan,
    verdicts: Sequence[StepVerdict],
    due: Mapping[int, Collection[str]],
    done: Counted,
) -> list[RewardEvent]:
    """Build the reward events of rows, by the rule of reward_part_view; the rows are locked."""
    parts: dict[int, dict[str, DictRow]] = {verdict.id: {} for verdict in verdicts}
    for row in tx.execute(query("read_parts"), {"ids": list(parts)}):
        parts[row["experience_id"]][row["name"]] = row
    written: list[RewardEvent] = []
    for verdict in verdicts:
        before = parts[verdict.id]
        kept = {name for name, part in before.items() if part["source"] not in REPLACED}
        judged = {event.name for event in verdict.events}
        events = [event for event in verdict.events if event.name not in kept]
        events += [
            RewardEvent(part["rollout_id"], name, part["value"], 0.0, part["about_id"], WITHDRAWN)
            for name, part in before.items()
            if part["source"] in JUDGES and part["weight"] and name not in judged
            if _is_over(plan, name, due[verdict.id])
        ]
        done.kept += not kept.isdisjoint(judged)
        done.changed += _reward(before.values()) != _reward(_follow(before, events).values())
        written += events
    return written


def _is_over(plan: Plan, name: str, due: Collection[str]) -> bool:
    """Whether a reward without a new event no longer counts: its step was due, or no longer exists."""
    step = next((step for step in plan.names if name == step or name.startswith(f"{step}/")), None)
    return plan.is_whole if step is None else step in due


def _follow(before: Mapping[str, DictRow], events: Sequence[RewardEvent]) -> dict[str, Mapping[str, Any]]:
    return {**before, **{event.name: {"value": event.value, "weight": event.weight} for event in events}}


def _reward(parts: Iterable[Mapping[str, Any]]) -> float | None:
    """Sum of the rewards, in an order independent of the order of their events."""
    values = sorted(part["value"] * part["weight"] for part in parts)
    return sum(values) if values else None
