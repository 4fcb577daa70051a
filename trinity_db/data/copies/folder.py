"""The folder of a copy: one Parquet file per table, a manifest, checkpoints, and a README.

    manifest.json                      contents of the folder, with a digest of each file
    README.md                          how to read it without trinity-db
    tables/experience.parquet          one file per table
    checkpoints/version-000012/        weights of a kept version, if requested
    checkpoints/checkpoint-000012/     trainer state to resume from there, if kept

A folder is untrusted input. No path is read from it: file names are derived from the table names in this code
and from version numbers, and links are rejected.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trinity_db import schema
from trinity_db.data.copies.columns import arrow_schema
from trinity_db.data.copies.tables import Copied
from trinity_db.errors import ConfigError, ImportFileError, TrinityError
from trinity_db.io import durable

FORMAT = 1
MANIFEST = "manifest.json"
README = "README.md"
MAX_MANIFEST_BYTES = 16 * 2**20  # a version with its checkpoint takes about 200
BLOCK_BYTES = 1 << 20
READ_ROWS = 1_000  # per batch


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TableEntry(_Strict):
    """Manifest entry of one table."""

    rows: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the file."""
    ids: tuple[int, int] | None = Field(default=None, strict=False)
    """Lowest and highest id; None without rows or ids."""


class CheckpointEntry(_Strict):
    """Manifest entry of a version whose files are in the folder."""

    version: int = Field(ge=0, le=2**31 - 1)
    sha256: str
    """Digest of all files of its weights, equal to `policy_version.checkpoint_hash`."""
    resume_sha256: str | None = None
    """Digest of its checkpoint, equal to `policy_version.resume_hash`; None without a checkpoint."""


class Manifest(_Strict):
    """Contents of a folder."""

    format: Literal[1] = 1
    schema_version: str
    trinity_db: str
    """Version of the program that wrote the folder."""
    server: str
    """Version of the source database server."""
    store: str | None
    """Instance id of the source store; None if no role that owns files has ever connected to it."""
    exported_at: str
    run: str
    kind: str
    data: list[str]
    """Data sets and other runs that are included, because the run adopted or generated rows of them."""
    tables: dict[str, TableEntry]
    checkpoints: list[CheckpointEntry] = Field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder.

        Raises:
            ImportFileError: if it is missing, or not a manifest that this code supports.
        """
        path = regular(folder / MANIFEST)
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ImportFileError(f"{path}: exceeds {MAX_MANIFEST_BYTES // 2**20} MiB.")
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ImportFileError(f"{path}: cannot be read: {_one_line(error)}.") from None
        number = content.get("format") if isinstance(content, dict) else None
        if type(number) is int and number > FORMAT:
            raise ImportFileError(
                f"{path}: has format {number}, newer than this trinity-db supports ({FORMAT}); upgrade it."
            )
        try:
            manifest = cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ImportFileError(
                f"{path}: is not a manifest of a copy: {where!a:.100}: {first['msg']}."
            ) from None
        if manifest.schema_version != schema.HEAD:
            raise ImportFileError(
                f"{path}: was written at schema {manifest.schema_version!a:.20}, this trinity-db has "
                f"{schema.HEAD}. Import it with trinity-db {manifest.trinity_db!a:.20} into a store, and run "
                "trinity-db db upgrade there."
            )
        return manifest

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


class Writer:
    """Writes one table's file in batches of rows."""

    def __init__(self, folder: Path, copied: Copied) -> None:
        self.schema = arrow_schema(copied.columns)
        self._path = table_path(folder, copied.name)
        self._path.parent.mkdir(exist_ok=True)
        # Arrays rarely repeat, so a dictionary would not help.
        words = [field.name for field in self.schema if not pa.types.is_binary(field.type)]
        self._file = pq.ParquetWriter(self._path, self.schema, compression="zstd", use_dictionary=words)
        self._rows = 0
        self._ids: tuple[int, int] | None = None

    def write(self, rows: Sequence[tuple[Any, ...]], id_column: int | None) -> None:
        """Append rows, with values in the file's column types."""
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        self._file.write_batch(pa.record_batch(arrays, schema=self.schema))
        self._rows += len(rows)
        if id_column is not None:
            ids = [row[id_column] for row in rows]
            low, high = self._ids or (ids[0], ids[0])
            self._ids = min(low, *ids), max(high, *ids)

    def close(self) -> TableEntry:
        """Close the file and return its manifest entry."""
        self._file.close()
        return TableEntry(rows=self._rows, sha256=file_digest(self._path), ids=self._ids)


def read_table(folder: Path, copied: Copied) -> Iterator[Any]:
    """Yield the rows of a table's file as record batches.

    Raises:
        ImportFileError: if the file is truncated.
    """
    path = table_path(folder, copied.name)
    with _readable(path), pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=READ_ROWS)


