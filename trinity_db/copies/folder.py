"""The folder of a copy: a Parquet file for each table, a manifest, checkpoints, and a text for people.

    manifest.json                      what the folder holds, with a digest of each file
    README.md                          how to read it without trinity-db
    tables/experience.parquet          one file a table
    checkpoints/version-000012/        the weights of a kept version, on request
    checkpoints/checkpoint-000012/     what a trainer goes on from there, if that is kept

Everything in a folder is input. No path is taken from it: names of files follow from names of tables that
this code knows and from numbers of versions, and a link is no file.
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

from trinity_db import durable, schema
from trinity_db.copies.columns import arrow_schema
from trinity_db.copies.tables import Copied
from trinity_db.errors import ConfigError, ImportFileError, TrinityError

FORMAT = 1
MANIFEST = "manifest.json"
README = "README.md"
MAX_MANIFEST_BYTES = 16 * 2**20  # a version with its checkpoint takes some 200
BLOCK_BYTES = 1 << 20
READ_ROWS = 1_000  # of a file at a time


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TableEntry(_Strict):
    """What the manifest says of one table."""

    rows: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the file."""
    ids: tuple[int, int] | None = Field(default=None, strict=False)
    """The lowest and the highest id; None where there are no rows or no ids."""


class CheckpointEntry(_Strict):
    """A version whose files are in the folder."""

    version: int = Field(ge=0, le=2**31 - 1)
    sha256: str
    """Over all files of its weights, as `policy_version.checkpoint_hash` has it."""
    resume_sha256: str | None = None
    """Of its checkpoint, as `policy_version.resume_hash` has it; None if it has none."""


class Manifest(_Strict):
    """What a folder holds."""

    format: Literal[1] = 1
    schema_version: str
    trinity_db: str
    """The version of the program that wrote it."""
    server: str
    """The version of the database server that it was read from."""
    store: str | None
    """The instance of the store that it was read from; None where no role that owns files has been there."""
    exported_at: str
    run: str
    kind: str
    data: list[str]
    """The data sets and other runs that came along, because the run adopted rows of them or made some."""
    tables: dict[str, TableEntry]
    checkpoints: list[CheckpointEntry] = Field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest of a folder.

        Raises:
            ImportFileError: there is none, or it is no manifest that this code knows.
        """
        path = regular(folder / MANIFEST)
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ImportFileError(f"{path}: is longer than {MAX_MANIFEST_BYTES // 2**20} MiB.")
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ImportFileError(f"{path}: cannot be read: {_one_line(error)}.") from None
        found = content.get("format") if isinstance(content, dict) else None
        if type(found) is int and found > FORMAT:
            raise ImportFileError(
                f"{path}: has format {found}, newer than this trinity-db knows ({FORMAT}); upgrade it."
            )
        try:
            manifest = cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ImportFileError(
                f"{path}: is no manifest of a copy: {where!a:.100}: {first['msg']}."
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
    """One table's file, written a chunk of rows at a time."""

    def __init__(self, folder: Path, copied: Copied) -> None:
        self.schema = arrow_schema(copied.columns)
        self._path = table_path(folder, copied.name)
        self._path.parent.mkdir(exist_ok=True)
        # Bytes of arrays repeat nothing that a dictionary could hold.
        words = [field.name for field in self.schema if not pa.types.is_binary(field.type)]
        self._file = pq.ParquetWriter(self._path, self.schema, compression="zstd", use_dictionary=words)
        self._rows = 0
        self._ids: tuple[int, int] | None = None

    def write(self, rows: Sequence[tuple[Any, ...]], id_column: int | None) -> None:
        """Add rows, whose values are those of the file."""
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        self._file.write_batch(pa.record_batch(arrays, schema=self.schema))
        self._rows += len(rows)
        if id_column is not None:
            ids = [row[id_column] for row in rows]
            low, high = self._ids or (ids[0], ids[0])
            self._ids = min(low, *ids), max(high, *ids)

    def close(self) -> TableEntry:
        """End the file; what the manifest says of it."""
        self._file.close()
        return TableEntry(rows=self._rows, sha256=file_digest(self._path), ids=self._ids)


def read_table(folder: Path, copied: Copied) -> Iterator[Any]:
    """The rows of a table's file, as record batches.

    Raises:
        ImportFileError: the file breaks off.
    """
    path = table_path(folder, copied.name)
    with _readable(path), pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=READ_ROWS)


