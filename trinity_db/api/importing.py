"""Imports and exports of rows, for programs and for the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trinity_db.api.reading import arrow_needed
from trinity_db.data.dataset import shared_prompts
from trinity_db.data.files.cells import csv_reader
from trinity_db.data.files.program_rows import ProgramRows
from trinity_db.data.files.readers import open_rows
from trinity_db.data.formats import TRL, FormatReader
from trinity_db.data.importer import ImportSource, Progress, import_rows, preview_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.records import MAX_RECORD_BYTES, Kind
from trinity_db.data.rejects import Rejected, Summary
from trinity_db.data.traces.traces import MAX_TRACE_BYTES
from trinity_db.postgres.connection import Database


class Import:
    """Rows of a kind, and how they are read.

    Args:
        name: taskset or data set that they become part of.
        mapping: our name → their column.
        format: format of the rows; None: detected from the first row.

    Raises:
        ConfigError: if the mapping or the format is wrong.
    """

    def __init__(
        self, kind: Kind, name: str, mapping: Mapping[str, str] | None = None, format: str | None = None
    ) -> None:
        self.kind, self.name = kind, name
        self._mapping = dict(mapping or {})
        self._columns = Columns(kind, self._mapping)
        self._reader = FormatReader(format, kind, self._mapping)
        # Lines of these formats contain the tokens of several attempts, even if only texts are imported.
        holds_tokens = kind == "traces" or format in ("atropos", "verifiers")
        self._max_bytes = MAX_TRACE_BYTES if holds_tokens else MAX_RECORD_BYTES
        self.account = self._columns.account
        """Columns read, kept and converted, once rows have been read."""

    @property
    def format(self) -> str:
        """Format of the rows, once the first one has been read."""
        return self._reader.name or TRL

    def file(self, path: Path, split: str | None = None) -> ImportSource:
        """Return the rows of a file or folder. `split` names a split of a saved data set; None: all."""
        return open_rows(path, split, self._max_bytes, csv_reader(self._mapping, self.kind))

    def preview(self, source: ImportSource, number: int) -> list[tuple[int, str | Rejected]]:
        """Return the first records as text, or their rejections, with their lines. Writes nothing."""
        return preview_rows(source, self._columns, number, self._reader)

    def write(self, database: Database, source: ImportSource, progress: Progress) -> Summary:
        """Import all rows; see `import_rows`."""
        return import_rows(database, source, self._columns, self.name, progress, self._reader)

    def shared_prompts(self, database: Database) -> dict[str, int]:
        """Count the imported tasks whose prompts other tasksets also have, by the names of these."""
        return shared_prompts(database, self.name) if self.kind == "tasks" else {}


def import_of(
    database: Database,
    rows: Any,
    kind: Kind,
    name: str,
    mapping: Mapping[str, str] | None,
    format: str | None,
) -> Summary:
    """Import a program's rows, or those of a file if `rows` is a path."""
    done = Import(kind, name, mapping, format)
    source = done.file(Path(rows)) if isinstance(rows, str | Path) else ProgramRows(rows)
    with arrow_needed():
        return done.write(database, source, lambda position, total: None)
