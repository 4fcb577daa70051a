"""The summary of an import and its file of rejected rows."""

import json
from pathlib import Path

import pytest

from trinity_db.data.rejects import MAX_ROW_CHARACTERS, Rejected, RejectsFile, Summary, rejects_path


def test_rejected_rows_are_written_with_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "rejects" / "set-tasks.jsonl"
    with RejectsFile(path) as file:
        file.add(3, Rejected.of("'prompt' is missing", {"a": "é\ud800"}))
        file.add(9, Rejected.of("is not JSON", "x" * 10_000))
    first, second = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert (first["line"], first["reason"]) == (3, "'prompt' is missing")
    assert json.loads(first["row"]) == {"a": "é\ud800"}
    assert second == {"line": 9, "reason": "is not JSON", "row": "x" * MAX_ROW_CHARACTERS}


def test_a_row_that_json_cannot_write_is_rejected_all_the_same() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (10**5_000, deep, {(1, 2): 3}, Silent()):
        rejected = Rejected.of("is bad", {"prompt": "p", "x": value, 5: 6})
        assert (rejected.reason, rejected.row) == (
            "is bad",
            'cannot be written as JSON; its columns: ["prompt", "x"]',
        )


def test_an_import_without_rejects_removes_the_file_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "set-tasks.jsonl"
    path.write_text("old", encoding="utf-8")
    with RejectsFile(path):
        pass
    assert not path.exists()


def test_the_summary_counts_reasons_and_keeps_the_first_line_of_each() -> None:
    summary = Summary()
    for line in (4, 7, 9):
        summary.count_reject(line, Rejected("'prompt' is null" if line < 9 else "is not JSON", f"row {line}"))
    assert summary.rejected == 3
    assert {reason: (c.count, c.first_line, c.first_row) for reason, c in summary.reasons.items()} == {
        "'prompt' is null": (2, 4, "row 4"),
        "is not JSON": (1, 9, "row 9"),
    }


def test_the_rejects_file_stands_below_home_whatever_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    assert rejects_path("../a b", "tasks") == tmp_path / "rejects" / ".._a_b-tasks.jsonl"
