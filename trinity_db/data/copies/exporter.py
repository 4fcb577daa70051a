"""Exports a run from one snapshot of a store to a folder that appears complete or not at all.

The snapshot is read-only and takes no lock that blocks a role. It stays open while the tables are written;
the server keeps dead rows for it meanwhile.
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
from trinity_db.data.copies import folder as folders
from trinity_db.data.copies import tables
from trinity_db.data.copies.columns import form
from trinity_db.data.copies.folder import CheckpointEntry, Manifest, TableEntry
from trinity_db.data.copies.tables import Copied
from trinity_db.errors import TrinityError
from trinity_db.models import folder_digest
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.store import instances, payloads, policies, runs
from trinity_db.weights import packed

CHUNK_ROWS = 5_000  # maximum rows per chunk
CHUNK_BYTES = 16 * 2**20  # maximum bytes of text and binary values per chunk: limits the memory

Progress = Callable[[str, int], None]
"""Called with the table and the number of rows written so far."""


@dataclass(frozen=True)
class Exported:
    """Result of an export."""

    rows: dict[str, int]
    checkpoints: list[int]
    """Versions whose files were copied."""
    data: list[str]
    num_bytes: int
    other_model: str | None
    """Run from whose checkpoint this one started; it is not part of the copy."""


@dataclass(frozen=True)
class _Missed:
    """Reasons why files of a version are not in the copy, by version."""

    weights: dict[int, TrinityError]
    """If the weights are missing, the version's checkpoint is missing too."""
    checkpoints: dict[int, TrinityError]


def export_run(
    database: Database, name: str, target: Path, with_checkpoints: bool, progress: Progress
) -> Exported:
    """Export a run to a new folder, with data sets and runs that it adopted rows of or generated data for.

    Raises:
        ConfigError: if the target exists and is not empty, or its parent does not exist.
        NotFound: if the run does not exist, or archived arrays are missing.
        TrinityError: if the disk cannot be written, or a checkpoint differs from the published one.

    On errors, no folder is left.
    """
    with folders.appearing(target) as partial:
        return _export(database, name, partial, with_checkpoints, progress)


def _export(
    database: Database, name: str, partial: Path, with_checkpoints: bool, progress: Progress
) -> Exported:
    with database.transaction() as tx:
        tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        run = runs.find(tx, name)
        run_rows = tx.execute(query("runs_of_copy"), {"run_id": run.id}).fetchall()
        names = [row["name"] for row in run_rows]
        versions = _whole_versions(tx, run) if with_checkpoints else []
        missed = _copy_checkpoints(versions, partial, progress)
        values = {"runs": [row["id"] for row in run_rows]}
        values["tasksets"] = [
            r["id"] for r in tx.execute(query("tasksets_of_copy"), values | {"names": names})
        ]
        entries = {}
        for copied in tables.copied_tables():
            entries[copied.name] = _write_table(tx, copied, values, partial, progress)
        versions = _whole_versions(tx, run) if with_checkpoints else []
        store = instances.known(tx)
        manifest = Manifest(
            schema_version=schema.HEAD,
            trinity_db=__version__,
            server=str(tx.info.parameter_status("server_version")),
            store=str(store) if store else None,
            exported_at=datetime.now(UTC).isoformat(),
            run=run.name,
            kind=run.kind.value,
            data=[row["name"] for row in run_rows if row["id"] != run.id],
            tables=entries,
            checkpoints=[
                _entry(policy, missed) for policy in versions if policy.version not in missed.weights
            ],
        )
    _check_missed(database, run, versions, missed)
    manifest.write(partial)
    columns = {copied.name: [c.name for c in copied.columns] for copied in tables.copied_tables()}
    (partial / folders.README).write_text(folders.describe(manifest, columns), encoding="utf-8")
    return Exported(
        rows={table: entry.rows for table, entry in entries.items()},
        checkpoints=[entry.version for entry in manifest.checkpoints],
        data=manifest.data,
        num_bytes=sum(path.stat().st_size for path in partial.rglob("*") if path.is_file()),
        other_model=_other_model(run.config) if not versions else None,
    )


def _other_model(config: Mapping[str, Any]) -> str | None:
    model = config.get("model")
    source_run = model.get("run") if isinstance(model, dict) else None
    return source_run if isinstance(source_run, str) else None


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
    """Yield the rows of a table in chunks, in the file's form; payloads have their Lance table appended."""
    forms = [form(column) for column in copied.columns]
    wires = [column_form.wire for column_form in forms]
    converters = [
        (number, column_form.to_file)
        for number, column_form in enumerate(forms)
        if column_form.to_file is not None
    ]
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
    """Return a COPY statement of the table's rows, ordered by key."""
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
    """Return payloads with their bytes, fetching those in the archive, and clear their archive columns."""
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
    """Return the versions with complete weights, newest first."""
    recorded = policies.with_checkpoint(tx, run.id)
    return [policy for policy in recorded if not packed.is_packed(policy.checkpoint)]


def _copy_checkpoints(
    versions: Sequence[policies.PolicyVersion], partial: Path, progress: Progress
) -> _Missed:
    """Copy the files of versions, newest first, before the tables: an active run deletes old ones.

    A run may delete a checkpoint and keep the weights of its version, so the two are copied independently.
    """
    missed = _Missed({}, {})
    for policy in versions:
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
        target = folders.resume_path(partial, _entry(policy, missed))
        assert target is not None
        try:
            _copy(policy, checkpoint.folder, target, folder_digest.verify_checkpoint, checkpoint.hash)
        except TrinityError as error:
            shutil.rmtree(target, ignore_errors=True)
            missed.checkpoints[policy.version] = error
    return missed


def _check_missed(
    database: Database, run: runs.Run, versions: Sequence[policies.PolicyVersion], missed: _Missed
) -> None:
    """Ignore missing files that the run has deleted meanwhile, except the newest version's weights and the
    latest checkpoint with its weights, from which a trainer resumes.

    Raises:
        TrinityError: if other files are missing, or one of these was deleted while it was copied.
    """
    latest = next((policy for policy in versions if policy.is_start), None)
    with database.transaction(read_only=True) as tx:
        still = {policy.version: policy for policy in _whole_versions(tx, run)}
    for policy in versions:
        now = still.get(policy.version)
        if policy.version in missed.weights:
            error, is_there = missed.weights[policy.version], now is not None
            is_needed = policy in (versions[0], latest)
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
                f"Version {policy.version}: the run deleted it during the export; retry, keep more versions "
                "(trainer.keep_checkpoints), or stop its trainer during the export."
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
        OSError: if the target cannot be written.
        TrinityError: if its files differ from the published ones, or are being deleted.
    """
    if not os.path.isdir(source):
        raise TrinityError(
            f"Version {policy.version}: the folder {source} does not exist; restore it, or leave out "
            "--checkpoints."
        )
    fault = TrinityError(
        f"Version {policy.version}: its files in {source} differ from the published ones; "
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
