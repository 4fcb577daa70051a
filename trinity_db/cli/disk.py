"""How much disk a run uses, for `trinity-db status RUN`: an estimate of its tables, the size of its files."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity_db.database import Transaction
    from trinity_db.store.runs import Run

SAMPLE_ROWS = 1_000  # whose text, payloads and processing records are looked at: 20 ms


def use(tx: "Transaction", run: "Run", num_rows: int) -> dict[str, Any]:
    """About how many rows and bytes a run has by family of tables, and the bytes of its files seen from here.

    Args:
        num_rows: its experiences.
    """
    from trinity_db.schema.queries import query

    values = {"run_id": run.id, "rows": num_rows, "sample": SAMPLE_ROWS}
    tables = {
        row["family"]: {"rows": row["rows"], "bytes": row["bytes"]}
        for row in tx.execute(query("status_disk"), values)
    }
    return {
        "tables": tables,
        "checkpoint_bytes": _checkpoint_bytes(tx, run),
        "archive_bytes": _archive_bytes(tx, run),
    }


def describe(disk: Mapping[str, Any]) -> str | None:
    """The same in a few lines; None for a run without anything."""
    lines = [
        f"{family}: about {found['rows']} rows, {megabytes(found['bytes'])}"
        for family, found in disk["tables"].items()
        if found["rows"]
    ]
    for name in ("checkpoint", "archive"):
        if disk[f"{name}_bytes"]:
            lines.append(f"{name} files: {megabytes(disk[f'{name}_bytes'])}")
    return "\n".join(lines) or None


def megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def _checkpoint_bytes(tx: "Transaction", run: "Run") -> int:
    """Bytes in folders that name this run as their owner. A path in the database proves nothing."""
    from trinity_db.settings import home
    from trinity_db.store import instances, policies
    from trinity_db.trainer.checkpoints import folder

    store = instances.known(tx)
    if store is None:
        return 0
    identity: dict[str, Any] = {"store": str(store)} | run.identity
    parents = [path.parent for policy in policies.with_checkpoint(tx, run.id) for path in policy.folders]
    places = {*parents, *folder.places(home() / "checkpoints" / run.name, identity)}
    return sum(
        bytes_in(place)
        for place in places
        if place.is_absolute() and folder.is_owned_by(place, json.dumps(identity)) and not place.is_symlink()
    )


def _archive_bytes(tx: "Transaction", run: "Run") -> int | None:
    """Bytes in the Lance tables that this very store writes; None in an object store."""
    from trinity_db import archive
    from trinity_db.store import instances, payloads

    store = instances.known(tx)
    tables = payloads.archives(tx, run.id, store) if store else []
    folders = [archive.folder(table) for table, is_own in tables if is_own]
    found = [bytes_in(place) for place in folders if place is not None]
    return sum(found) if len(found) == len(folders) else None


def bytes_in(folder: Path) -> int:
    """Bytes of the files below a folder, without those that are deleted meanwhile. Follows no links."""
    found = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found += Path(parent, name).lstat().st_size
    return found
