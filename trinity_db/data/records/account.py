"""What an import read as what: columns, columns that it kept, and forms that it converted."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trinity_db.data.records.forms import Conversion, Conversions

MAX_SHAPES = 1_000  # kinds of rows that are counted apart before they are added up


@dataclass(slots=True)
class Account:
    """Counts of records by what was done with their columns. Rejected rows are not counted."""

    read: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Our field and their column."""
    kept: Counter[str] = field(default_factory=Counter)
    """Columns without a meaning for the import, which stay with the record."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Columns of a task whose names the store needs for prompt and answer."""
    converted: Counter[Conversion] = field(default_factory=Counter)
    _shapes: dict[tuple[Iterable[Any], ...], int] = field(default_factory=dict)

    def add(
        self,
        read: Iterable[tuple[str, str]],
        kept: Iterable[str],
        left_out: Iterable[str],
        converted: Conversions,
    ) -> None:
        """Count one record. `add_up` brings the counts up to date: rows of a file are alike, and one count
        for all of them is fast."""
        shape = (tuple(read), tuple(kept), tuple(left_out), frozenset(converted))
        self._shapes[shape] = self._shapes.get(shape, 0) + 1
        if len(self._shapes) > MAX_SHAPES:
            self.add_up()

    def add_up(self) -> None:
        """Add the records since the last call to the counts."""
        counts: tuple[Counter[Any], ...] = (self.read, self.kept, self.left_out, self.converted)
        for shape, count in self._shapes.items():
            for counter, names in zip(counts, shape, strict=True):
                for name in names:
                    counter[name] += count
        self._shapes.clear()

    def jsonable(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        self.add_up()
        columns: dict[str, dict[str, int]] = {}
        for (name, column), count in self.read.items():
            columns.setdefault(name, {})[column] = count
        return {
            "columns": columns,
            "kept": dict(self.kept),
            "left_out": dict(self.left_out),
            "converted": {form.name: count for form, count in self.converted.items()},
        }

    def lines(self) -> list[str]:
        """Return the counts as lines for people."""
        self.add_up()
        read = [column if name == column else f"{column} as {name}" for name, column in self.read]
        lines = [f"read: {', '.join(read)}"] if read else []
        if self.kept:
            lines.append(f"kept, not read: {', '.join(self.kept)}")
        if self.left_out:
            lines.append(f"left out, since their names are taken: {', '.join(self.left_out)}")
        for form, count in self.converted.most_common():
            lines.append(f"converted in {count}: {form.name}: {form.input} → {form.becomes}".replace("`", ""))
        return lines
