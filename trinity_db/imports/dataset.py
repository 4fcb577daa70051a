"""A data set in the store: a run of kind `data` and a taskset of the same name.

Responses that are compared with others (preferences, trajectories, traces) are rollouts in the group of their
task; demonstrations stand alone. Everything is ready at once. Traces have their tokens; the others get them
from the trainer that adopts them. Knows no files; `importer` reads those.
"""

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from psycopg.types.json import Jsonb

from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError
from trinity_db.imports import known_prompts
from trinity_db.imports.records import (
    Demonstration,
    Kind,
    Preference,
    Record,
    Response,
    Task,
    Trajectory,
    Unpaired,
    said,
)
from trinity_db.imports.traces import TokenSequence, Trace
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
    """What all records with responses have, in the form of rows."""

    key: UUID
    task: Task
    response: Response
    grouped: bool = True
    model: str | None = None
    reward: tuple[str, float] | None = None  # the name of the event and its value
    extra: dict[str, Any] | None = None
    step: int = 0
    """Which sequence of its attempt it is; those from 1 on follow the first one."""
    sequence: TokenSequence | None = None
    """Its tokens, where it has any; its texts then stand there too."""
    by_step: bool = False
    """Whether the reward is that of the step, since others of the attempt have another one."""

    @property
    def lengths(self) -> tuple[int, int] | tuple[None, None]:
        """Of prompt and response, in tokens."""
        if self.sequence is None:
            return None, None
        return self.sequence.num_tokens - self.sequence.num_trained, self.sequence.num_trained


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


def check_names(tx: Transaction, taskset: str | None, data: str) -> None:
    """Make sure that made tasks and responses can go into a taskset and a data set of these names.

    Raises:
        ConfigError: a name belongs to a run or to tasks of another kind, or the database cannot hold it.
    """
    runs.check_name(data)
    if data in runs.names(tx) and runs.find(tx, data).kind != RunKind.DATA:
        raise ConfigError(f"processors.made.data: '{data}' is a training run; name a data set.")
    if taskset is not None:
        runs.check_name(taskset)
        _check_tasks_are(tx, taskset, of_responses=False)


def prepare(tx: Transaction, names: Sequence[str]) -> None:
    """Make tasksets and data sets of these names if need be, and lock them until the transaction ends.

    Raises:
        ConfigError: the database cannot hold a name.
    """
    for name in names:
        runs.check_name(name)
        tx.execute(query("create_taskset"), {"name": name})
    if names:
        runs.lock_tasksets(tx, names)


def add(tx: Transaction, name: str, record: Task | Demonstration) -> int | None:
    """Write one record into a taskset or data set that is prepared; returns the id of the task or row.

    Returns:
        None: it is there already, or a task with the same prompt, as far as `known_prompts.complete` made
        sure of it.

    Raises:
        ConfigError: the name belongs to a run, or to tasks of another kind.
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
        case Trace():
            return _steps(record)
    raise AssertionError(f"{type(record).__name__} has no response")


def _steps(trace: Trace) -> list[_Response]:
    """The sequences of a trace. The first one is known by all of the trace, as its record is."""
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
    """Write responses that are not there yet; returns the ids of their experiences."""
    reserved = tx.execute(query("reserve_ids"), {"count": len(responses)}).fetchall()
    places = _join_groups(tx, run_id, name, responses)
    rollouts, experiences, texts, arrays, events = [], [], [], [], []
    rollout_id: int | None = None
    for ids, place, response in zip(reserved, places, responses, strict=True):
        experience_id = ids["experience_id"]
        if not response.step:
            rollout_id = ids["rollout_id"] if response.grouped else None
        if rollout_id is not None and not response.step:
            rollouts.append(
                (rollout_id, run_id, place.group_id, place.ordinal, 1, "finished", response.model)
            )
        of = (experience_id, run_id, place.group_id, rollout_id)
        experiences.append((*of, response.step, "ready", response.key, *response.lengths))
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
    """Prompt and response as text, then as messages with their tools, then what has no place of its own."""
    task, reply = response.task, response.response
    prompt = task.prompt if response.sequence is None else response.sequence.prompt
    as_json = (task.messages, task.tools if task.messages else None, reply, response.extra or None)
    return prompt, said(reply), *(None if isinstance(one, str | None) else Jsonb(one) for one in as_json)


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
    """Write rows into a table of the store by COPY in binary form."""
    statement = f"COPY trinity.{table} ({', '.join(columns)}) FROM STDIN (FORMAT binary)"
    with tx.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        # An enum travels as its text; psycopg knows no binary form of the type's name.
        copy.set_types(["text" if "." in kind else kind for kind in columns.values()])
        for row in rows:
            copy.write_row(row)
