"""Experience buffers of Trinity-RFT: SQLite files with pickles and tensors, and what no file may do."""

import base64
import json
import pickle
import sqlite3
import struct
import tracemalloc
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.columns import read as record_of
from trinity_db.arrays.codec import decode
from trinity_db.data.files.readers import open_rows
from trinity_db.data.formats import FormatReader, plain_pickle
from trinity_db.data.records.records import Kind
from trinity_db.data.rejects import Rejected
from trinity_db.errors import ConfigError, ImportFileError

USER = {"role": "user", "content": "1+1?"}
TWO = {"role": "assistant", "content": "2"}
LOGPROBS = np.array([-0.1, -2.5], np.float32)

# As trinity/buffer/schema/sql_schema.py makes them, in 0.6 and before it.
TABLES = """
CREATE TABLE tasks (id INTEGER PRIMARY KEY, raw_task JSON NOT NULL);
CREATE TABLE "grpo buffer" (id INTEGER PRIMARY KEY, timestamp DATETIME, task_id VARCHAR(64), run_id INTEGER,
    msg_id VARCHAR(64), model_version INTEGER, reward FLOAT, consumed INTEGER);
CREATE TABLE "grpo buffer_blob" (id INTEGER PRIMARY KEY, experience_bytes BLOB NOT NULL);
CREATE TABLE old (id INTEGER PRIMARY KEY, prompt TEXT, response TEXT, message_list JSON, reward FLOAT,
    model_version INTEGER, experience_bytes BLOB, consumed INTEGER);
CREATE TABLE dpo (id INTEGER PRIMARY KEY, chosen_message_list JSON, rejected_message_list JSON);
"""


def packed(step: int = 0, run: int = 0, logprobs: Any = LOGPROBS, **meta: Any) -> bytes:
    """An experience as `Experience.serialize` writes it."""
    from safetensors.numpy import save

    item = {
        "eid": {"batch": 1, "task": "t", "run": run, "step": step, "suffix": f"s{run}{step}"},
        "reward": 9.0,
        "info": {"model_version": 1},
        "metrics": {"seconds": 0.5},
        "prompt_length": 2,
        "prompt_text": "1+1?",
        "response_text": "2",
        "messages": [USER, TWO],
        **meta,
    }
    tensors = {"0:tokens": np.array([5, 6, 7 + step, 8], np.int32), "0:action_mask": np.array([True, True])}
    if logprobs is not None:
        tensors["0:logprobs"] = logprobs
    told = pickle.dumps({"version": 1, "num_items": 1, "items": [item]}, pickle.HIGHEST_PROTOCOL)
    data = save(tensors)
    return b"TRXP" + struct.pack("<B", 1) + struct.pack("<QQ", len(told), len(data)) + told + data


def store(path: Path, blobs: Iterable[bytes]) -> Path:
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(TABLES)
        for number, blob in enumerate(blobs, 1):
            row = (number, "t", 0, "m", 4, number / 4)
            file.execute('INSERT INTO "grpo buffer" VALUES (?, NULL, ?, ?, ?, ?, ?, 0)', row)
            file.execute('INSERT INTO "grpo buffer_blob" VALUES (?, ?)', (number, blob))
    return path


def execute(path: Path, statement: str, *values: Any) -> Path:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(statement, values)
    return path


def rows(path: Path, kind: Kind, split: str | None = None) -> list[Any]:
    """The records of a store, and why there are none."""
    reader = FormatReader(None, kind)
    found: list[Any] = []
    for _, row in open_rows(path, split):
        found += [row] if isinstance(row, Rejected) else reader.read(row)
    return [one if isinstance(one, Rejected) else record_of(kind, one) for one in found]


def test_attempts_come_with_tokens_masks_log_probabilities_and_the_reward_as_it_is_now(
    tmp_path: Path,
) -> None:
    path = store(tmp_path / "buffer.db", [packed(), packed(run=1), packed(1, run=1), packed(run=2)])
    traces = rows(path, "traces")
    assert [[one.reward for one in trace.sequences] for trace in traces] == [[0.25], [0.5, 0.75], [1.0]]
    assert {trace.task.payload["messages"][0]["content"] for trace in traces} == {"1+1?"}
    [sequence] = traces[0].sequences
    assert (sequence.prompt, sequence.response) == ("1+1?", "2")
    payload = decode(sequence.codec, base64.b64decode(sequence.data), sequence.num_tokens)
    assert payload.token_ids.tolist() == [5, 6, 7, 8]
    assert payload.action_mask.tolist() == [False, False, True, True]
    assert payload.logprobs is not None
    assert payload.logprobs.tobytes() == LOGPROBS.tobytes()
    [told] = traces[0].extra["trinity_rft"]
    assert (told["eid"]["suffix"], told["info"], told["metrics"]) == (
        "s00",
        {"model_version": 4},
        {"seconds": 0.5},
    )
    assert [line for line, _ in open_rows(path)] == [1, 2, 4]
    said = rows(path, "trajectories")
    assert [(one.response, one.reward) for one in said] == [("2", 0.25), ("2", 0.5), ("2", 0.75), ("2", 1.0)]