def check_tables(folder: Path, manifest: Manifest, tables: Sequence[Copied]) -> None:
    """Read every table's file once and check it against the manifest.

    Raises:
        ImportFileError: naming the first file that is missing, was modified, or has other columns.
    """
    expected = {copied.name for copied in tables}
    if manifest.tables.keys() != expected:
        table_name = sorted(manifest.tables.keys() ^ expected)[0]
        raise ImportFileError(
            f"{folder}: its manifest does not match schema {schema.HEAD}: table {table_name!a:.60}."
        )
    for copied in tables:
        path, entry = regular(table_path(folder, copied.name)), manifest.tables[copied.name]
        with _readable(path):
            if file_digest(path) != entry.sha256:
                raise ImportFileError(f"{path}: was modified after the export: its digest differs.")
            file_schema = pq.read_schema(path)
            if not file_schema.equals(arrow_schema(copied.columns)):
                raise ImportFileError(f"{path}: does not have the columns of table {copied.name}.")
            if pq.read_metadata(path).num_rows != entry.rows:
                raise ImportFileError(f"{path}: does not have the {entry.rows} rows listed in the manifest.")


def table_path(folder: Path, name: str) -> Path:
    """Return the path of a table's file."""
    return folder / "tables" / f"{name}.parquet"


def checkpoint_path(folder: Path, version: int) -> Path:
    """Return the folder of a version's weights."""
    return folder / "checkpoints" / f"version-{version:06d}"


def resume_path(folder: Path, entry: CheckpointEntry) -> Path | None:
    """Return the folder of a version's checkpoint; None without a checkpoint."""
    if entry.resume_sha256 is None:
        return None
    return folder / "checkpoints" / f"checkpoint-{entry.version:06d}"


def regular(path: Path) -> Path:
    """Return the path if it is a regular file and not a link.

    Raises:
        ImportFileError: if it is missing, or not a regular file.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ImportFileError(f"{path}: is not a regular file.")
    if not path.exists():
        raise ImportFileError(f"{path}: is missing.")
    return path


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            sha.update(block)
    return sha.hexdigest()


def describe(manifest: Manifest, columns: Mapping[str, Sequence[str]]) -> str:
    """Return the text of the folder's README."""
    tables = "\n".join(
        f"| `{name}` | {entry.rows} | {', '.join(columns[name])} |" for name, entry in manifest.tables.items()
    )
    return _TEXT.format(run=manifest.run, version=manifest.trinity_db, tables=tables)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ImportFileError(f"{path}: cannot be read: {_one_line(error):.200}.") from error


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Create a folder under a temporary name, fill it in this `with`, and rename it durably at the end.

    Raises:
        ConfigError: if the target exists and is not empty, or its parent does not exist.
        TrinityError: if the disk cannot be written. Nothing is left then.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target}: already exists; name a new folder.")
    parent = target.absolute().parent
    if not parent.is_dir():
        raise ConfigError(f"{target}: the folder {parent} does not exist.")
    partial = parent / f".{target.name}.{os.getpid()}.part"
    try:
        with writable(target):
            partial.mkdir()
            yield partial
            durable.flush_all(partial)
            if target.exists():
                target.rmdir()
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into one-line errors.

    Raises:
        TrinityError: if writing fails. Nothing of the copy is left.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        cause = getattr(error, "strerror", None) or _one_line(error)
        raise TrinityError(f"{folder}: cannot be written: {cause:.200}.") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


_TEXT = """# A copy of the run '{run}'

Written by trinity-db {version}. `trinity-db import FOLDER --as run` imports it as a run into any store with
the same schema version.

Each table is a Parquet file in `tables/`, with the ids of the source store. JSON is stored as text. Times are
in UTC. `manifest.json` lists the number of rows and a SHA-256 digest of each file.

The arrays of an experience are concatenated in `payload.data`, little endian:

```python
import numpy as np

def arrays(data: bytes, num_tokens: int):
    has, width, at = data[0], data[1], 2

    def take(dtype: str, count: int):
        nonlocal at
        found = np.frombuffer(data, dtype, count, offset=at)
        at += found.nbytes
        return found

    def take_runs(dtype: str):
        count = int(take("<u4", 1)[0])
        lengths = take("<u4", count)
        return np.repeat(take(dtype, count), lengths)

    token_ids = np.zeros((num_tokens, 4), "u1")
    token_ids[:, :width] = take("u1", num_tokens * width).reshape(num_tokens, width)
    action_mask = np.unpackbits(take("u1", (num_tokens + 7) // 8), count=num_tokens)
    # Without log-probabilities and versions, the sequence was not sampled by a model: a demonstration.
    logprobs = take("<f4", int(action_mask.sum())) if has & 1 else None
    versions = take_runs("<i4") if has & 1 else None
    temperatures = take_runs("<f4") if has & 2 else None  # None: the run's temperature for all tokens
    routing = None  # otherwise the chosen experts of the first tokens, per layer
    if has & 4:
        *shape, size = take("<i4", 4)
        routing = take(f"<u{{size}}", int(np.prod(shape))).reshape(shape)
    return token_ids.view("<i4")[:, 0], action_mask, logprobs, versions, temperatures, routing
```

This is the codec `compact-1`, which `trinity_db.arrays.codec.decode` reads.

`score.data` is float32, one value per trained token except the first token of a sequence.

| table | rows | columns |
| --- | --- | --- |
{tables}
"""
