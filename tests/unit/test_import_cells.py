"""CSV: what a cell is, and files that are broken in every way."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from trinity_db.data.files.cells import csv_reader, write_csv
from trinity_db.data.files.readers import open_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.rejects import Rejected
from trinity_db.errors import ImportFileError

SAID = [{"role": "user", "content": "2,5\n+ 1?"}]


def read(path: Path, content: str | bytes, **mapping: str) -> list[tuple[int, Any]]:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return list(open_rows(path, of_csv=csv_reader(mapping)))


@pytest.mark.parametrize("name", ["rows.csv", "ROWS.CSV.gz"])
def test_a_cell_is_text_and_an_empty_one_is_nothing(tmp_path: Path, name: str) -> None:
    content = '\ufeffprompt,answer,level\r\n"1,5\r\n+ ""1""?",007,\r\n\r\nyes,1e5,3\r\n'
    assert read(tmp_path / name, content) == [
        (3, {"prompt": '1,5\r\n+ "1"?', "answer": "007", "level": None}),
        (5, {"prompt": "yes", "answer": "1e5", "level": "3"}),
    ]


def test_columns_that_mean_numbers_hold_numbers(tmp_path: Path) -> None:
    content = "prompt,reward,label,margin\na,0.5,TRUE,\nb,-1,0,good\n"
    assert [row for _, row in read(tmp_path / "rows.csv", content)] == [
        {"prompt": "a", "reward": 0.5, "label": True, "margin": None},
        {"prompt": "b", "reward": -1.0, "label": 0.0, "margin": "good"},
    ]
    [(_, row)] = read(tmp_path / "rows.csv", "q,is_correct,reward\na,1,2\n", reward="is_correct")
    assert row == {"q": "a", "is_correct": 1.0, "reward": "2"}, "as the mapping says, and no other"


def test_where_they_mean_nothing_they_stay_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,label\na,007\n")
    for kind, label in (("tasks", "007"), ("demonstrations", "007"), ("preferences", 7.0), ("traces", 7.0)):
        reader = csv_reader(kind=kind)  # type: ignore[arg-type]
        assert list(open_rows(tmp_path / "rows.csv", of_csv=reader)) == [(2, {"prompt": "a", "label": label})]


def test_messages_in_a_cell_are_read_as_in_any_text(tmp_path: Path) -> None:
    def records(*cells: str) -> list[Any]:
        with (tmp_path / "made.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["prompt", "n"], *([cell, "[1]"] for cell in cells)])
        columns = Columns("tasks")
        return [one for _, row in open_rows(tmp_path / "made.csv") for one in columns.read(row)]  # type: ignore[arg-type]

    [messages] = records(json.dumps(SAID))
    assert messages.payload == {"messages": SAID, "n": "[1]"}
    texts = ["[1, 2] is a list", "[]"]
    assert [one.payload["prompt"] for one in records(*texts)] == texts
    [python] = records("[{'role': 'user', 'content': 'hi'}]")
    assert python.reason == "'prompt' looks like messages, and is not JSON"


def test_bad_rows_are_rejected_and_the_others_are_read(tmp_path: Path) -> None:
    content = b'prompt,x:json\na,1\nb\nc,2,3\n\xff,1\nd,{\n"e"f,1\ng,"[2]"\n'
    found = read(tmp_path / "rows.csv", content)
    assert [row for _, row in found if not isinstance(row, Rejected)] == [
        {"prompt": "a", "x": 1},
        {"prompt": "g", "x": [2]},
    ]
    assert {line: row.reason for line, row in found if isinstance(row, Rejected)} == {
        3: "has another number of cells than the first line",
        4: "has another number of cells than the first line",
        5: "is not UTF-8",
        6: "'x:json' is not JSON",
        7: "is not CSV: ',' expected after '\"'",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prompt;answer\na;b\n", "its delimiter is not a comma"),
        ("prompt,answer,prompt\na,b,c\n", "two columns have the name 'prompt'"),
        (b"prompt,\xff\na,b\n", "the names in its first line are not UTF-8"),
        ("prompt,answer\n", "holds no rows"),
        ('prompt,answer\na,b\nc,"d', "breaks off after line 2: unexpected end of data"),
    ],
)
def test_a_file_that_is_no_table_is_an_error_that_names_it(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(ImportFileError, match=message) as raised:
        read(tmp_path / "rows.csv", content)
    assert str(tmp_path / "rows.csv") in str(raised.value)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": 'a,"b"\r\n\rc ', "reward": 0.1, "answer": "7", "extra": {"z": [None, 1e300]}},
        {"prompt": "007", "reward": -3.0, "answer": 7},
        {"prompt": "é🙂", "answer": "", "response": "[1]", "messages": SAID},
    ]
    path = tmp_path / "rows.csv"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    write_csv(path)
    with path.open(encoding="utf-8", newline="") as file:
        assert next(csv.reader(file)) == [
            "prompt", "reward", "answer:json", "extra:json", "response", "messages:json"
        ]  # fmt: skip
    found = [
        {name: value for name, value in row.items() if value is not None}
        for _, row in open_rows(path)
        if isinstance(row, dict)
    ]
    assert found == rows
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
