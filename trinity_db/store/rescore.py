"""Rows that are judged again: which are due, who holds them, and what becomes of their rewards.

The unit is the rollout group. Its rows are judged by one worker, and its new rewards are written in one
transaction, or none of them: a draw never compares rewards of two judges. The rows are not leased by it, so
that they are drawn and trained on meanwhile, with the rewards that they have at the draw.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import DictRow

from trinity_db.database import Transaction
from trinity_db.errors import ConfigError
from trinity_db.schema.queries import query
from trinity_db.schema.states import Outcome
from trinity_db.store import processing, rewards
from trinity_db.store.processing import Verdict
from trinity_db.store.rewards import RewardEvent

SOURCE = "rescore"  # of the reward events, and the processor of the records in `processing`
JUDGES = ("score", SOURCE)  # sources whose statements a later judgement replaces, with those of workflows
REPLACED = ("explore", *JUDGES)
WITHDRAWN = {"withdrawn": "the steps say this no more"}


@dataclass(frozen=True)
class Plan:
    """By which list of steps a run is judged again, and which lists it had."""

    run_id: int
    steps: str
    """JSON: of each step its name, the versions of the lists that name it, and those that have the same."""
    is_whole: bool
    """Whether the list is all that judges the run's rows: what other steps said counts no more."""
    names: Sequence[str]
    version: int | None
    """Of the list; None while it is not recorded, since a plan alone changes nothing."""


@dataclass(frozen=True)
class Selection:
    """Which rows of a run are judged again: whole groups, each with a row that meets all conditions."""

    versions: Sequence[int] | None = None
    """Policy versions that wrote a row's oldest token; None: all."""
    tasksets: Sequence[str] | None = None
    where: str | None = None
    """A condition in SQL on the columns of experience_view, and on taskset."""

    @property
    def is_all(self) -> bool:
        """Whether no row is left out."""
        return self.versions is None and self.tasksets is None and self.where is None


@dataclass(frozen=True)
class Claim:
    """A group that a worker holds, with what is due of it."""

    group_id: int
    attempt: int
    due: Mapping[int, tuple[str, ...]]
    """Its rows that are to be judged, each with the names of the steps that are to judge it. A row without
    any is due because steps that are gone count in its reward."""


@dataclass
class Counted:
    """What a rescore has done."""

    groups: int = 0
    rows: int = 0
    changed: int = 0
    """Rows that have another reward than before."""
    kept: int = 0
    """Rows with a statement that a person or a program put in the place of a step's. It stands."""
    failed: int = 0
    """Rows that could not be judged. Their groups keep the rewards that they have."""
    refused: int = 0
    """Groups that another worker had taken over."""
    failed_groups: set[int] = field(default_factory=set)

    def add(self, other: "Counted") -> None:
        """Count what was done since."""
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
    """How to judge a run again by a list of steps, as `Step.record` describes them.

    Args:
        is_recorded: Record the list as a version of the run's scoring steps, if it is none yet.
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
            "held": [number for number, of in lists.items() if step["name"] in of],
            "same": [number for number, of in lists.items() if of.get(step["name"]) == step],
        }
        for step in stored
    ]
    return Plan(run_id, json.dumps(steps), is_whole, [step["name"] for step in stored], version)


def select(tx: Transaction, run: str, selection: Selection) -> list[int]:
    """The groups with a row that is selected.

    Raises:
        ConfigError: the condition is none that the server understands.
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
        found = tx.execute(f"{rows} WHERE {' AND '.join(conditions)} ORDER BY group_id".encode(), values)
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate[:2] not in ("22", "25", "42"):
            raise
        raise ConfigError(f"--where {selection.where}: {error.diag.message_primary}") from None
    return [row["group_id"] for row in found]


def last_group(tx: Transaction, run_id: int) -> int:
    """The newest rollout group: later ones are judged by the run's processors."""
    row = tx.execute(query("last_group"), {"run_id": run_id}).fetchone()
    assert row is not None
    return int(row["id"])


