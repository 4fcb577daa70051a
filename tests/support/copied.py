"""All that a store holds of a run, table by table, in a form in which two stores can be compared.

It asks the server which tables and columns there are, and knows by itself what refers to what: nothing here
uses the code that copies. A column that it does not know fails the test that meets it.
"""

from collections.abc import Sequence
from typing import Any

from trinity_db.postgres.connection import Database, Transaction
from trinity_db.store import payloads

OF_THE_STORE = {
    "schema_version",
    "archive",
    "minhash",
    "overlap",
    "rescore",
    "retention",
    "store_instance",
    "sweep",
}
OF_REVIEWS = "t.review_id IN (SELECT id FROM trinity.review WHERE run_id = ANY(%(runs)s))"
OWNER = {
    "run": "t.id = ANY(%(runs)s)",
    "taskset": "t.id = ANY(%(tasksets)s)",
    "task": "t.taskset_id = ANY(%(tasksets)s)",
    "batch_item": "t.batch_id IN (SELECT id FROM trinity.batch WHERE run_id = ANY(%(runs)s))",
    "call": "t.agent_id IN (SELECT id FROM trinity.agent WHERE run_id = ANY(%(runs)s))",
    "label": OF_REVIEWS,
    "decision": OF_REVIEWS,
    "reward_event": "coalesce((SELECT run_id FROM trinity.rollout WHERE id = t.rollout_id),"
    " (SELECT run_id FROM trinity.experience WHERE id = t.experience_id)) = ANY(%(runs)s)",
}
OF_EXPERIENCES = "t.experience_id IN (SELECT id FROM trinity.experience WHERE run_id = ANY(%(runs)s))"
REFERENCES = {
    "run_id": "run", "taskset_id": "taskset", "task_id": "task", "worker_id": "worker",
    "judge_id": "worker",
    "group_id": "rollout_group", "floor": "rollout_group", "rollout_id": "rollout",
    "experience_id": "experience", "chosen_id": "experience", "rejected_id": "experience",
    "source_id": "experience", "origin_id": "experience", "preference_id": "preference", "batch_id": "batch",
    "setting_id": "run_setting", "evaluation_id": "evaluation", "agent_id": "agent",
    "other_id": "experience", "review_id": "review",
    "synthesis_id": "synthesis", "source_task_id": "task",
}  # fmt: skip
PRESENT = {"xact", "ready_xact", "computed_xact", "stopped_at", "snapshot"}
"""Of these columns only whether there is something."""
LOCAL = {"snapshot", "checkpoint", "resume_from", "archive_row", "archive_number", "place", "key_hash"}

Contents = dict[str, list[dict[str, Any]]]


def contents(database: Database, runs: Sequence[str], tasksets: Sequence[str]) -> Contents:
    """The rows of every table that are of these runs and tasksets; for ids stand their ranks, or keys."""
    with database.transaction() as tx:
        values = {
            "runs": _ids(tx, "run", runs),
            "tasksets": _ids(tx, "taskset", tasksets),
        }
        found = {table: _rows(tx, table, values) for table in _tables(tx)}
    ids = [row["id"] for row in found["experience"]]
    arrays = payloads.select(database, "read_payloads", {"ids": ids})
    data = {row["experience_id"]: bytes(row["data"]) for row in arrays}
    for row in found["payload"]:
        row["data"] = data[row["experience_id"]]
    return _compared(found)


def _ids(tx: Transaction, table: str, names: Sequence[str]) -> list[int]:
    rows = tx.execute(
        f"SELECT id FROM trinity.{table} WHERE name = ANY(%s)".encode(), [list(names)]
    ).fetchall()
    assert len(rows) == len(names), (table, names)
    return [row["id"] for row in rows]


def _tables(tx: Transaction) -> list[str]:
    rows = tx.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'trinity' ORDER BY tablename")
    return [row["tablename"] for row in rows if row["tablename"] not in OF_THE_STORE]


def _rows(tx: Transaction, table: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    columns = [
        row["attname"]
        for row in tx.execute(
            "SELECT attname FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [f'trinity."{table}"'],
        )
    ]
    owner = OWNER.get(table) or ("t.run_id = ANY(%(runs)s)" if "run_id" in columns else OF_EXPERIENCES)
    key = tx.execute(
        "SELECT string_agg(format('t.%%I', a.attname), ', '"
        " ORDER BY array_position(i.indkey, a.attnum)) AS key"
        " FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)"
        " WHERE i.indrelid = %s::regclass AND i.indisprimary",
        [f'trinity."{table}"'],
    ).fetchone()
    assert key is not None
    return list(
        tx.execute(
            f'SELECT t.* FROM trinity."{table}" t WHERE {owner} ORDER BY {key["key"]}'.encode(), values
        )
    )


def _compared(found: Contents) -> Contents:
    names: dict[str, dict[int, Any]] = {
        table: {row["id"]: number for number, row in enumerate(rows)}
        for table, rows in found.items()
        if rows and "id" in rows[0]
    }
    names["run"] = {row["id"]: number for number, row in enumerate(found["run"])}
    names["taskset"] = {row["id"]: "a taskset" for row in found["taskset"]}
    names["task"] = {row["id"]: row["key"] for row in found["task"]}
    compared = {table: [_row(table, row, names) for row in rows] for table, rows in found.items()}
    for table in (
        "task",
        "task_stat",
        "taskset",
    ):  # their order is another one, where tasks were there before
        compared[table].sort(key=repr)
    return compared


def _row(table: str, row: dict[str, Any], names: dict[str, dict[int, Any]]) -> dict[str, Any]:
    cells = {}
    for column, value in row.items():
        if column in LOCAL or (table in ("task", "taskset") and column == "created_at"):
            continue
        if column == "id":
            cells[column] = names[table][value]
        elif column in PRESENT:
            cells[column] = value is not None
        elif column in REFERENCES or column.endswith("_id"):
            target = REFERENCES[column]
            cells[column] = None if value is None else names[target or table].get(value, "none of these")
        else:
            cells[column] = repr(value) if isinstance(value, float) else value  # also what equals nothing
    return cells
