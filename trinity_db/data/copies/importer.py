"""Imports a copy of a run into a store, in one transaction and without affecting existing rows.

Rows get new ids. All ids of a table are shifted by the same offset into a block that was reserved from its
sequence, so their order is kept and no mapping of old to new ids is needed. Only tasks are matched by their
keys. State that is meaningless here is reset: leases of other processes are released, transaction numbers
become that of the import, and file paths point to the new location.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from psycopg import sql
from psycopg.rows import tuple_row

from trinity_db.config import base
from trinity_db.data.copies import folder as folders
from trinity_db.data.copies import placing, tables
from trinity_db.data.copies.columns import form
from trinity_db.data.copies.folder import Manifest
from trinity_db.data.copies.naming import renamed_config
from trinity_db.data.copies.placing import Progress
from trinity_db.data.copies.tables import Copied
from trinity_db.errors import ConfigError, ImportFileError, TrinityError
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import RunKind
from trinity_db.store import policies, runs, workers

logger = logging.getLogger(__name__)

MAX_SPAN = 2**48  # between the ids of a table, so that a hostile manifest cannot exhaust a sequence
LOCK_SECONDS = 10  # to wait for transactions that hold a lock on a sequence
LEASE_SECONDS = 30.0  # arbitrary: all workers of a copy are stopped

# These queries use temporary tables of the import's own transaction. The first one finds, for each taskset of
# a copy, the existing taskset of that name if it has all of its tasks and belongs to no data set; the second
# one, the id of each task in it.
MATCH_TASKSETS = """
SELECT c.id, c.name, s.id AS here
FROM pg_temp.copied_taskset c
LEFT JOIN trinity.taskset s
       ON s.name = c.name
      AND NOT EXISTS (SELECT FROM trinity.run r WHERE r.name = c.name AND r.kind = 'data')
      AND NOT EXISTS (SELECT FROM pg_temp.copied_task n
                      WHERE n.taskset_id = c.id
                        AND NOT EXISTS (SELECT FROM trinity.task t
                                        WHERE t.taskset_id = s.id AND t.key = n.key))
ORDER BY c.id
"""
MATCHED_TASKS = """
SELECT c.id, t.id AS here
FROM pg_temp.copied_task c
JOIN trinity.task t ON t.taskset_id = %(here)s AND t.key = c.key
WHERE c.taskset_id = %(taskset_id)s
ORDER BY c.id
"""


@dataclass(frozen=True)
class Imported:
    """Result of an import: written rows, and the names used."""

    name: str
    rows: dict[str, int]
    checkpoints: list[int]
    data: dict[str, str]
    """Names of included data sets: in the copy → here."""
    tasksets: dict[str, str]
    """Names of tasksets: in the copy → here."""
    num_matched_tasks: int
    """Number of tasks that already existed."""
    released: workers.Released


@dataclass
class _Moved:
    """Mapping from ids and names in the copy to those in this store."""

    folder: Path
    ids: dict[str, tuple[int, int] | None]
    """Lowest and highest id of each table in the copy."""
    offsets: dict[str, int]
    run_names: dict[str, str]
    xact: int = 0
    taskset_names: dict[str, str] = field(default_factory=dict)
    shared: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)
    """Ids of tasksets and tasks: in the copy, sorted, and here."""

    def move(self, column: str, name: str, ids: Any) -> Any:
        """Map ids of a table to those in this store.

        Raises:
            ImportFileError: if one of them belongs to no row of the copy.
        """
        values = ids.drop_null()
        if not len(values):
            return ids
        if name in self.shared:
            return self._matched(column, name, ids)
        known = self.ids[name]
        limits = pc.min_max(values)
        if known is None or limits["min"].as_py() < known[0] or limits["max"].as_py() > known[1]:
            raise ImportFileError(
                f"{self.folder}: {column} refers to a row of {name} that is not in the copy."
            )
        return pc.add(ids, pa.scalar(self.offsets[name], pa.int64()))

    def shift_positions(self, name: str, ids: Any) -> Any:
        """Map positions in the order of a table's ids, keeping positions before or after all of them."""
        low, high = self.ids[name] or (0, 0)
        within = pc.min_element_wise(
            pc.max_element_wise(ids, low, skip_nulls=False), high + 1, skip_nulls=False
        )
        return pc.add(within, pa.scalar(self.offsets.get(name, 0), pa.int64()))

    def _matched(self, column: str, name: str, ids: Any) -> Any:
        old, new = self.shared[name]
        values = ids.fill_null(old[0] if len(old) else 0).to_numpy(zero_copy_only=False)
        positions = np.minimum(np.searchsorted(old, values), max(len(old) - 1, 0))
        if not len(old) or not np.array_equal(old[positions], values):
            raise ImportFileError(
                f"{self.folder}: {column} refers to a row of {name} that is not in the copy."
            )
        return pa.array(new[positions], pa.int64(), mask=ids.is_null().to_numpy(zero_copy_only=False))