def due_groups(tx: Transaction, plan: Plan, until: int, among: Sequence[int] | None = None) -> dict[int, int]:
    """The groups with rows that are to be judged, each with the number of these rows.

    Args:
        until: Groups up to this id.
        among: Of these groups; None: of all.
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
) -> list[Claim]:
    """Lease up to `limit` of these groups in which rows are due.

    What is due is read under the lease: another worker may have judged a group since it was listed.

    Args:
        suspect: Leave out groups that were claimed so often without a verdict.
    """
    values = {"worker_id": worker_id, "group_ids": list(group_ids), "limit": limit, "suspect": suspect}
    attempts = {row["group_id"]: row["attempt"] for row in tx.execute(query("claim_rescore"), values)}
    if not attempts:
        return []
    due: dict[int, dict[int, tuple[str, ...]]] = {id: {} for id in attempts}
    for row in tx.execute(query("due_rows"), _values(plan, max(attempts), list(attempts))):
        due[row["group_id"]][row["id"]] = tuple(row["steps"])
    tx.execute(query("end_rescore"), {"group_ids": [id for id in attempts if not due[id]]})
    return [Claim(id, attempts[id], rows) for id, rows in due.items() if rows]


def _values(plan: Plan, until: int, among: Sequence[int] | None) -> dict[str, Any]:
    values = {"run_id": plan.run_id, "steps": plan.steps, "whole": plan.is_whole}
    return values | {"until": until, "among": among}


def processors_are_behind(tx: Transaction, run_id: int) -> bool:
    """Whether a new row waits for its first judgement."""
    return tx.execute(query("unprocessed_row"), {"run_id": run_id}).fetchone() is not None


def finish(
    tx: Transaction,
    plan: Plan,
    worker_id: int,
    claims: Sequence[Claim],
    verdicts: Mapping[int, Sequence[Verdict]],
) -> Counted:
    """Write the verdicts on the due rows of whole groups; returns what came of them.

    The new statements of a group follow its old ones if each of these rows was judged. Otherwise the failures
    are recorded, and the group keeps its rewards.

    Args:
        verdicts: By group.
    """
    held = _hold(tx, worker_id, claims)
    failed = {
        claim.group_id for claim in held if any(v.outcome != Outcome.PASSED for v in verdicts[claim.group_id])
    }
    whole = [claim for claim in held if claim.group_id not in failed]
    errors = [v for id in failed for v in verdicts[id] if v.outcome != Outcome.PASSED]
    done = Counted(len(whole), failed=len(errors), refused=len(claims) - len(held), failed_groups=failed)
    if whole:
        tx.execute(query("lock_rescored"), {"group_ids": [claim.group_id for claim in whole]})
    asked = {id: names for claim in whole for id, names in claim.due.items()}
    passed = [verdict for claim in whole for verdict in verdicts[claim.group_id]]
    rewards.record(tx, plan.run_id, SOURCE, _events(tx, plan, passed, asked, done), None, plan.version)
    _record(tx, plan, [*passed, *errors])
    tx.execute(query("end_rescore"), {"group_ids": [claim.group_id for claim in held]})
    done.rows = len(passed)
    return done


def _hold(tx: Transaction, worker_id: int, claims: Sequence[Claim]) -> list[Claim]:
    values = {"worker_id": worker_id, "group_ids": [claim.group_id for claim in claims]}
    attempts = {row["group_id"]: row["attempt"] for row in tx.execute(query("hold_rescore"), values)}
    return [claim for claim in claims if attempts.get(claim.group_id) == claim.attempt]


def _record(tx: Transaction, plan: Plan, verdicts: Sequence[Verdict]) -> None:
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
    verdicts: Sequence[Verdict],
    asked: Mapping[int, Collection[str]],
    done: Counted,
) -> list[RewardEvent]:
    """What is written of rows, by the rule of reward_part_view; the rows are locked."""
    parts: dict[int, dict[str, DictRow]] = {verdict.id: {} for verdict in verdicts}
    for row in tx.execute(query("read_parts"), {"ids": list(parts)}):
        parts[row["experience_id"]][row["name"]] = row
    written: list[RewardEvent] = []
    for verdict in verdicts:
        before = parts[verdict.id]
        kept = {name for name, part in before.items() if part["source"] not in REPLACED}
        said = {event.name for event in verdict.events}
        events = [event for event in verdict.events if event.name not in kept]
        events += [
            RewardEvent(part["rollout_id"], name, part["value"], 0.0, part["about_id"], WITHDRAWN)
            for name, part in before.items()
            if part["source"] in JUDGES and part["weight"] and name not in said
            if _is_over(plan, name, asked[verdict.id])
        ]
        done.kept += not kept.isdisjoint(said)
        done.changed += _reward(before.values()) != _reward(_follow(before, events).values())
        written += events
    return written


def _is_over(plan: Plan, name: str, asked: Collection[str]) -> bool:
    """Whether a statement that no new one follows counts no more: its step was asked, or is gone."""
    step = next((step for step in plan.names if name == step or name.startswith(f"{step}/")), None)
    return plan.is_whole if step is None else step in asked


def _follow(before: Mapping[str, DictRow], events: Sequence[RewardEvent]) -> dict[str, Mapping[str, Any]]:
    return {**before, **{event.name: {"value": event.value, "weight": event.weight} for event in events}}


def _reward(parts: Iterable[Mapping[str, Any]]) -> float | None:
    """The sum, in an order that does not depend on which statement came first."""
    found = sorted(part["value"] * part["weight"] for part in parts)
    return sum(found) if found else None
