"""Write the measurements to `build/gpu.json` and `build/gpu.md`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from benchmarks import report
from benchmarks.gpu.measurement import Row
from benchmarks.peer import ROOT

PLACE = ROOT / "build"


def write(facts: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Replace both files."""
    PLACE.mkdir(exist_ok=True)
    content = {"facts": dict(facts), "rows": [asdict(row) for row in rows]}
    (PLACE / "gpu.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (PLACE / "gpu.md").write_text(markdown(facts, rows), encoding="utf-8")


def markdown(facts: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Format a table per stage, with a column for each figure."""
    tables = [f"## {stage}\n\n{_table(list(own))}" for stage, own in groupby(rows, lambda row: row.stage)]
    return "\n".join([*tables, report.facts_line(facts)])


def _table(rows: Sequence[Row]) -> str:
    units = list(dict.fromkeys(unit for row in rows for unit in row.measured))
    lines = [
        (row.size, row.what, row.who, *(report.number(row.measured.get(unit)) for unit in units), row.note)
        for row in rows
    ]
    return report.table(("size", "what", "who", *units, "note"), lines)
