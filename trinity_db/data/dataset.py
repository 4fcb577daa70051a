"""Data sets in the store: a run of kind `data` and a taskset of the same name.

Responses that are compared with others (preferences, trajectories, traces) are rollouts in the group of their
task; demonstrations have no group. All rows are ready at once. Traces contain tokens; other rows are
tokenized by the trainer that adopts them. Files are read by `importer`.
"""

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from psycopg.types.json import Jsonb

from trinity_db.data.records import known_prompts
from trinity_db.data.records.records import (
    Demonstration,
    Kind,
    Preference,
    Record,
    Response,
    Task,
    Trajectory,
    Unpaired,
    text_of,
)
from trinity_db.data.traces.traces import TokenSequence, Trace
from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import rewards, runs

Writer = Callable[[Sequence[Record]], int]
"""Writes records of one kind in one transaction; returns the number of new ones."""

# Column names with types: a binary COPY does not convert.
_ROLLOUT_COLUMNS = {
    "id": "int8", "run_id": "int8", "group_id": "int8", "ordinal": "int2", "attempt": "int4",
    "state": "trinity.rollout_state", "model": "text",
}  # fmt: skip
_EXPERIENCE_COLUMNS = {
    "id": "int8", "run_id": "int8", "group_id": "int8", "rollout_id": "int8",
    "step": "int2", "state": "trinity.experience_state", "import_key": "uuid", "prompt_length": "int4",
    "response_length": "int4",
}  # fmt: skip
_TEXT_COLUMNS = {
    "experience_id": "int8", "prompt": "text", "response": "text", "messages": "jsonb", "tools": "jsonb",
    "reply": "jsonb", "extra": "jsonb",
}  # fmt: skip
_PAYLOAD_COLUMNS = {"experience_id": "int8", "codec": "text", "num_tokens": "int4", "data": "bytea"}


@dataclass(frozen=True)
class _Response:
    """Row form of a record with a response."""

    key: UUID
    task: Task
    response: Response
    grouped: bool = True
    model: str | None = None
    reward: tuple[str, float] | None = None  # name and value of the event
    extra: dict[str, Any] | None = None
    step: int = 0
    """Index of the sequence in its attempt, from 0."""
    sequence: TokenSequence | None = None
    """Tokens and texts of a trace; None for other records."""
    by_step: bool = False
    """Whether the reward belongs to the step, because steps of the attempt have different rewards."""

    @property
    def lengths(self) -> tuple[int, int] | tuple[None, None]:
        """Return the lengths of prompt and response in tokens."""
        if self.sequence is None:
            return None, None
        return self.sequence.num_tokens - self.sequence.num_trained, self.sequence.num_trained


@dataclass(frozen=True)
class _Place:
    """Place of a response in its task's group; the ids are None without a group."""

    group_id: int | None
    ordinal: int


