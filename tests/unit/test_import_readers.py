"""Reading files of every kind, and files that are broken in every way."""

import datetime
import decimal
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from trinity_db.data.files.readers import open_rows
from trinity_db.data.records.records import MAX_RECORD_BYTES
from trinity_db.data.rejects import MAX_ROW_CHARACTERS, Rejected
from trinity_db.errors import ConfigError, ImportFileError

ROWS: list[dict[str, Any]] = [
    {"prompt": "one", "chosen": "é", "n": 1},
    {"prompt": "two", "chosen": "–", "n": 2},
    {"prompt": "three", "chosen": "🙂", "n": 3},
]
JSON_LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def rows_of(path: Path, split: str | None = None) -> list[Any]:
    return [row for _, row in open_rows(path, split)]


def reasons_of(path: Path) -> dict[int, str]:
    return {line: row.reason for line, row in open_rows(path) if isinstance(row, Rejected)}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "ROWS.JSONL", "a.b.jsonl"])
def test_json_lines_are_read_with_their_line_numbers(tmp_path: Path, name: str) -> None:
    assert list(open_rows(write(tmp_path / name, JSON_LINES))) == list(enumerate(ROWS, 1))


@pytest.mark.parametrize("name", ["rows.json", "rows.json.gz"])
def test_json_is_a_list_of_objects_or_an_object_of_columns(tmp_path: Path, name: str) -> None:
    columns = {column: [row[column] for row in ROWS] for column in ROWS[0]}
    assert rows_of(write(tmp_path / name, json.dumps(ROWS).encode())) == ROWS
    assert rows_of(write(tmp_path / name, json.dumps(columns).encode())) == ROWS


def test_parquet_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert list(open_rows(tmp_path / "rows.parquet")) == list(enumerate(ROWS, 1))


