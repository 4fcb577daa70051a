"""A data set in the store: a run of kind `data` and a taskset of the same name.

Responses that are compared with others (preferences, trajectories) are rollouts in the group of their task;
demonstrations stand alone. Everything is ready at once, as text: the trainer that adopts it makes the
tokens. Knows no files; `importer` reads those.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError
from trinity_db.imports.records import Demonstration, Kind, Preference, Record, Task, Trajectory, Unpaired
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import rewards, runs

Writer = Callable[[Sequence[Record]], int]
"""Writes records of one kind in one transaction; returns how many of them were new."""

# Column names with their types: a binary COPY converts nothing.
_ROLLOUT_COLUMNS = {
    "id": "int8", "run_id": "int8", "group_id": "int8", "ordinal": "int2", "attempt": "int4",
    "state": "trinity.rollout_state", "model": "text",
}  # fmt: skip
_EXPERIENCE_COLUMNS = {
    "id": "int8", "run_id": "int8", "group_id": "int8", "rollout_id": "int8",
    "state": "trinity.experience_state", "import_key": "uuid",
}  # fmt: skip
_TEXT_COLUMNS = {
    "experience_id": "int8", "prompt": "text", "response": "text", "messages": "jsonb", "extra": "jsonb"
}  # fmt: skip


@dataclass(frozen=True)
class _Response:
    """What all records with responses have, in the form of rows."""

    key: UUID
    task: Task
    response: str
    grouped: bool = True
    model: str | None = None
    reward: tuple[str, float] | None = None  # the name of the event and its value
    extra: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Place:
    """Where a response stands among those to its task; the ids are None where it stands alone."""

    group_id: int | None
    ordinal: int


def open_writer(database: Database, kind: Kind, name: str) -> Writer:
    """The function that writes records into the taskset or data set of that name. The first records make it.

    Raises:
        ConfigError: the database cannot hold the name.
    """
    runs.check_name(name)

    def write(records: Sequence[Record]) -> int:
        with database.transaction() as tx:
            tx.execute(query("create_taskset"), {"name": name})
            runs.lock_tasksets(tx, [name])
            if kind == "tasks":
                _check_tasks_are(tx, name, of_responses=False)
                return _insert_tasks(tx, name, [record for record in records if isinstance(record, Task)])
            return _write_responses(tx, _open_data(tx, name), name, records)

    return write


def shared_prompts(database: Database, name: str) -> dict[str, int]:
    """How many tasks of a taskset have prompts that other tasksets have as well, by the names of these."""
    with database.transaction(read_only=True) as tx:
        return {row["name"]: row["tasks"] for row in tx.execute(query("shared_prompts"), {"name": name})}


def _open_data(tx: Transaction, name: str) -> int:
    """The id of the data set, made if need be."""
    runs.create(tx, name, RunKind.DATA, {})
    run = runs.find(tx, name)
    if run.kind != RunKind.DATA:
        raise ConfigError(f"'{name}' is a training run; import under another name with --name.")
    runs.check_stays(run)
    return run.id


def _check_tasks_are(tx: Transaction, name: str, of_responses: bool) -> None:
    """Keep tasks to attempt apart from those of responses, which explorers would draw as well.

    Raises:
        ConfigError: the taskset has the other ones.
    """
    row = tx.execute(query("describe_tasks"), {"name": name}).fetchone()
    assert row is not None
    if row["has_tasks"] and row["of_responses"] != of_responses:
        have = "the prompts of responses" if row["of_responses"] else "tasks to attempt"
        raise ConfigError(f"'{name}' has {have}; import under another name with --name.")


def _insert_tasks(tx: Transaction, name: str, tasks: Iterable[Task]) -> int:
    payloads = {str(task.key): json.dumps(task.payload) for task in tasks}
    values = {"name": name, "keys": list(payloads), "payloads": list(payloads.values())}
    return tx.execute(query("insert_tasks"), values).rowcount


def _write_responses(tx: Transaction, run_id: int, name: str, records: Sequence[Record]) -> int:
    pairs = [record for record in records if isinstance(record, Preference)]
    single = {record.key for record in records if not isinstance(record, Preference)}
    responses = {response.key: response for record in records for response in _responses(record)}
    values = {"run_id": run_id, "keys": list(responses)}
    ids: dict[UUID, int] = {
        row["import_key"]: row["id"] for row in tx.execute(query("find_imported"), values)
    }
    fresh = [response for key, response in responses.items() if key not in ids]
    num_added = len(single - ids.keys())
    if fresh:
        ids |= _insert_responses(tx, run_id, name, fresh)
    return num_added + _insert_pairs(tx, run_id, pairs, ids)


def _responses(record: Record) -> list[_Response]:
    match record:
        case Demonstration():
            return [_Response(record.key, record.task, record.response, grouped=False, extra=record.extra)]
        case Trajectory():
            reward = None if record.reward is None else ("reward", record.reward)
            extra = record.extra
            return [_Response(record.key, record.task, record.response, True, record.model, reward, extra)]
        case Unpaired():
            reward = ("label", float(record.label))
            return [_Response(record.key, record.task, record.response, reward=reward, extra=record.extra)]
        case Preference():
            # Known by its text alone, so that pairs over the same responses share them. A pair that a run
            # derived names its experiences: those are known by that too.
            sides = [
                Trajectory(record.task, text, None, None, {"experience": name} if name is not None else {})
                for text, name in (
                    (record.chosen, record.extra.get("chosen_experience")),
                    (record.rejected, record.extra.get("rejected_experience")),
                )
            ]
            return [_Response(side.key, side.task, side.response) for side in sides]
    raise AssertionError(f"{type(record).__name__} has no response")


def _insert_responses(
    tx: Transaction, run_id: int, name: str, responses: Sequence[_Response]
) -> dict[UUID, int]:
    """Write responses that are not there yet; returns the ids of their experiences."""
    reserved = tx.execute(query("reserve_ids"), {"count": len(responses)}).fetchall()
    places = _join_groups(tx, run_id, name, responses)
    rollouts, experiences, texts, events = [], [], [], []
    for ids, place, response in zip(reserved, places, responses, strict=True):
        experience_id, rollout_id = ids["experience_id"], ids["rollout_id"] if response.grouped else None
        if rollout_id is not None:
            rollouts.append(
                (rollout_id, run_id, place.group_id, place.ordinal, 1, "finished", response.model)
            )
        experiences.append((experience_id, run_id, place.group_id, rollout_id, "ready", response.key))
        messages = Jsonb(response.task.messages) if response.task.messages else None
        extra = Jsonb(response.extra) if response.extra else None
        texts.append((experience_id, response.task.prompt, response.response, messages, extra))
        if rollout_id is not None and response.reward is not None:
            events.append(rewards.RewardEvent(rollout_id, *response.reward))
    _copy_rows(tx, "rollout", _ROLLOUT_COLUMNS, rollouts)
    _copy_rows(tx, "experience", _EXPERIENCE_COLUMNS, experiences)
    _copy_rows(tx, "experience_text", _TEXT_COLUMNS, texts)
    rewards.record(tx, run_id, "import", events)
    return {response.key: ids["experience_id"] for ids, response in zip(reserved, responses, strict=True)}


def _join_groups(tx: Transaction, run_id: int, name: str, responses: Sequence[_Response]) -> list[_Place]:
    """A place for each response in the group of its task; tasks and groups are made if need be."""
    tasks = {str(response.task.key): response.task for response in responses if response.grouped}
    if not tasks:
        return [_Place(None, 0)] * len(responses)
    _check_tasks_are(tx, name, of_responses=True)
    _insert_tasks(tx, name, tasks.values())
    task_ids = {
        row["key"]: row["id"] for row in tx.execute(query("find_tasks"), {"name": name, "keys": list(tasks)})
    }
    members = Counter(task_ids[str(response.task.key)] for response in responses if response.grouped)
    values = {"run_id": run_id, "task_ids": list(members), "members": list(members.values())}
    groups = {row["task_id"]: row for row in tx.execute(query("join_groups"), values)}
    places = []
    for response in responses:
        group = groups[task_ids[str(response.task.key)]] if response.grouped else None
        places.append(_Place(group["id"], group["first"]) if group else _Place(None, 0))
        if group:
            group["first"] += 1
    return places


def _insert_pairs(tx: Transaction, run_id: int, pairs: Sequence[Preference], ids: dict[UUID, int]) -> int:
    if not pairs:
        return 0
    sides = [[ids[response.key] for response in _responses(pair)] for pair in pairs]
    values = {
        "run_id": run_id,
        "chosen_ids": [chosen for chosen, _ in sides],
        "rejected_ids": [rejected for _, rejected in sides],
        "margins": [pair.margin for pair in pairs],
        "extras": [json.dumps(pair.extra) if pair.extra else None for pair in pairs],
    }
    return tx.execute(query("insert_pairs"), values).rowcount


def _copy_rows(tx: Transaction, table: str, columns: dict[str, str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Write rows into a table of the store by COPY in binary form."""
    statement = f"COPY trinity.{table} ({', '.join(columns)}) FROM STDIN (FORMAT binary)"
    with tx.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        # An enum travels as its text; psycopg knows no binary form of the type's name.
        copy.set_types(["text" if "." in kind else kind for kind in columns.values()])
        for row in rows:
            copy.write_row(row)