def open_writer(database: Database, kind: Kind, name: str) -> Writer:
    """Return a function that writes records into the named taskset or data set, created with the first
    records.

    Raises:
        ConfigError: if the database cannot store the name.
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


def check_names(tx: Transaction, taskset: str | None, data: str) -> None:
    """Check that synthesized tasks and responses can be written to a taskset and a data set of these names.

    Raises:
        ConfigError: if a name belongs to a run or to tasks of another kind, or the database cannot store it.
    """
    runs.check_name(data)
    if data in runs.names(tx) and runs.find(tx, data).kind != RunKind.DATA:
        raise ConfigError(f"processors.made.data: '{data}' is a training run; name a data set.")
    if taskset is not None:
        runs.check_name(taskset)
        _check_tasks_are(tx, taskset, of_responses=False)


def prepare(tx: Transaction, names: Sequence[str]) -> None:
    """Create missing tasksets and data sets of these names, and lock them until the transaction ends.

    Raises:
        ConfigError: if the database cannot store a name.
    """
    for name in names:
        runs.check_name(name)
        tx.execute(query("create_taskset"), {"name": name})
    if names:
        runs.lock_tasksets(tx, names)


def add(tx: Transaction, name: str, record: Task | Demonstration) -> int | None:
    """Write one record into a prepared taskset or data set; return the id of the task or row.

    Returns:
        None: if it exists already, or a task with the same prompt does.

    Raises:
        ConfigError: if the name belongs to a run, or to tasks of another kind.
    """
    if isinstance(record, Demonstration):
        values = {
            "run_id": _open_data(tx, name),
            "key": record.key,
            "prompt": record.task.prompt,
            "response": record.response,
            "messages": Jsonb(record.task.messages) if record.task.messages else None,
        }
        row = tx.execute(query("insert_demonstration"), values).fetchone()
        return int(row["id"]) if row is not None else None
    _check_tasks_are(tx, name, of_responses=False)
    if known_prompts.is_known(tx, name, record.payload):
        return None
    if not _insert_tasks(tx, name, [record]):
        return None
    [row] = tx.execute(query("find_tasks"), {"name": name, "keys": [str(record.key)]}).fetchall()
    return int(row["id"])


def shared_prompts(database: Database, name: str) -> dict[str, int]:
    """Count the tasks of a taskset whose prompts other tasksets also have, by the names of these."""
    with database.transaction(read_only=True) as tx:
        return {row["name"]: row["tasks"] for row in tx.execute(query("shared_prompts"), {"name": name})}


def _open_data(tx: Transaction, name: str) -> int:
    """Return the id of the data set, creating it if necessary."""
    runs.create(tx, name, RunKind.DATA, {})
    run = runs.find(tx, name)
    if run.kind != RunKind.DATA:
        raise ConfigError(f"'{name}' is a training run; import under another name with --name.")
    runs.check_stays(run)
    return run.id


def _check_tasks_are(tx: Transaction, name: str, of_responses: bool) -> None:
    """Keep tasks to attempt separate from those of responses, which explorers would draw too.

    Raises:
        ConfigError: if the taskset has the other kind.
    """
    row = tx.execute(query("describe_tasks"), {"name": name}).fetchone()
    assert row is not None
    if row["has_tasks"] and row["of_responses"] != of_responses:
        have = "the prompts of responses" if row["of_responses"] else "tasks to attempt"
        raise ConfigError(f"'{name}' has {have}; import under another name with --name.")


def _insert_tasks(tx: Transaction, name: str, tasks: Iterable[Task]) -> int:
    payloads = {str(task.key): task.payload for task in tasks}
    values = {
        "name": name,
        "keys": list(payloads),
        "payloads": [json.dumps(payload) for payload in payloads.values()],
        "digests": [known_prompts.stored_digest(payload) for payload in payloads.values()],
    }
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
            # Identified by text alone, so that pairs share equal responses. A pair derived by a run names its
            # experiences, which then identify them too.
            sides = [
                Trajectory(record.task, text, None, None, {"experience": name} if name is not None else {})
                for text, name in (
                    (record.chosen, record.extra.get("chosen_experience")),
                    (record.rejected, record.extra.get("rejected_experience")),
                )
            ]
            return [_Response(side.key, side.task, side.response) for side in sides]
        case Trace():
            return _steps(record)
    raise AssertionError(f"{type(record).__name__} has no response")


def _steps(trace: Trace) -> list[_Response]:
    """Return the sequences of a trace. The first has the key of the whole trace, like its record."""
    earned = [sequence.reward for sequence in trace.sequences]
    by_step = len(set(earned)) > 1
    return [
        _Response(
            key=uuid5(trace.key, str(step)) if step else trace.key,
            task=trace.task,
            response=sequence.response,
            model=trace.model,
            reward=None if sequence.reward is None or (step and not by_step) else ("reward", sequence.reward),
            extra=None if step else trace.extra,
            step=step,
            sequence=sequence,
            by_step=by_step,
        )
        for step, sequence in enumerate(trace.sequences)
    ]


def _insert_responses(
    tx: Transaction, run_id: int, name: str, responses: Sequence[_Response]
) -> dict[UUID, int]:
    """Write new responses; return the ids of their experiences."""
    reserved = tx.execute(query("reserve_ids"), {"count": len(responses)}).fetchall()
    places = _join_groups(tx, run_id, name, responses)
    rollouts, experiences, texts, arrays, events = [], [], [], [], []
    rollout_id: int | None = None
    for ids, membership, response in zip(reserved, places, responses, strict=True):
        experience_id = ids["experience_id"]
        if not response.step:
            rollout_id = ids["rollout_id"] if response.grouped else None
        if rollout_id is not None and not response.step:
            rollouts.append(
                (rollout_id, run_id, membership.group_id, membership.ordinal, 1, "finished", response.model)
            )
        ids_of_row = (experience_id, run_id, membership.group_id, rollout_id)
        experiences.append((*ids_of_row, response.step, "ready", response.key, *response.lengths))
        texts.append((experience_id, *_texts(response)))
        if (tokens := response.sequence) is not None:
            arrays.append((experience_id, tokens.codec, tokens.num_tokens, base64.b64decode(tokens.data)))
        if rollout_id is not None and response.reward is not None:
            about = (
                (None, *response.reward, 1.0, experience_id)
                if response.by_step
                else (rollout_id, *response.reward)
            )
            events.append(rewards.RewardEvent(*about))
    _copy_rows(tx, "rollout", _ROLLOUT_COLUMNS, rollouts)
    _copy_rows(tx, "experience", _EXPERIENCE_COLUMNS, experiences)
    _copy_rows(tx, "experience_text", _TEXT_COLUMNS, texts)
    _copy_rows(tx, "payload", _PAYLOAD_COLUMNS, arrays)
    rewards.record(tx, run_id, "import", events)
    return {response.key: ids["experience_id"] for ids, response in zip(reserved, responses, strict=True)}


def _texts(response: _Response) -> tuple[str, str, *tuple[Jsonb | None, ...]]:
    """Return prompt and response as text, then as messages with tools, then the remaining columns."""
    task, reply = response.task, response.response
    prompt = task.prompt if response.sequence is None else response.sequence.prompt
    as_json = (task.messages, task.tools if task.messages else None, reply, response.extra or None)
    return (
        prompt,
        text_of(reply),
        *(None if isinstance(value, str | None) else Jsonb(value) for value in as_json),
    )


def _join_groups(tx: Transaction, run_id: int, name: str, responses: Sequence[_Response]) -> list[_Place]:
    """Assign each response a place in its task's group, creating missing tasks and groups."""
    tasks = {str(response.task.key): response.task for response in responses if response.grouped}
    if not tasks:
        return [_Place(None, 0)] * len(responses)
    _check_tasks_are(tx, name, of_responses=True)
    _insert_tasks(tx, name, tasks.values())
    task_ids = {
        row["key"]: row["id"] for row in tx.execute(query("find_tasks"), {"name": name, "keys": list(tasks)})
    }
    members = Counter(
        task_ids[str(response.task.key)] for response in responses if response.grouped and not response.step
    )
    values = {"run_id": run_id, "task_ids": list(members), "members": list(members.values())}
    groups = {row["task_id"]: row for row in tx.execute(query("join_groups"), values)}
    places: list[_Place] = []
    for response in responses:
        if response.step:
            places.append(places[-1])
            continue
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
    """Write rows into a table of the store with a binary COPY."""
    statement = f"COPY trinity.{table} ({', '.join(columns)}) FROM STDIN (FORMAT binary)"
    with tx.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        # An enum is sent as text; psycopg has no binary form of its type.
        copy.set_types(["text" if "." in kind else kind for kind in columns.values()])
        for row in rows:
            copy.write_row(row)