def test_each_table_is_read_as_what_it_holds(tmp_path: Path) -> None:
    path = store(tmp_path / "buffer.sqlite", [packed(logprobs=None)])
    execute(path, "INSERT INTO tasks VALUES (1, ?)", json.dumps({"question": "1+1?", "answer": "2"}))
    sides = (json.dumps([USER, {**TWO, "content": said}]) for said in "23")
    execute(path, "INSERT INTO dpo VALUES (1, ?, ?)", *sides)
    old = "INSERT INTO old VALUES (1, 'p', 'r', NULL, 0.5, 3, ?, 0)"
    execute(path, old, pickle.dumps(object))
    assert [task.payload for task in rows(path, "tasks", "tasks")] == [{"prompt": "1+1?", "answer": "2"}]
    [pair] = rows(path, "preferences", "dpo")
    assert (pair.task.payload, pair.chosen, pair.rejected) == ({"messages": [USER]}, "2", "3")
    [attempt] = rows(path, "trajectories", "old")
    assert (attempt.task.payload, attempt.response, attempt.reward) == ({"prompt": "p"}, "r", 0.5)
    assert [one.reason for one in rows(path, "traces", "old")] == [
        "has no tokens; import it --as trajectories to have its text"
    ]
    assert [one.reason for one in rows(path, "traces") if isinstance(one, Rejected)] == [
        "has no tokens; import it --as trajectories to have its text",
        "has no tokens; import it --as trajectories to have its text",
        "is a task; import it --as tasks",
    ]
    [trace] = rows(path, "traces", "grpo buffer")
    assert trace.sequences[0].num_trained == 2, "without log-probabilities"


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (packed()[:-9], "'experience_bytes' is cut off"),
        (packed()[:10], "'experience_bytes' is cut off"),
        (b"TRXP\x02" + packed()[5:], "'experience_bytes' has version 2; supported is 1"),
        (packed(reward=np.float64(1)),
         "'experience_bytes' is a pickle of more than plain values (STACK_GLOBAL), which is not executed"),
        (packed(eid=[1]), "'experience_bytes' has an 'eid' or an 'info' that is not an object"),
        (packed(eid={"step": "one"}), "'experience_bytes' has a 'step' that is not a whole number"),
        (packed(logprobs=np.array([-1.0], np.float32)),
         "'per_token_logps' of a turn must have one number for each token of the completion"),
        (packed(prompt_length=9), "'prompt_length' is not the length of a prompt"),
    ],
)  # fmt: skip
def test_a_damaged_row_is_rejected_and_the_others_are_read(tmp_path: Path, blob: bytes, reason: str) -> None:
    found = rows(store(tmp_path / "buffer.db", [blob, packed(run=1)]), "traces")
    assert [one.reason for one in found if isinstance(one, Rejected)] == [reason]
    assert len(found) == 2


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    bomb = Bomb(tmp_path / "run")
    with pytest.raises(ValueError, match="more than plain values"):
        plain_pickle.loads(pickle.dumps({"items": [bomb]}, protocol))
    pickle.loads(pickle.dumps(bomb, protocol))
    assert bomb.path.exists(), "the same bytes do something where they are run"
    bomb.path.unlink()
    found = rows(store(tmp_path / "buffer.db", [packed(info={"x": bomb}), pickle.dumps(bomb)]), "traces")
    assert all(isinstance(one, Rejected) for one in found)
    assert not bomb.path.exists()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_come_out_as_they_went_in(protocol: int) -> None:
    shared = ["é🙂", 1.5]
    value = {"a": [None, True, False, 0, -1, 2**80, 1e300], "b": {"c": shared, "d": shared}, "e": []}
    assert plain_pickle.loads(pickle.dumps(value, protocol)) == value
    assert plain_pickle.loads(pickle.dumps((1, (2, 3), (4, 5, 6, 7), ()), protocol)) == [
        1,
        [2, 3],
        [4, 5, 6, 7],
        [],
    ]


def test_a_small_pickle_of_a_huge_value_is_refused() -> None:
    laughs: list[Any] = ["ha"]
    for _ in range(40):
        laughs = [laughs, laughs]
    endless: list[Any] = []
    endless.append(endless)
    for value in (laughs, endless):
        with pytest.raises(ValueError, match="too large"):
            plain_pickle.loads(pickle.dumps(value))
    for broken in (b"", b"\x80\x05", pickle.dumps([1, 2])[:-3], b"]t.", b"h\x05.", b"K\x01K\x02a.", b"."):
        with pytest.raises(ValueError, match=r"."):
            plain_pickle.loads(broken)


def nested(depth: int) -> bytes:
    """A pickle of an object with one name: a tuple of a tuple twice, and so on."""
    doubled = (b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(depth))
    return b"\x80\x04}K\x01\x85" + b"".join(doubled) + b"K\x01s."


