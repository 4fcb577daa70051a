"""A run out of a store: all of it as one snapshot sees it, in a folder that appears whole or not at all.

The snapshot is read only and holds no lock that a role waits for. It lasts as long as the tables take to
write; the server keeps dead rows for it meanwhile.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from psycopg import sql

from trinity_db import __version__, schema
from trinity_db.copies import folder as folders
from trinity_db.copies import tables
from trinity_db.copies.columns import form
from trinity_db.copies.folder import CheckpointEntry, Manifest, TableEntry
from trinity_db.copies.tables import Copied
from trinity_db.database import Database, Transaction
from trinity_db.errors import TrinityError
from trinity_db.models import folder_digest
from trinity_db.schema.queries import query
from trinity_db.store import instances, payloads, policies, runs
from trinity_db.weights import packed

CHUNK_ROWS = 5_000  # written at a time
CHUNK_BYTES = 16 * 2**20  # of bytes and texts in a chunk, whatever the number of rows: bounds the memory

Progress = Callable[[str, int], None]
"""Called with the table and the number of its rows that are written."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    rows: dict[str, int]
    checkpoints: list[int]
    """Versions whose files were copied."""
    data: list[str]
    num_bytes: int
    other_model: str | None
    """The run from whose checkpoint this one started, which is not part of the copy."""


@dataclass(frozen=True)
class _Missed:
    """Why files of a version are not in the copy, by version."""

    weights: dict[int, TrinityError]
    """Without these its checkpoint is not there either."""
    checkpoints: dict[int, TrinityError]


def export_run(
    database: Database, name: str, target: Path, with_checkpoints: bool, progress: Progress
) -> Exported:
    """Write a run, and the data sets and runs that it adopted rows of or made responses for, to a new folder.

    Raises:
        ConfigError: there is something at the folder's place, or no folder to make it in.
        NotFound: there is no such run, or archived arrays are not where they should be.
        TrinityError: the disk cannot be written, or a checkpoint is not what was published.

    No folder is left where there is an error.
    """
    with folders.appearing(target) as partial:
        return _export(database, name, partial, with_checkpoints, progress)


def _export(
    database: Database, name: str, partial: Path, with_checkpoints: bool, progress: Progress
) -> Exported:
    with database.transaction() as tx:
        tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        run = runs.find(tx, name)
        found = tx.execute(query("runs_of_copy"), {"run_id": run.id}).fetchall()
        names = [row["name"] for row in found]
        kept = _whole_versions(tx, run) if with_checkpoints else []
        missed = _copy_checkpoints(kept, partial, progress)
        values = {"runs": [row["id"] for row in found]}
        values["tasksets"] = [
            r["id"] for r in tx.execute(query("tasksets_of_copy"), values | {"names": names})
        ]
        entries = {}
        for copied in tables.copied_tables():
            entries[copied.name] = _write_table(tx, copied, values, partial, progress)
        kept = _whole_versions(tx, run) if with_checkpoints else []
        store = instances.known(tx)
        manifest = Manifest(
            schema_version=schema.HEAD,
            trinity_db=__version__,
            server=str(tx.info.parameter_status("server_version")),
            store=str(store) if store else None,
            exported_at=datetime.now(UTC).isoformat(),
            run=run.name,
            kind=run.kind.value,
            data=[row["name"] for row in found if row["id"] != run.id],
            tables=entries,
            checkpoints=[_entry(policy, missed) for policy in kept if policy.version not in missed.weights],
        )
    _check_missed(database, run, kept, missed)
    manifest.write(partial)
    columns = {copied.name: [c.name for c in copied.columns] for copied in tables.copied_tables()}
    (partial / folders.README).write_text(folders.describe(manifest, columns), encoding="utf-8")
    return Exported(
        rows={table: entry.rows for table, entry in entries.items()},
        checkpoints=[entry.version for entry in manifest.checkpoints],
        data=manifest.data,
        num_bytes=sum(path.stat().st_size for path in partial.rglob("*") if path.is_file()),
        other_model=_other_model(run.config) if not kept else None,
    )


def _other_model(config: Mapping[str, Any]) -> str | None:
    model = config.get("model")
    other = model.get("run") if isinstance(model, dict) else None
    return other if isinstance(other, str) else None


def _write_table(
    tx: Transaction,
    copied: Copied,
    values: Mapping[str, Any],
    partial: Path,
    progress: Progress,
) -> TableEntry:
    writer = folders.Writer(partial, copied)
    names = [column.name for column in copied.columns]
    id_column = names.index("id") if copied.has_ids else None
    done = 0
    for chunk in _chunks(tx, copied, values):
        rows = _with_archived(chunk, names) if copied.name == "payload" else chunk
        writer.write(rows, id_column)
        done += len(rows)
        progress(copied.name, done)
    return writer.close()


