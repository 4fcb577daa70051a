"""Writes the measurements to `build/gpu.json` and `build/gpu.md`, and prints them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import report
from benchmarks.gpu.speed import Row
from benchmarks.peer import ROOT

PLACE = ROOT / "build"


def write(facts: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write both files, and print the table."""
    PLACE.mkdir(exist_ok=True)
    told = {"facts": dict(facts), "rows": [asdict(row) for row in rows]}
    (PLACE / "gpu.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    text = markdown(facts, rows)
    (PLACE / "gpu.md").write_text(text, encoding="utf-8")
    print(text)


def markdown(facts: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """A column for each number that any row has."""
    units = list(dict.fromkeys(unit for row in rows for unit in row.measured))
    lines = [
        (
            row.size,
            row.what,
            row.who,
            *(report.number(row.measured.get(unit)) for unit in units),
            row.note,
        )
        for row in rows
    ]
    head = ("size", "what", "who", *units, "note")
    return f"{report.table(head, lines)}\n{report.facts_line(facts)}"