def check_tables(folder: Path, manifest: Manifest, tables: Sequence[Copied]) -> None:
    """Read every table's file once, and hold it to the manifest.

    Raises:
        ImportFileError: naming the first file that is missing, was changed, or has other columns.
    """
    expected = {copied.name for copied in tables}
    if manifest.tables.keys() != expected:
        other = sorted(manifest.tables.keys() ^ expected)[0]
        raise ImportFileError(
            f"{folder}: its manifest does not fit schema {schema.HEAD}: table {other!a:.60}."
        )
    for copied in tables:
        path, entry = regular(table_path(folder, copied.name)), manifest.tables[copied.name]
        with _readable(path):
            if file_digest(path) != entry.sha256:
                raise ImportFileError(f"{path}: is not the file that was exported: its digest differs.")
            found = pq.read_schema(path)
            if not found.equals(arrow_schema(copied.columns)):
                raise ImportFileError(f"{path}: does not have the columns of table {copied.name}.")
            if pq.read_metadata(path).num_rows != entry.rows:
                raise ImportFileError(f"{path}: does not have the {entry.rows} rows that the manifest says.")


def table_path(folder: Path, name: str) -> Path:
    """The file of a table that the models know."""
    return folder / "tables" / f"{name}.parquet"


def checkpoint_path(folder: Path, version: int) -> Path:
    """The folder of a version's weights."""
    return folder / "checkpoints" / f"version-{version:06d}"


def resume_path(folder: Path, entry: CheckpointEntry) -> Path | None:
    """The folder of a version's checkpoint; None if it has none.

    Runs that began before checkpoints had folders of their own have it in that of the weights.
    """
    if entry.resume_sha256 is None:
        return None
    if entry.resume_sha256 == entry.sha256:
        return checkpoint_path(folder, entry.version)
    return folder / "checkpoints" / f"checkpoint-{entry.version:06d}"


def regular(path: Path) -> Path:
    """The path of a file that is one, and not a link to anywhere else.

    Raises:
        ImportFileError: it is missing, or something else.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ImportFileError(f"{path}: is no plain file.")
    if not path.exists():
        raise ImportFileError(f"{path}: is missing.")
    return path


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            sha.update(block)
    return sha.hexdigest()


def describe(manifest: Manifest, columns: Mapping[str, Sequence[str]]) -> str:
    """The text for people that lies in the folder."""
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
    """Within this `with`, fill a folder that then gets its name, and survives a power cut.

    Raises:
        ConfigError: there is something at the folder's place, or no folder to make it in.
        TrinityError: the disk cannot be written. Nothing is left.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{target}: is there already; name a folder that is not.")
    parent = target.absolute().parent
    if not parent.is_dir():
        raise ConfigError(f"{target}: there is no folder {parent}.")
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
    """Turn what a disk refuses into one line.

    Raises:
        TrinityError: nothing of the copy is left.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        cause = getattr(error, "strerror", None) or _one_line(error)
        raise TrinityError(f"{folder}: cannot be written: {cause:.200}.") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


_TEXT = """# A copy of the run '{run}'

Written by trinity-db {version}. `trinity-db import FOLDER --as run` makes a run of it in any store of the
same schema version.

Each table is a Parquet file in `tables/`; ids are those of the store that it was read from. JSON is text.
Times are in UTC. `manifest.json` has the number of rows and a SHA-256 digest of each file.

The arrays of an experience are the bytes `payload.data`, little endian, one after the other:

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
    # Without log-probabilities and versions no model sampled it: a demonstration.
    logprobs = take("<f4", int(action_mask.sum())) if has & 1 else None
    versions = take_runs("<i4") if has & 1 else None
    temperatures = take_runs("<f4") if has & 2 else None  # None: all tokens have that of the run
    routing = None  # else the experts of the first tokens, in each layer
    if has & 4:
        *shape, size = take("<i4", 4)
        routing = take(f"<u{{size}}", int(np.prod(shape))).reshape(shape)
    return token_ids.view("<i4")[:, 0], action_mask, logprobs, versions, temperatures, routing
```

This is the codec `compact-1`. `trinity_db.arrays.decode` also reads the rows with another one, which an
earlier version wrote.

`score.data` is float32, one for each trained token but a sequence's first.

| table | rows | columns |
| --- | --- | --- |
{tables}
"""