def import_run(database: Database, folder: Path, name: str | None, progress: Progress) -> Imported:
    """Import a run, with its data sets, from a folder written by `export_run`.

    Args:
        name: new name of the run; default: its name in the copy.

    Raises:
        ImportFileError: if the folder is incomplete, was modified, or has another version. Nothing is
            written.
        ConfigError: if the name is taken, or is invalid for a run.
        DatabaseUnavailable: if the server went away; the import is rolled back.
        TrinityError: if the checkpoints cannot be written, or a sequence is locked for too long.
    """
    if not folder.is_dir():
        raise ImportFileError(f"{folder}: the folder does not exist.")
    manifest = Manifest.read(folder)
    copied = tables.copied_tables()
    folders.check_tables(folder, manifest, copied)
    placing.check(folder, manifest)
    name = manifest.run if name is None else name
    _check_run_name(name, manifest.kind)
    with database.transaction(read_only=True) as tx:
        if _taken(tx, [name], manifest.kind):
            raise ConfigError(f"A run or taskset '{name}' already exists; name the copy with --name.")
    moved = _Moved(folder, {table: entry.ids for table, entry in manifest.tables.items()}, {}, {})
    moved.offsets = {table.name: _reserve(database, moved, table) for table in copied if table.has_ids}
    with placing.placed(folder, manifest, name, progress) as places, database.transaction() as tx:
        return _write(tx, moved, copied, manifest, name, places, progress)


def _check_run_name(name: str, kind: str) -> None:
    runs.check_name(name)
    if kind == RunKind.TRAIN and not re.fullmatch(base.RUN_NAME, name):
        raise ConfigError(
            f"'{name}' is not a valid run name: letters, digits, '.', '_' and '-'; name it with --name."
        )


def _taken(tx: Transaction, names: Sequence[str], kind: str) -> set[str]:
    """Return the names in use. A training run may share its name with a taskset; a data set may not."""
    if kind == RunKind.TRAIN:
        return set(runs.names(tx)) & set(names)
    return {row["name"] for row in tx.execute(query("taken_names"), {"names": list(names)})}


def _free(tx: Transaction, name: str, taken: set[str]) -> str:
    """Return the name, or the first one with a number appended that no run or taskset has."""
    for candidate in chain([name], (f"{name}-{number}" for number in count(2))):
        if candidate not in taken and not _taken(tx, [candidate], RunKind.DATA):
            return candidate
    raise AssertionError("numbers do not end")


