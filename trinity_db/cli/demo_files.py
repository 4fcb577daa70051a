"""Files that demos leave in the store's folder: rows to import, and configurations."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity_db.data.records.records import Kind
    from trinity_db.postgres.connection import Database


def import_tasks(
    database: "Database", folder: Path, name: str, rows: Sequence[dict[str, str]], kind: "Kind" = "tasks"
) -> None:
    """Write rows to a file and import it. Importing again has no effect."""
    from trinity_db.data.files.readers import open_rows
    from trinity_db.data.importer import import_rows
    from trinity_db.data.records.columns import Columns

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_rows(database, open_rows(path), Columns(kind), name, lambda done, total: None)


def write_config(folder: Path, content: dict[str, Any]) -> Path:
    """Write the configuration of a run, and return its path."""
    import yaml

    path = folder / f"{content['name']}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)