def _chunks(tx: Transaction, copied: Copied, values: Mapping[str, Any]) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a table, as the file has them, some at a time. A payload has its Lance table at the end."""
    forms = [form(column) for column in copied.columns]
    wires = [found.wire for found in forms]
    converters = [(number, found.to_file) for number, found in enumerate(forms) if found.to_file is not None]
    if copied.name == "payload":
        wires.append("text")
    chunk: list[tuple[Any, ...]] = []
    num_bytes = 0
    with tx.cursor() as cursor, cursor.copy(_statement(copied), values) as copy:
        copy.set_types(wires)
        for row in copy.rows():
            cells = list(row)
            for number, convert in converters:
                if cells[number] is not None:
                    cells[number] = convert(cells[number])
            chunk.append(tuple(cells))
            num_bytes += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
            if len(chunk) >= CHUNK_ROWS or num_bytes >= CHUNK_BYTES:
                yield chunk
                chunk, num_bytes = [], 0
    if chunk:
        yield chunk


def _statement(copied: Copied) -> sql.SQL:
    """A COPY of the table's rows, in the order of their key."""
    filed = tables.run_of(copied)
    chosen = [
        f"{filed} AS run_id" if filed and column.name == "run_id" else f't."{column.name}"'
        for column in copied.columns
    ]
    if copied.name == "payload":
        chosen.append(
            "(SELECT a.name FROM trinity.experience e JOIN trinity.archive a ON a.run_id = e.run_id"
            " WHERE e.id = t.experience_id AND a.number = t.archive_number)"
        )
    order = ", ".join(f't."{column.name}"' for column in copied.table.primary_key.columns)
    source = f"{tables.quoted(copied)} t WHERE {tables.condition(copied)} ORDER BY {order}"
    return sql.SQL(f"COPY (SELECT {', '.join(chosen)} FROM {source}) TO STDOUT (FORMAT binary)")


def _with_archived(chunk: Sequence[tuple[Any, ...]], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Payloads with their bytes, those in the archive too; nothing says any more that they were there."""
    owner, data, archived = names.index("experience_id"), names.index("data"), names.index("archive_row")
    number = names.index("archive_number")
    away: dict[str | None, dict[int, int]] = defaultdict(dict)
    for row in chunk:
        if row[archived] is not None:
            away[row[-1]][row[owner]] = row[archived]
    bytes_of: dict[int, bytes] = {}
    for table, archive_rows in away.items():
        bytes_of |= payloads.fetch(table, archive_rows)
    rows = []
    for row in chunk:
        cells = list(row[:-1])
        cells[data] = bytes_of.get(row[owner], row[data])
        cells[archived], cells[number] = None, 0
        rows.append(tuple(cells))
    return rows


def _whole_versions(tx: Transaction, run: runs.Run) -> list[policies.PolicyVersion]:
    """The versions that have whole weights, newest first."""
    kept = policies.with_checkpoint(tx, run.id)
    return [policy for policy in kept if not packed.is_packed(policy.checkpoint)]


def _copy_checkpoints(kept: Sequence[policies.PolicyVersion], partial: Path, progress: Progress) -> _Missed:
    """Copy the files of versions, newest first, before the tables: a run that goes on deletes old ones.

    A run may delete a checkpoint and keep the weights of its version, so each is looked at for itself.
    """
    missed = _Missed({}, {})
    for policy in kept:
        progress(f"checkpoint {policy.version}", 0)
        weights, checkpoint = folders.checkpoint_path(partial, policy.version), policy.resumed
        try:
            _copy(policy, policy.checkpoint, weights, folder_digest.verify, policy.checkpoint_hash)
        except TrinityError as error:
            shutil.rmtree(weights, ignore_errors=True)
            missed.weights[policy.version] = error
            continue
        if checkpoint is None or checkpoint.folder == policy.checkpoint:
            continue
        place = folders.resume_path(partial, _entry(policy, missed))
        assert place is not None
        try:
            _copy(policy, checkpoint.folder, place, folder_digest.verify_checkpoint, checkpoint.hash)
        except TrinityError as error:
            shutil.rmtree(place, ignore_errors=True)
            missed.checkpoints[policy.version] = error
    return missed


def _check_missed(
    database: Database, run: runs.Run, kept: Sequence[policies.PolicyVersion], missed: _Missed
) -> None:
    """Let those files be missing that the run has deleted meanwhile, but for the newest version's weights and
    the latest checkpoint with its weights, which a trainer goes on from.

    Raises:
        TrinityError: others are, or one of these was deleted while it was copied.
    """
    latest = next((policy for policy in kept if policy.is_start), None)
    with database.transaction(read_only=True) as tx:
        still = {policy.version: policy for policy in _whole_versions(tx, run)}
    for policy in kept:
        now = still.get(policy.version)
        if policy.version in missed.weights:
            error, is_there = missed.weights[policy.version], now is not None
            is_needed = policy in (kept[0], latest)
        elif policy.version in missed.checkpoints:
            error = missed.checkpoints[policy.version]
            is_there = now is not None and now.resumed == policy.resumed
            is_needed = policy == latest
        else:
            continue
        if is_there:
            raise error
        if is_needed:
            raise TrinityError(
                f"Version {policy.version}: the run deleted it while it was copied; export again, keep more "
                "versions (trainer.keep_checkpoints), or stop its trainer meanwhile."
            )


def _entry(policy: policies.PolicyVersion, missed: _Missed) -> CheckpointEntry:
    checkpoint = None if policy.version in missed.checkpoints else policy.resumed
    return CheckpointEntry(
        version=policy.version,
        sha256=policy.checkpoint_hash,
        resume_sha256=checkpoint.hash if checkpoint else None,
    )


def _copy(
    policy: policies.PolicyVersion,
    source: Path,
    target: Path,
    verify: Callable[[Path, str], bool],
    expected: str,
) -> None:
    """Copy a folder of a version.

    Raises:
        OSError: the target cannot be written.
        TrinityError: it has not the files that were recorded, or is deleted right now.
    """
    if not os.path.isdir(source):
        raise TrinityError(
            f"Version {policy.version}: there is no folder {source}; restore it, or leave out --checkpoints."
        )
    fault = TrinityError(
        f"Version {policy.version}: its files at {source} are not those that were published; "
        "restore them, or leave out --checkpoints."
    )
    try:
        shutil.copytree(source, target)
    except OSError:
        if verify(source, expected):
            raise
        raise fault from None
    if not verify(target, expected):
        raise fault
