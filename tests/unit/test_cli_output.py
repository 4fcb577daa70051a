import io
import json
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trinity_db.cli import formats, output
from trinity_db.cli.formats import Format
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.insight.columns import Column
from trinity_db.insight.formats import ROW_GROUP
from trinity_db.insight.words import cell


class Terminal(io.StringIO):
    """40 columns wide; what it got is read without its colours."""

    def isatty(self) -> bool:
        return True

    def getvalue(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", super().getvalue())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    return Terminal()


def written(
    format: Format, columns: Sequence[Column], rows: Sequence[tuple[Any, ...]], out: io.StringIO | None = None
) -> str:
    out = out or io.StringIO()
    formats.write(format, columns, iter(rows), out)
    return out.getvalue()


TWO = (Column("id", "int8"), Column("text", "text"))


def test_a_table_in_a_pipe_is_as_wide_as_it_needs_to_be() -> None:
    lines = written(Format.TABLE, TWO, [(1, "x" * 500), (22, "y")]).splitlines()
    assert [line.rstrip() for line in lines[2:]] == [" 1  " + "x" * 500, "22  y"]


def test_a_table_loses_no_text_on_a_narrow_terminal(terminal: Terminal) -> None:
    text = "".join(map(str, range(100)))
    shown = written(Format.TABLE, TWO, [(1, text)], terminal)
    assert "".join(shown.split()[3:]).removeprefix("1") == text
    assert all(len(line) <= 40 for line in shown.splitlines())


def test_a_table_too_wide_for_its_terminal_has_a_block_for_each_row(terminal: Terminal) -> None:
    columns = [Column(f"c{number}", "int8") for number in range(4)]
    shown = written(Format.TABLE, columns, [(1, 2, 3, 4), (5, 6, 7, 8)], terminal)
    assert [line.split() for line in shown.splitlines()] == [
        *(["row", "1"], ["c0", "1"], ["c1", "2"], ["c2", "3"], ["c3", "4"]),
        *(["row", "2"], ["c0", "5"], ["c1", "6"], ["c2", "7"], ["c3", "8"]),
    ]


def test_a_picture_has_a_panel_for_each_column_beside_the_first_and_is_the_same_each_time() -> None:
    columns = [Column("policy_version", "int4"), Column("right_answers", "numeric"), Column("n", "int8")]
    rows = [(0, Decimal("0.25"), 3), (5, None, 4), (10, Decimal("0.75"), 5)]
    drawn = written(Format.SVG, columns, rows)
    assert drawn.count('id="axes_') == 2
    assert "<!-- right answers -->" in drawn
    assert written(Format.SVG, columns, rows) == drawn
    assert "<svg" in written(Format.SVG, columns, [])


@pytest.mark.parametrize("columns", [TWO, TWO[:1], [Column("id", "int8"), Column("ids", "int8", True)]])
def test_what_is_no_number_is_not_drawn(columns: Sequence[Column]) -> None:
    with pytest.raises(ConfigError, match="A picture needs numeric columns"):
        written(Format.SVG, columns, [])


def test_a_long_table_shows_its_beginning_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    shown = written(Format.TABLE, TWO[:1], [(number,) for number in range(formats.TABLE_ROWS + 5)])
    assert shown.splitlines()[-1].strip() == str(formats.TABLE_ROWS - 1)
    assert capsys.readouterr().err == "The first 1000 of 1005 rows; use --format csv for all.\n"


def test_text_of_models_commands_no_terminal() -> None:
    shown = written(Format.TABLE, TWO, [(1, "\x1b[31mred\x07 [bold]x[/bold] :smile:")])
    assert "\\x1b[31mred\\x07 [bold]x[/bold] :smile:" in shown


def test_a_table_is_exact_and_tells_null_from_nothing() -> None:
    values = (None, "", 0.1 + 0.2, Decimal("2.500"), Decimal("100"), True, [1, None], b"ab")
    assert [cell(value) for value in values] == [
        *("NULL", "", "0.30000000000000004", "2.5", "100", "true", "[1, null]", "61 62 (2 bytes)")
    ]


def test_json_is_valid_whatever_the_values() -> None:
    values = (
        float("nan"),
        float("-inf"),
        Decimal("2"),
        Decimal("2.5"),
        b"\x01",
        date(2026, 1, 2),
        {"a": [1]},
    )
    columns = [Column(f"c{number}", "text") for number in range(len(values))]
    [row] = json.loads(written(Format.JSON, columns, [values]), parse_constant=pytest.fail)
    assert list(row.values()) == ["NaN", "-Infinity", 2, 2.5, "\\x01", "2026-01-02", {"a": [1]}]


def test_json_without_rows_is_an_empty_array() -> None:
    assert json.loads(written(Format.JSON, TWO, [])) == []


def test_csv_has_a_header_and_quotes_what_needs_it() -> None:
    columns = (*TWO, Column("more", "jsonb"))
    assert written(Format.CSV, columns, [(1, 'say "a,b"\n', {"k": True}), (2, None, None)]) == (
        'id,text,more\n1,"say ""a,b""\n","{""k"": true}"\n2,,\n'
    )


def parquet(columns: Sequence[Column], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    out = io.TextIOWrapper(io.BytesIO(), write_through=True)
    formats.write(Format.PARQUET, columns, iter(rows), out)
    return pq.read_table(pa.BufferReader(out.buffer.getvalue()))


def test_parquet_keeps_the_types() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    table = parquet(
        [
            *(Column("i", "int4"), Column("f", "float8"), Column("b", "bool"), Column("t", "timestamptz")),
            *(Column("avg", "numeric"), Column("money", "numeric", precision=10, scale=2)),
            *(Column("j", "jsonb"), Column("enum", "unknown"), Column("a", "int8", is_array=True)),
        ],
        [(1, 0.5, True, now, Decimal("0.25"), Decimal("1.50"), {"k": 1}, "ready", [1, None]), (None,) * 9],
    )
    assert [str(field.type) for field in table.schema] == [
        *("int32", "double", "bool", "timestamp[us, tz=UTC]", "double", "decimal128(10, 2)"),
        *("string", "string", "list<element: int64>"),
    ]
    first, empty = table.to_pylist()
    assert list(first.values()) == [
        *(1, 0.5, True, now, 0.25, Decimal("1.50"), '{"k": 1}', "ready", [1, None])
    ]
    assert set(empty.values()) == {None}


def test_parquet_is_written_in_groups_and_has_a_schema_without_rows() -> None:
    assert parquet(TWO, [(number, "x") for number in range(ROW_GROUP + 1)]).num_rows == 10_001
    assert parquet(TWO, []).column_names == ["id", "text"]


def write_half(path: Path) -> None:
    with output.opened(path) as out:
        out.write("half")
        out.flush()
        raise ZeroDivisionError


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError):
        write_half(path)
    assert path.read_text() == "before"
    with output.opened(path) as out:
        out.write("whole")
    assert path.read_text() == "whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("path", ["missing/rows.csv", "file/rows.csv", "."])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrinityError, match="cannot be written"), output.opened(tmp_path / path):
        pass
