"""Values that the store cannot hold, in every column of every form: each is a rejected row with a reason."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trinity_db.data.files.readers import open_rows
from trinity_db.data.importer import import_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.records import Kind
from trinity_db.data.rejects import Summary
from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Database

COLUMNS: dict[Kind, tuple[str, ...]] = {
    "tasks": ("prompt", "messages", "answer", "other"),
    "demonstrations": ("prompt", "messages", "completion", "other"),
    "preferences": ("prompt", "chosen", "rejected", "margin", "completion", "label", "other"),
    "trajectories": ("prompt", "messages", "response", "reward", "answer", "model", "other"),
}
PLAIN: dict[Kind, dict[str, Any]] = {
    "tasks": {"prompt": "p", "answer": "a"},
    "demonstrations": {"prompt": "p", "completion": "c"},
    "preferences": {"prompt": "p", "chosen": "c", "rejected": "d"},
    "trajectories": {"prompt": "p", "response": "c", "reward": 1.0},
}
EXTREMES = {
    "beyond a reward": "1e308",
    "far below a reward": "-1e308",
    "beyond a float": "1e999",
    "beyond an integer": "9223372036854775808",
    "an integer beyond a float": "1" + "0" * 400,
    "an integer beyond Python": "9" * 5_000,
    "beside zero": "1e-320",
    "below zero": "-0.0",
    "not a number": "NaN",
    "infinite": "-Infinity",
    "NUL": '"a\\u0000b"',
    "half a surrogate": '"a\\ud800b"',
    "a name with NUL": '{"a\\u0000": 1}',
    "a name with half a surrogate": '{"\\udfff": 1}',
    "a role with NUL": '[{"role": "user\\u0000", "content": "a"}]',
    "a message with half a surrogate": '[{"role": "user", "content": "\\ud800"}]',
    "messages that are none": "[[]]",
    "a long text": json.dumps("x" * 200_000),
    "a longer text": json.dumps("y" * (8 * 2**20)),
    "a long name": json.dumps({"k" * 200_000: 1}),
    "many names": json.dumps({str(number): number for number in range(20_000)}),
    "deep": "[" * 900 + "]" * 900,
    "deeper": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "a deep message": '[{"role": "user", "content":' + "[" * 900 + "]" * 900 + "}]",
    "nothing": "null",
    "empty": '""',
}


def load(database: Database, path: Path, kind: Kind, name: str = "set") -> Summary:
    summary = import_rows(database, open_rows(path), Columns(kind), name, lambda done, total: None)
    assert summary.read == summary.added + summary.known + summary.rejected
    return summary


def rejected_lines(summary: Summary) -> set[int]:
    if summary.rejects_path is None:
        return set()
    rows = [json.loads(line) for line in summary.rejects_path.read_text().splitlines()]
    assert all(row["reason"] for row in rows)
    return {row["line"] for row in rows}


def line_with(plain: dict[str, Any], column: str, value: str) -> str:
    """The row as JSON, with one more or another column, whose value is JSON or what passes for it."""
    rest = {name: plain[name] for name in plain if name != column}
    return f"{json.dumps(rest)[:-1]}, {json.dumps(column)}: {value}}}\n"


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_row_is_added_known_or_rejected(database: Database, tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for column in COLUMNS[kind]:
            file.writelines(line_with(PLAIN[kind], column, value) for value in EXTREMES.values())
        file.write(json.dumps({**PLAIN[kind], "prompt": "the last"}) + "\n")
    summary = load(database, path, kind)
    assert summary.read == len(COLUMNS[kind]) * len(EXTREMES) + 1
    lines = rejected_lines(summary)
    assert len(lines) == summary.rejected
    assert summary.read not in lines
    again = load(database, path, kind)
    assert (again.added, again.rejected) == (0, summary.rejected)


def test_a_reward_beyond_the_statistics_of_a_group_is_rejected(database: Database, tmp_path: Path) -> None:
    values = ["1e308", "-1e308", "1e101", "1e100", "-1e100", "0.5", "9223372036854775808"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(line_with(PLAIN["trajectories"], "reward", value) for value in values))
    summary = load(database, path, "trajectories")
    assert rejected_lines(summary) == {1, 2, 3}
    assert list(summary.reasons) == ["'reward' is beyond 1e+100"]
    with database.transaction() as tx:
        [group] = tx.execute("SELECT reward_count, reward_variance FROM trinity.rollout_group").fetchall()
    assert group["reward_count"] == 4
    assert 0 < group["reward_variance"] < float("inf")


def test_extremes_of_tables_are_rejected_too(database: Database, tmp_path: Path) -> None:
    rewards = [float("nan"), float("inf"), 1e308, 1.0]
    columns: dict[str, Any] = {"prompt": ["p"] * 4, "response": ["a", "b", "c", "d"], "reward": rewards}
    columns["at"] = pa.array([0, 2**62, -(2**62), 1], pa.timestamp("us"))
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    summary = load(database, tmp_path / "rows.parquet", "trajectories")
    assert (summary.read, summary.added, summary.rejected) == (4, 1, 3)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x00b", "\ud800", "x" * 201, "é" * 101])
def test_a_name_that_the_store_cannot_hold_is_refused(database: Database, tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(PLAIN["tasks"]) + "\n")
    with pytest.raises(ConfigError, match="name") as refused:
        load(database, path, "tasks", name)
    assert str(refused.value).isprintable()


def test_the_longest_name_is_stored(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(PLAIN["trajectories"]) + "\n")
    assert load(database, path, "trajectories", "x" * 200).added == 1