def test_a_small_pickle_takes_neither_long_nor_much_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="neither text nor number"):
            plain_pickle.loads(nested(60))
        text = "x" * 10**6
        for value in ([text] * 20_000, [{text: number} for number in range(9)]):
            with pytest.raises(ValueError, match="too large"):
                plain_pickle.loads(pickle.dumps(value))
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="a number of more than 64 bits as a name"):
        plain_pickle.loads(pickle.dumps({2**64: 1}))
    with pytest.raises(ValueError, match="a whole number that is too long"):
        plain_pickle.loads(pickle.dumps([10**5_000]))
    names = {1: "a", 2.5: "b", None: "c"}
    assert plain_pickle.loads(pickle.dumps(names)) == {"1": "a", "2.5": "b", "None": "c"}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [("[" * 200_000, "'message_list' is not JSON"), (5, "'message_list' is not text"),
     (b"\xff\xfe", "'message_list' is not JSON"), ("", "'message_list' is not JSON"),
     (f"[{'9' * 5_000}]", "'message_list' is not JSON"), (None, "'prompt' must be text, not a bytes")],
)  # fmt: skip
def test_a_column_of_another_type_rejects_its_row_alone(tmp_path: Path, messages: Any, reason: str) -> None:
    path = tmp_path / "buffer.db"
    columns = "id INTEGER, message_list, prompt, response, reward, model_version, experience_bytes"
    execute(path, f"CREATE TABLE buffer ({columns})")
    execute(path, "INSERT INTO buffer VALUES (1, ?, ?, 'r', 1.0, ?, 5)", messages, b"p", b"v")
    execute(path, "INSERT INTO buffer VALUES (2, NULL, 'p', 'r', 1.0, ?, 5)", b"v")
    execute(path, "INSERT INTO buffer VALUES (3, NULL, 'p', 'r', 1.0, 2, 5)")
    first, second, third = rows(path, "trajectories")
    assert (first.reason, second.reason) == (reason, "holds a bytes, which has no JSON form")
    assert third.reward == 1.0


def test_nothing_of_a_file_is_run_while_its_tables_are_read(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT id, NULL AS {} FROM n"
    long = "generated TEXT GENERATED ALWAYS AS (printf('%*s', 100000000, 'x')), reward FLOAT"
    path = tmp_path / "buffer.db"
    execute(path, f"CREATE TABLE buffer (ID INTEGER, prompt TEXT, response TEXT, {long})")
    execute(path, "INSERT INTO buffer (id, prompt, response, reward) VALUES (1, 'p', 'r', 0.5)")
    execute(path, f"CREATE VIEW buffer_blob AS {endless.format('experience_bytes')}")
    execute(path, f"CREATE VIEW other AS {endless.format('raw_task')}")
    execute(path, "CREATE VIRTUAL TABLE words USING fts5 (id, raw_task)")
    tracemalloc.start()
    try:
        [attempt] = rows(path, "trajectories")
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
    assert attempt.reward == 0.5


def test_tables_that_do_not_fit_one_another_are_named_in_one_line(tmp_path: Path) -> None:
    path = store(tmp_path / "buffer.db", [packed()])
    execute(path, 'DROP TABLE "grpo buffer_blob"')
    execute(path, 'CREATE TABLE "grpo buffer_blob" (id INTEGER, experience_bytes BLOB)')
    for _ in range(2):
        execute(path, 'INSERT INTO "grpo buffer_blob" VALUES (1, ?)', packed())
    with pytest.raises(ImportFileError, match="two rows of grpo buffer_blob have the same id"):
        rows(path, "traces")
    bare = execute(tmp_path / "bare.db", "CREATE TABLE buffer (reward FLOAT)")
    execute(bare, "INSERT INTO buffer VALUES (1.0)")
    with pytest.raises(ImportFileError, match=r"cannot be read: no such column: t\.id"):
        rows(bare, "traces")


def test_what_is_no_store_is_named_in_one_line(tmp_path: Path) -> None:
    path = store(tmp_path / "buffer.db", [])
    with pytest.raises(ConfigError, match="has no such table; there are: dpo, grpo buffer, old, tasks"):
        rows(path, "tasks", "task")
    with pytest.raises(ImportFileError, match="holds no rows"):
        rows(path, "tasks")
    other = execute(tmp_path / "other.db", "CREATE TABLE people (id INTEGER)")
    with pytest.raises(ImportFileError, match="is a SQLite file without a table of Trinity-RFT"):
        rows(other, "tasks")
    path.write_bytes(path.read_bytes()[:4096] + b"x" * 4096)
    with pytest.raises(ImportFileError, match=r"buffer\.db: cannot be read: "):
        rows(path, "tasks")
    (tmp_path / "text.db").write_text("no store")
    with pytest.raises(ImportFileError, match="unknown type of file"):
        open_rows(tmp_path / "text.db")
