"""Uploads the versions and the checkpoints of a run to an object store.

A version is announced, as a row in the store, when it can be fetched completely; a checkpoint gets its
address in the same way.
"""

import filecmp
import hashlib
import json
import logging
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models.adapter_folder import is_adapter
from trinity_db.trainer.checkpoints import writing
from trinity_db.trainer.checkpoints.objects import Objects
from trinity_db.trainer.checkpoints.retrying_bucket import Patience, PatientBucket
from trinity_db.weights import delta, manifest
from trinity_db.weights.bucket import Bucket, Missing, NoBucket
from trinity_db.weights.manifest import OWNER_FILE, Manifest, UploadedFile

logger = logging.getLogger(__name__)

WHOLE_EVERY = 10  # versions: an explorer's first fetch needs all deltas since the last full version


class Uploads:
    """The objects of one run.

    Args:
        url: `trainer.weights`.
        identity: The run and its store.

    Raises:
        ConfigError: if the address is invalid, or the objects there belong to another run.
        TrinityError: if the object store rejects the credentials, has no such bucket, or is unreachable.
    """

    def __init__(self, url: str, identity: dict[str, Any], name: str, patience: Patience) -> None:
        owner = json.dumps(identity)
        own = f"{name}-{hashlib.sha256(owner.encode()).hexdigest()[:8]}"
        bucket = PatientBucket(f"{url.rstrip('/')}/{own}", patience)
        if not bucket.create(OWNER_FILE, owner.encode()):
            raise ConfigError(
                f"trainer.weights: {bucket.url}/{OWNER_FILE} names another run; use another address."
            )
        names = patience.ask(bucket.names)
        self.versions = Versions(bucket, names)
        self.checkpoints = Checkpoints(bucket, "checkpoint", names)


@dataclass(frozen=True)
class _Base:
    """The version uploaded last. Deltas are computed from its folder."""

    name: str
    folder: Path
    length: int
    """Number of versions to fetch in order to load it."""


class Versions(Objects):
    """The versions of a run in an object store."""

    def __init__(self, bucket: PatientBucket, names: Iterable[str]) -> None:
        super().__init__(bucket, "version", names)
        self._addresses: dict[int, str] = {}
        self._last: _Base | None = None
        self.whole_at: dict[str, float] = {}
        """Monotonic time at which this process last found all objects of an address complete."""
        self._first: str | None = None
        """Name of version 0, the base of adapters."""

    def address(self, version: int) -> str | None:
        """Return the address of this process's last upload of a version; None if it has not uploaded it."""
        return self._addresses.get(version)

    def begin(self, first: str) -> None:
        """Set the address of version 0, the base of adapters."""
        self._first = first.rpartition("/")[2]

    def upload(self, version: int, folder: Path, digest: str, *, whole: bool = False) -> str:
        """Upload a version's files. Return its address when it can be fetched completely.

        Args:
            digest: Digest of the folder.
            whole: Whether to upload full files instead of a delta.

        Raises:
            GivenUp: if the trainer is stopping.
            TrinityError: if the object store was away for too long, or denies access; or the folder cannot be
                read.
        """
        begun = time.monotonic()
        name = self._new(version)
        base = None if whole or is_adapter(folder) else self._last
        if base is not None and (base.length >= WHOLE_EVERY or not base.folder.is_dir()):
            base = None
        aside = writing.aside_of(folder)
        with writing.or_nothing(folder, aside):
            aside.mkdir(parents=True)
            # The largest first: a delta is only worth it if it saves the largest file.
            files: list[UploadedFile] = []
            for path in _files(folder):
                files.append(self._file(name, path, folder, base, aside))
                base = None if files[0].encoding == "whole" else base
            shutil.rmtree(aside)
        lies_on = self._first if is_adapter(folder) else None
        made = Manifest(digest, files, base.name if base else None, lies_on)
        address = self._complete(name, made)
        self._addresses[version] = address
        if version == 0:
            self._first = name
        self._last = _Base(name, folder, base.length + 1 if base else 1)
        logger.info(
            "version %d: %.1f MB uploaded in %.1f s%s",
            *(version, made.stored / 1e6, time.monotonic() - begun, " as a delta" if base else ""),
        )
        return address

    def _file(self, name: str, path: Path, folder: Path, base: _Base | None, aside: Path) -> UploadedFile:
        """Upload a file, or its changes."""
        relative = path.relative_to(folder).as_posix()
        if base is not None and (old := base.folder / relative).is_file():
            if filecmp.cmp(old, path, shallow=False):
                return UploadedFile(relative, "same")
            change = aside / "delta"
            if path.stat().st_size > delta.SPARE_BYTES and delta.write(old, path, change):
                return self._put(name, UploadedFile(relative, delta.ENCODING, change.stat().st_size), change)
        return self._put(name, UploadedFile(relative, "whole", path.stat().st_size), path)


class Checkpoints(Objects):
    """The checkpoints of a run in an object store."""

    def upload(self, version: int, folder: Path, resume_hash: str, addresses: Iterable[str]) -> str:
        """Upload a checkpoint, with the parts of all ranks. Then delete older ones. Return its address.

        Args:
            resume_hash: Hash of the checkpoint.
            addresses: See `sweep`.

        Raises:
            GivenUp: if the trainer is stopping.
            TrinityError: if the object store was away for too long, or denies access; or the folder cannot be
                read.
        """
        begun = time.monotonic()
        name = self._new(version)
        try:
            files = [
                self._put(
                    name,
                    UploadedFile(path.relative_to(folder).as_posix(), "whole", path.stat().st_size),
                    path,
                )
                for path in _files(folder)
            ]
        except OSError as error:
            raise TrinityError(f"Checkpoint {folder} cannot be read: {error.strerror}.") from error
        made = Manifest(resume_hash, files)
        address = self._complete(name, made)
        logger.info(
            "checkpoint %d: %.1f MB uploaded in %.1f s", version, made.stored / 1e6, time.monotonic() - begun
        )
        self.sweep(addresses)
        return address


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder, largest first."""
    return sorted(filter(Path.is_file, folder.rglob("*")), key=lambda path: -path.stat().st_size)


def clear(prefix: str, identity: dict[str, Any]) -> bool:
    """Delete all objects of a run.

    Args:
        prefix: Address of its versions.

    Returns:
        Whether they belong to the run, or disappeared with their bucket. Objects of another run are left
        unchanged.

    Raises:
        TrinityError: if the object store is unreachable, or denies access. A repeated call deletes the rest.
    """
    bucket = Bucket(prefix)
    try:
        if bucket.get(OWNER_FILE) != json.dumps(identity).encode():
            return False
    except NoBucket:
        return True
    except Missing:
        return False
    names = bucket.names()
    bucket.delete(sorted(names, key=lambda name: (name == OWNER_FILE, not name.endswith(manifest.FILE))))
    return True


def reach(prefix: str) -> None:
    """Check that an object store answers, before a run with objects there is deleted.

    Raises:
        TrinityError: if it is unreachable, or denies read access.
    """
    with suppress(Missing, NoBucket):
        Bucket(prefix).get(OWNER_FILE)


def check(url: str) -> None:
    """Check that a trainer can put, list and delete objects, before its run has a name.

    Raises:
        ConfigError: if the address is invalid.
        MissingExtra: if the package is not installed.
        TrinityError: if the object store denies access, has no such bucket, or is unreachable.
    """
    bucket, name = Bucket(url), f"check-{uuid4().hex[:8]}"
    try:
        bucket.put(name, b"")
        bucket.names(name)
        bucket.delete([name])
    except TrinityError as error:
        raise ConfigError(f"trainer.weights: {error}") from error
