"""The fields of one imported row: which of its columns have a meaning, and which a reader has taken."""

from collections.abc import Mapping
from typing import Any

from trinity_db.data.records import forms as known
from trinity_db.data.records.forms import Conversions
from trinity_db.data.records.records import Unfit

Row = dict[str, Any]
Names = tuple[tuple[str, ...], ...]
"""Columns that may have a meaning. The first tuple with a non-null column counts; two in one tuple are
ambiguous."""
Present = dict[str, tuple[str, ...]]
"""The column of each field that has a value, or two columns of which only one may have it."""


def present_columns(shape: tuple[str, ...], names: Mapping[str, Names]) -> Present:
    """Return the columns that have a meaning, among the names of columns with a value."""
    present: Present = {}
    for name, groups in names.items():
        columns = [tuple(column for column in group if column in shape) for group in groups]
        several = next((group[:2] for group in columns if len(group) > 1), None)
        if chosen := several or next((group for group in columns if group), None):
            present[name] = chosen
    return present


class Fields:
    """The fields of a future record: mapped columns, and the rest of the row to search for others.

    Attributes:
        forms: the forms that were converted.
        taken: our name and their column of each value that was read.
        kept, left_out: the other columns, after `extra`.
    """

    def __init__(
        self,
        mapped: Row,
        rest: Row,
        present: Present,
        names: Mapping[str, Names],
        labels: Mapping[str, str],
        known_columns: set[str],
    ) -> None:
        self._mapped = mapped
        self._rest = rest
        self._present = dict(present)
        self._names = names
        self._labels = labels
        self._known = known_columns
        self.forms: Conversions = set()
        self.taken: list[tuple[str, str]] = []
        self.kept: list[str] = []
        self.left_out: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the field has a value other than null."""
        if name in self._labels or name in self._mapped:
            return self._mapped.get(name) is not None
        return name in self._present

    def is_mapped(self, name: str) -> bool:
        """Whether the user's mapping names the column of a field."""
        return name in self._labels

    def take(self, name: str) -> Any:
        """Return the value; raise Unfit if it is missing or null."""
        value = self.take_optional(name)
        if value is None:
            columns = (column for names in self._names[name] for column in names)
            present = name in self._mapped or any(column in self._rest for column in columns)
            raise Unfit(f"'{self.label(name)}' is {'null' if present else 'missing'}")
        return value

    def take_optional(self, name: str) -> Any:
        """Return the value or None.

        Raises:
            Unfit: if a mapping names a column that the row lacks, or if several columns have this meaning.
        """
        if name in self._labels or name in self._mapped:
            if name not in self._mapped:
                raise Unfit(f"'{self._labels[name]}' is missing")
            self.taken.append((name, self._labels.get(name, name)))
            return self._mapped[name]
        column = self.column(name)
        if column is None:
            return None
        self.taken.append((name, column))
        del self._present[name]
        return self._rest.pop(column)

    def column(self, name: str) -> str | None:
        """Return the unmapped column that has a field's value; None without a value.

        Raises:
            Unfit: if two columns have this meaning, and neither is an empty list.
        """
        present = self._present.get(name)
        if present is None:
            return None
        filled = [column for column in present if self._rest[column] != []] if len(present) > 1 else []
        if len(filled) > 1:
            raise known.TWO_COLUMNS(*filled)
        return next(iter(filled), present[0])

    def peek(self, name: str) -> Any:
        """Return the value, which stays in its column; None without a value."""
        if name in self._labels:
            return self._mapped.get(name)
        column = self.column(name)
        return None if column is None else self._rest[column]

    def take_column(self, name: str, column: str) -> Any:
        """Return the value of a column that has this meaning in this row only; None if it is missing."""
        value = self._rest.pop(column, None)
        if value is not None:
            self.taken.append((name, column))
        return value

    def is_turn_of_tree(self) -> bool:
        """Whether the row is a turn of a tree of messages, whose text is not mapped."""
        return not self.is_mapped("text") and {"role", "parent_id"} <= self._rest.keys()

    def check_mapped(self) -> None:
        """Raise Unfit if a mapped column with a value was not read."""
        taken = {name for name, _ in self.taken}
        for name, value in self._mapped.items():
            if name not in taken and value not in (None, "", []):
                raise known.NOT_READ(self.label(name))

    def __contains__(self, name: str) -> bool:
        """Whether records of this kind have a field."""
        return name in self._names

    def label(self, name: str) -> str:
        """Return the user's name for it, for messages."""
        return self._labels.get(name, name)

    def extra(self, left_out: tuple[str, ...] = ()) -> Row:
        """Return all columns not taken. Our own exports have them in one column, `extra`.

        Nulls in columns that could have been read are missing values; other nulls are kept.
        """
        rest = {
            name: value for name, value in self._rest.items() if value is not None or name not in self._known
        }
        packed = rest.get("extra")
        if len(rest) == 1 and isinstance(packed, dict):
            rest = packed
        else:
            self.kept = [name for name in rest if name not in left_out]
            self.left_out = [name for name in rest if name in left_out]
        return {name: value for name, value in rest.items() if name not in left_out}