def _reserve(database: Database, moved: _Moved, copied: Copied) -> int:
    """Reserve a block of ids from a table's sequence, and return the offset to add to the copy's ids.

    If the import fails afterwards, these ids stay unused.
    """
    ids = moved.ids[copied.name]
    if ids is None or copied.name in tables.SHARED:
        return 0
    low, high = ids
    if not 0 < low <= high or high - low > MAX_SPAN:
        raise ImportFileError(f"{moved.folder}: the ids of {copied.name} reach from {low} to {high}.")
    sequence = sql.Identifier("trinity", f"{copied.name}_id_seq")
    try:
        with database.transaction() as tx:
            tx.execute(query("wait_for_ids"), {"lock_seconds": LOCK_SECONDS})
            # Changes nothing, but makes sessions that need an id wait for the end of this transaction.
            tx.execute(sql.SQL("ALTER SEQUENCE {} NO CYCLE").format(sequence))
            row = tx.execute(sql.SQL("SELECT last_value FROM {}").format(sequence)).fetchone()
            assert row is not None
            first = int(row["last_value"]) + 1
            # One more than the number of ids, as a position may be after the last one.
            values = (
                f"trinity.{sql.Identifier(f'{copied.name}_id_seq').as_string()}",
                first + high - low + 1,
            )
            tx.execute("SELECT setval(%s::regclass, %s)", values)
    except psycopg.errors.LockNotAvailable as error:
        raise TrinityError(
            f"Other transactions held the ids of {copied.name} for {LOCK_SECONDS} s; "
            "retry the import when they have ended."
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise TrinityError(
            f"An import reserves blocks of ids, which only the tables' owner can do: {_first_line(error)}."
        ) from error
    return first - low


def _write(
    tx: Transaction,
    moved: _Moved,
    copied: Sequence[Copied],
    manifest: Manifest,
    name: str,
    versions: Sequence[policies.PolicyVersion],
    progress: Progress,
) -> Imported:
    row = tx.execute(query("import_xact")).fetchone()
    assert row is not None
    moved.xact = row["xact"]
    moved.run_names = {manifest.run: name}
    for data in manifest.data:
        runs.check_name(data)
        moved.run_names[data] = _free(tx, data, {*moved.run_names.values()})
    num_matched = _write_tasks(tx, moved, copied)
    for table in copied:
        if table.name not in tables.SHARED:
            _write_table(tx, moved, table, progress)
    new_runs = [runs.find(tx, new) for new in moved.run_names.values()]
    run = new_runs[0]
    for policy in versions:
        values: dict[str, Any] = {"run_id": run.id, "version": policy.version}
        values |= {"checkpoint": str(policy.checkpoint), "checkpoint_hash": policy.checkpoint_hash}
        values |= policies.named(policy.resumed)
        if not tx.execute(query("set_checkpoint"), values).rowcount:
            raise ImportFileError(
                f"{moved.folder}: its tables have no checkpoint of version {policy.version} with these files."
            )
    tx.execute(query("stop_copied_workers"), {"runs": [new.id for new in new_runs]})
    released = workers.release_leases(tx, run.id, LEASE_SECONDS)
    for data_run in new_runs[1:]:  # runs whose rows it adopted may have been active too
        workers.release_leases(tx, data_run.id, LEASE_SECONDS)
    return Imported(
        name=name,
        rows={table: entry.rows for table, entry in manifest.tables.items()},
        checkpoints=[version.version for version in versions],
        data={data: moved.run_names[data] for data in manifest.data},
        tasksets=moved.taskset_names,
        num_matched_tasks=num_matched,
        released=released,
    )


def _write_tasks(tx: Transaction, moved: _Moved, copied: Sequence[Copied]) -> int:
    """Match tasksets and tasks with existing ones, add the others, and return the number of matched tasks."""
    taskset, task = (next(table for table in copied if table.name == name) for name in tables.SHARED)
    for table in (taskset, task):
        tx.execute(
            f"CREATE TEMP TABLE copied_{table.name} (LIKE trinity.{table.name}) ON COMMIT DROP".encode()
        )
        batches = folders.read_table(moved.folder, table)
        with _refused(moved.folder, table):
            _copy(tx, f"pg_temp.copied_{table.name}", table, (_as_it_is(table, batch) for batch in batches))
    num_matched = 0
    old_sets, new_sets, old_tasks, new_tasks = [], [], [], []
    for row in tx.execute(MATCH_TASKSETS).fetchall():
        here = row["here"]
        if here is None or row["name"] in moved.run_names:
            here = _new_taskset(tx, moved, taskset, task, row)
        else:
            moved.taskset_names[row["name"]] = row["name"]
        values = {"here": here, "taskset_id": row["id"]}
        with tx.cursor(row_factory=tuple_row) as cursor:
            pairs = np.array(cursor.execute(MATCHED_TASKS, values).fetchall(), np.int64).reshape(-1, 2)
        num_matched += len(pairs) if here == row["here"] else 0
        old_sets.append(row["id"])
        new_sets.append(here)
        old_tasks.append(pairs[:, 0])
        new_tasks.append(pairs[:, 1])
    moved.shared["taskset"] = np.array(old_sets, np.int64), np.array(new_sets, np.int64)
    old, new = (np.concatenate([np.empty(0, np.int64), *parts]) for parts in (old_tasks, new_tasks))
    order = np.argsort(old)
    moved.shared["task"] = old[order], new[order]
    return num_matched


def _new_taskset(
    tx: Transaction, moved: _Moved, taskset: Copied, task: Copied, row: Mapping[str, Any]
) -> int:
    """Add a taskset of the copy, named after its data set, itself, or a free name; return its id."""
    data = moved.run_names.get(row["name"])
    runs.check_name(row["name"])
    name = data or _free_taskset(tx, row["name"])
    moved.taskset_names[row["name"]] = name
    columns = [f'"{c.name}"' for c in taskset.columns if c.name not in ("id", "name")]
    made = tx.execute(
        f"INSERT INTO trinity.taskset (name, {', '.join(columns)}) SELECT %(name)s, {', '.join(columns)}"
        " FROM pg_temp.copied_taskset WHERE id = %(id)s RETURNING id".encode(),
        {"name": name, "id": row["id"]},
    ).fetchone()
    assert made is not None
    columns = [f'"{c.name}"' for c in task.columns if c.name not in ("id", "taskset_id")]
    with _refused(moved.folder, task):
        tx.execute(
            f"INSERT INTO trinity.task (taskset_id, {', '.join(columns)})"
            f" SELECT %(here)s, {', '.join(columns)} FROM pg_temp.copied_task"
            " WHERE taskset_id = %(id)s ORDER BY id".encode(),
            {"here": made["id"], "id": row["id"]},
        )
    return int(made["id"])


def _free_taskset(tx: Transaction, name: str) -> str:
    return _free(tx, name, set())


def _write_table(tx: Transaction, moved: _Moved, copied: Copied, progress: Progress) -> None:
    done = 0

    def rows() -> Iterator[list[Any]]:
        nonlocal done
        for batch in folders.read_table(moved.folder, copied):
            yield [_moved_column(moved, copied, batch, name) for name in batch.schema.names]
            done += batch.num_rows
            progress(copied.name, done)

    with _refused(moved.folder, copied):
        _copy(tx, tables.quoted(copied), copied, rows())


def _moved_column(moved: _Moved, copied: Copied, batch: Any, name: str) -> Any:
    """Return one column of a batch, with ids and names of this store."""
    column, values = copied.table.columns[name], batch.column(name)
    label = f"{copied.name}.{name}"
    if name in copied.references:
        return moved.move(label, copied.references[name], values)
    if name in copied.places:
        return moved.shift_positions(copied.places[name], values)
    if name == "id" and copied.has_ids:
        return moved.move(label, copied.name, values)
    match column.info.get("copied_as"):
        case "transaction":
            return pc.if_else(
                values.is_valid(), pa.scalar(moved.xact, pa.int64()), pa.scalar(None, pa.int64())
            )
        case "null":
            return pa.nulls(len(values), values.type)
    if name == "config":
        names = moved.run_names, moved.taskset_names
        texts = [text and renamed_config(text, *names) for text in values.to_pylist()]
        return pa.array(texts, values.type)
    if label == "run.name":
        return pa.array([_new_name(moved, old) for old in values.to_pylist()], values.type)
    return values


def _new_name(moved: _Moved, old: str) -> str:
    if old not in moved.run_names:
        raise ImportFileError(f"{moved.folder}: has a run {old!a:.100} that its manifest does not name.")
    return moved.run_names[old]


def _as_it_is(copied: Copied, batch: Any) -> list[Any]:
    return [batch.column(column.name) for column in copied.columns]


def _copy(tx: Transaction, target: str, copied: Copied, batches: Iterator[list[Any]]) -> None:
    """Write columns of batches into a table with a binary COPY."""
    forms = [form(column) for column in copied.columns]
    names = ", ".join(f'"{column.name}"' for column in copied.columns)
    statement = f"COPY {target} ({names}) FROM STDIN (FORMAT binary)"
    with tx.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.set_types([column_form.wire for column_form in forms])
        for columns in batches:
            for row in zip(
                *(_wire(column_form, values) for column_form, values in zip(forms, columns, strict=True)),
                strict=True,
            ):
                copy.write_row(row)


def _wire(column_form: Any, values: Any) -> list[Any]:
    """Return the values of a column in psycopg's form."""
    plain: list[Any] = (
        values.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(values.type) else values.to_pylist()
    )
    if column_form.to_wire is None:
        return plain
    return [None if value is None else column_form.to_wire(value) for value in plain]


@contextmanager
def _refused(folder: Path, copied: Copied) -> Iterator[None]:
    """Turn violations of the database's constraints into one-line errors.

    Raises:
        ImportFileError: if rows violate a constraint, or hold a value that does not fit its column.
    """
    try:
        yield
    except (psycopg.errors.IntegrityError, psycopg.errors.DataError) as error:
        raise ImportFileError(
            f"{folder}: the store rejects rows of table {copied.name}: {_first_line(error):.300}."
        ) from error
    except (ValueError, OverflowError) as error:
        raise ImportFileError(f"{folder}: table {copied.name}: {_first_line(error):.300}.") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