def test_arrow_files_and_streams_and_feather_are_read(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    for name, new in (("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with pa.OSFile(str(tmp_path / name), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    pyarrow.feather.write_feather(table, tmp_path / "rows.feather")
    for name in ("file.arrow", "stream.arrow", "rows.feather"):
        assert list(open_rows(tmp_path / name)) == list(enumerate(ROWS, 1)), name


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two folders that the real `datasets` wrote: `one`, in two shards, and `two`, with two splits."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one", num_shards=2)
    datasets.DatasetDict(train=data, test=data.select([0])).save_to_disk(tmp_path / "two")
    return tmp_path


def test_a_saved_data_set_is_read(saved: Path) -> None:
    assert list(open_rows(saved / "one")) == list(enumerate(ROWS, 1))


def test_all_splits_or_one_of_a_saved_data_set_are_read(saved: Path) -> None:
    assert list(open_rows(saved / "two")) == list(enumerate([*ROWS, ROWS[0]], 1))
    assert rows_of(saved / "two", "test") == ROWS[:1]


def test_an_unknown_split_names_the_nearest(saved: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        open_rows(saved / "two", "trian")
    with pytest.raises(ConfigError, match="has no splits"):
        open_rows(saved / "one", "train")


def test_a_saved_data_set_that_lacks_a_part_is_an_error(saved: Path) -> None:
    (saved / "two" / "test" / "state.json").unlink()
    with pytest.raises(ImportFileError, match=r"is not whole, state\.json is missing"):
        open_rows(saved / "two")
    next((saved / "one").glob("*.arrow")).unlink()
    with pytest.raises(ImportFileError, match=r"is not whole, data-.*arrow is missing"):
        open_rows(saved / "one")


def test_json_columns_of_datasets_are_what_is_written_in_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = [{"meta": {"a": 1}, "calls": [{"x": [1]}]}, {"meta": {"b": ["c"]}, "calls": [{"x": "y"}]}]
    features = datasets.Features(meta=datasets.Json(), calls=datasets.List(datasets.Json()))
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "one")
    assert rows_of(tmp_path / "one") == rows


def test_what_json_does_not_know_becomes_json_values(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5)
    row = {
        "at": [{"time": moment}],
        "price": decimal.Decimal("1.5"),
        "took": datetime.timedelta(seconds=90),
        "tags": [("a", 1)],
        "kind": "x",
        "none": None,
    }
    types = {
        "tags": pa.map_(pa.string(), pa.int64()),
        "kind": pa.dictionary(pa.int8(), pa.string()),
        "none": pa.binary(),
    }
    arrays = {name: pa.array([value], types.get(name)) for name, value in row.items()}
    pq.write_table(pa.table(arrays), tmp_path / "rows.parquet")
    assert rows_of(tmp_path / "rows.parquet") == [
        {
            "at": [{"time": "2026-01-02T03:04:05"}],
            "price": 1.5,
            "took": 90.0,
            "tags": {"a": 1},
            "kind": "x",
            "none": None,
        }
    ]


def test_a_table_row_that_json_cannot_hold_is_rejected_alone(tmp_path: Path) -> None:
    text = pa.array([b"fine", b"\xff", b"fine", b"fine"], pa.binary()).view(pa.string())
    image = pa.array([None, None, b"\x89PNG", None], pa.binary())
    year_12000 = 10_000 * 365 * 86_400
    time = pa.array([0, 0, 0, year_12000], pa.timestamp("s"))
    pq.write_table(pa.table({"text": text, "image": image, "time": time}), tmp_path / "rows.parquet")
    first = rows_of(tmp_path / "rows.parquet")[0]
    assert first == {"text": "fine", "image": None, "time": "1970-01-01T00:00:00"}
    assert reasons_of(tmp_path / "rows.parquet") == {
        2: "is not UTF-8",
        3: "holds bytes, which have no JSON form",
        4: "holds a time outside Python's range",
    }


def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": 2}')
    assert list(open_rows(path)) == [(1, {"a": 1}), (4, {"a": 2})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": ', "is not JSON: Expecting value"),
        (b"prompt,answer", "is not JSON: Expecting value"),
        (b'{"a": "\xff"}', "is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "is not UTF-8"),
        (b"[1, 2]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b'{"a": NaN}', "is not JSON: NaN is not a number"),
        (b'{"a": -Infinity}', "is not JSON: -Infinity is not a number"),
        (b'{"a": -1e400}', "is not JSON: -1e400 is too large"),
        (b'{"b": [{"a": 1, "a": 2}]}', "is not JSON: the name 'a' occurs twice in an object"),
        (b"[" * 100_000, "is not JSON: maximum recursion depth exceeded"),
        (b'{"a": ' + b"1" * 5_000 + b"}", "is not JSON: Exceeds the limit"),
    ],
)
def test_a_bad_line_is_rejected_alone(tmp_path: Path, line: bytes, reason: str) -> None:
    path = write(tmp_path / "rows.jsonl", b'{"a": 0}\n' + line.replace(b"\n", b"") + b'\n{"a": 2}\n')
    found = list(open_rows(path))
    assert [row for row in found if row[0] != 2] == [(1, {"a": 0}), (3, {"a": 2})]
    rejected = found[1][1]
    assert isinstance(rejected, Rejected)
    assert rejected.reason.startswith(reason)
    assert len(rejected.row) <= MAX_ROW_CHARACTERS


def test_a_bad_item_of_a_list_is_rejected_alone(tmp_path: Path) -> None:
    items = [
        '{"a": [1], "b": "]"}',
        '{"a": {"b": 1, "b": 2}}',
        '{"a": 3}',
        '[{"a": NaN}]',
        '{"a": 1e400}',
        "4",
    ]
    path = write(tmp_path / "rows.json", (" [" + " ,\n".join(items) + "\n] ").encode())
    assert [(line, row) for line, row in open_rows(path) if not isinstance(row, Rejected)] == [
        (1, {"a": [1], "b": "]"}),
        (3, {"a": 3}),
    ]
    assert reasons_of(path) == {
        2: "is not JSON: the name 'b' occurs twice in an object",
        4: "is not JSON: NaN is not a number",
        5: "is not JSON: 1e400 is too large",
        6: "is not a JSON object",
    }
    assert [row.row for _, row in open_rows(path) if isinstance(row, Rejected)] == [items[1], *items[3:]]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_line_of_64_megabytes_is_rejected_in_constant_memory(tmp_path: Path, name: str) -> None:
    long = b'{"a": "' + b"x" * 64 * 2**20 + b'"}\n'
    path = write(tmp_path / name, b'{"a": 0}\n' + long + b'{"a": 2}\n')
    del long
    tracemalloc.start()
    found = list(open_rows(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row for row in found if row[0] != 2] == [(1, {"a": 0}), (3, {"a": 2})]
    assert reasons_of(path) == {2: "is longer than 8 MiB"}
    assert peak < 4 * MAX_RECORD_BYTES


def test_a_line_just_within_the_limit_is_read(tmp_path: Path) -> None:
    line = b'{"a": "' + b"x" * (MAX_RECORD_BYTES - 10) + b'"}\n'
    assert len(line) == MAX_RECORD_BYTES
    assert len(rows_of(write(tmp_path / "rows.jsonl", line))[0]["a"]) == MAX_RECORD_BYTES - 10


def test_a_cut_off_last_line_is_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", JSON_LINES[:-20])
    assert list(reasons_of(path)) == [3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b"", "is empty"),
        ("rows.parquet", b"", "is empty"),
        ("rows.jsonl", b"\n\n", "holds no rows"),
        ("rows.json", b"[]", "holds no rows"),
        ("rows.tsv", b"a\tb\n", r"unknown type of file; known are \.jsonl"),
        ("rows.tsv.gz", b"a,b\n", r"unknown type of file; known are \.jsonl"),
        ("rows.parquet.gz", b"a,b\n", r"unknown type of file; known are \.jsonl"),
        ("rows", b"a,b\n", r"unknown type of file; known are \.jsonl"),
        ("rows.json", b'[{"a": 1}, {"a"', "is not JSON: Expecting"),
        ("rows.json", b'{"a": [1]}\n{"a": [2]}\n', r"is not JSON: Extra data.* name it \.jsonl"),
        ("rows.json", b'["\xff"]', "is not UTF-8, from byte 2 on"),
        ("rows.json", b'{"a": [1], "a": [2]}', "is not JSON: the name 'a' occurs twice in an object"),
        ("rows.json", b'{"a": [1], "b": [1, 2]}', "columns differ in length"),
        ("rows.json", b'{"a": 1}', "must be a list of objects, or an object of columns"),
        ("rows.json", b'"a"', "must be a list of objects, or an object of columns"),
        ("rows.parquet", b"PAR1 and then nothing", "cannot be read"),
        ("rows.arrow", b"ARROW1 and then nothing", "cannot be read"),
        ("rows.feather", b"anything", "cannot be read"),
    ],
)
def test_a_file_without_rows_is_an_error_that_names_it(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(ImportFileError, match=message) as raised:
        rows_of(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_strange_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match="no such file"):
        open_rows(tmp_path / "rows.jsonl")
    with pytest.raises(
        ImportFileError, match=r"no such file\. If it is a data set of the Hub: trinity-db download a/b"
    ):
        open_rows(Path("a/b"))
    with pytest.raises(ImportFileError, match="is a folder that save_to_disk did not write"):
        open_rows(tmp_path)


def test_an_element_of_a_json_list_that_is_no_object_is_rejected_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.json", b'[{"a": 1}, 2, {"a": 3}]')
    assert reasons_of(path) == {2: "is not a JSON object"}
    assert len(rows_of(path)) == 3


def test_a_truncated_gzip_gives_the_rows_before_the_break(tmp_path: Path) -> None:
    numbers = [{"n": number, "square": number**2} for number in range(50_000)]
    packed = gzip.compress("".join(json.dumps(row) + "\n" for row in numbers).encode())
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    seen: list[Any] = []
    with pytest.raises(ImportFileError, match="breaks off after line") as raised:
        seen.extend(row for _, row in open_rows(path))
    assert len(seen) > 10_000
    assert seen == numbers[: len(seen)]
    assert f"line {len(seen)}:" in str(raised.value)


def test_what_is_not_gzip_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(JSON_LINES)
    with pytest.raises(ImportFileError, match="cannot be read: Not a gzipped file"):
        rows_of(tmp_path / "rows.jsonl.gz")


def test_a_truncated_parquet_gives_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    whole = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole[:-20])
    with pytest.raises(ImportFileError, match="cannot be read"):
        rows_of(tmp_path / "rows.parquet")


def test_a_truncated_arrow_stream_gives_the_rows_before_the_break(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    table = pa.table({"n": list(range(4_000))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000)
    path.write_bytes(path.read_bytes()[:-4_000])
    seen: list[Any] = []
    with pytest.raises(ImportFileError, match="breaks off after row 3000"):
        seen.extend(row for _, row in open_rows(path))
    assert seen == [{"n": number} for number in range(3_000)]


def test_the_position_grows_to_the_size_of_the_file(tmp_path: Path) -> None:
    numbers = [{"n": number} for number in range(5_000)]
    pq.write_table(pa.Table.from_pylist(numbers), tmp_path / "rows.parquet")
    write(tmp_path / "rows.json", json.dumps(numbers).encode())
    for suffix in (".jsonl", ".jsonl.gz"):
        write(tmp_path / f"rows{suffix}", "".join(json.dumps(row) + "\n" for row in numbers).encode())
    for path in tmp_path.iterdir():
        source = open_rows(path)
        positions = [source.position for _ in source]
        assert positions == sorted(positions), path
        assert len(set(positions)) > 1 or path.stat().st_size < 2**16, path
        assert source.position == source.total_bytes == path.stat().st_size, path
