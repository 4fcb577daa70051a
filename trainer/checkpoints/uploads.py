"""Uploads the versions and the checkpoints of a run to an object store.

A version is announced, as a row of the store, when all of it can be fetched; a checkpoint gets its address
there in the same way.
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
from trinity_db.trainer.checkpoints.patience import Patience, PatientBucket
from trinity_db.weights import delta, manifest
from trinity_db.weights.bucket import Bucket, Missing, NoBucket
from trinity_db.weights.manifest import OWNER_FILE, File, Manifest

logger = logging.getLogger(__name__)

WHOLE_EVERY = 10  # versions: one that an explorer fetches first needs the deltas since the last whole one


class Uploads:
    """The objects of one run.

    Args:
        url: `trainer.weights`.
        identity: the run and its store.

    Raises:
        ConfigError: the address is wrong, or the objects there belong to another run.
        TrinityError: the object store refuses the credentials, has no such bucket, or is away.
    """

    def __init__(self, url: str, identity: dict[str, Any], name: str, patience: Patience) -> None:
        owner = json.dumps(identity)
        own = f"{name}-{hashlib.sha256(owner.encode()).hexdigest()[:8]}"
        bucket = PatientBucket(f"{url.rstrip('/')}/{own}", patience)
        if not bucket.create(OWNER_FILE, owner.encode()):
            raise ConfigError(
                f"trainer.weights: {bucket.url}/{OWNER_FILE} names another run; take another address."
            )
        found = patience.ask(bucket.names)
        self.versions = Versions(bucket, found)
        self.checkpoints = Checkpoints(bucket, "checkpoint", found)


@dataclass(frozen=True)
class _Base:
    """The version that was uploaded last. Deltas are made from its folder."""

    name: str
    folder: Path
    length: int
    """Versions that one fetches to have it."""


class Versions(Objects):
    """The versions of a run in an object store."""

    def __init__(self, bucket: PatientBucket, found: Iterable[str]) -> None:
        super().__init__(bucket, "version", found)
        self._addresses: dict[int, str] = {}
        self._last: _Base | None = None
        self.whole_at: dict[str, float] = {}
        """When this process found all objects of an address whole, by the monotonic clock."""
        self._first: str | None = None
        """The name of version 0. Adapters lie on it."""

    def address(self, version: int) -> str | None:
        """Where this process uploaded a version last; None: it did not."""
        return self._addresses.get(version)

    def begin(self, first: str) -> None:
        """Say where version 0 is, since adapters lie on it."""
        self._first = first.rpartition("/")[2]

    def upload(self, version: int, folder: Path, digest: str, *, whole: bool = False) -> str:
        """Upload a version's files. Return its address when all of it can be fetched.

        Args:
            digest: of the folder.
            whole: whether it must not lie on the version before it.

        Raises:
            GivenUp: the trainer is to stop.
            TrinityError: the object store was away for too long, or refuses it; or the folder cannot be read.
        """
        begun = time.monotonic()
        name = self._new(version)
        base = None if whole or is_adapter(folder) else self._last
        if base is not None and (base.length >= WHOLE_EVERY or not base.folder.is_dir()):
            base = None
        aside = writing.aside_of(folder)
        with writing.or_nothing(folder, aside):
            aside.mkdir(parents=True)
            # The largest first: a version lies on another one only if that saves what takes most.
            files: list[File] = []
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

    def _file(self, name: str, path: Path, folder: Path, base: _Base | None, aside: Path) -> File:
        """Upload a file, or what changed in it."""
        relative = path.relative_to(folder).as_posix()
        if base is not None and (old := base.folder / relative).is_file():
            if filecmp.cmp(old, path, shallow=False):
                return File(relative, "same")
            change = aside / "delta"
            if path.stat().st_size > delta.SPARE_BYTES and delta.write(old, path, change):
                return self._put(name, File(relative, delta.ENCODING, change.stat().st_size), change)
        return self._put(name, File(relative, "whole", path.stat().st_size), path)


class Checkpoints(Objects):
    """The checkpoints of a run in an object store."""

    def upload(self, version: int, folder: Path, resume_hash: str, kept: Iterable[str]) -> str:
        """Upload a checkpoint, with the parts of all ranks. Then delete older ones. Return its address.

        Args:
            resume_hash: of the checkpoint.
            kept: as of `sweep`.

        Raises:
            GivenUp: the trainer is to stop.
            TrinityError: the object store was away for too long, or refuses it; or the folder cannot be read.
        """
        begun = time.monotonic()
        name = self._new(version)
        try:
            files = [
                self._put(name, File(path.relative_to(folder).as_posix(), "whole", path.stat().st_size), path)
                for path in _files(folder)
            ]
        except OSError as error:
            raise TrinityError(f"Checkpoint {folder} cannot be read: {error.strerror}.") from error
        made = Manifest(resume_hash, files)
        address = self._complete(name, made)
        logger.info(
            "checkpoint %d: %.1f MB uploaded in %.1f s", version, made.stored / 1e6, time.monotonic() - begun
        )
        self.sweep(kept)
        return address


def _files(folder: Path) -> list[Path]:
    """The files of a folder, the largest first."""
    return sorted(filter(Path.is_file, folder.rglob("*")), key=lambda one: -one.stat().st_size)


def clear(prefix: str, identity: dict[str, Any]) -> bool:
    """Delete all objects of a run.

    Args:
        prefix: where its versions are.

    Returns:
        whether they belong to the run, or went with their bucket. Those of another run stay as they are.

    Raises:
        TrinityError: the object store is away, or refuses it. What is left goes if this is repeated.
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
    """Find out whether an object store answers, before a run that has objects there is deleted.

    Raises:
        TrinityError: it is away, or refuses to be read.
    """
    with suppress(Missing, NoBucket):
        Bucket(prefix).get(OWNER_FILE)


def check(url: str) -> None:
    """Find out whether a trainer can put, list and delete objects, before its run has a name.

    Raises:
        ConfigError: the address is wrong.
        MissingExtra: the package is not installed.
        TrinityError: the object store refuses it, has no such bucket, or is away.
    """
    bucket, name = Bucket(url), f"check-{uuid4().hex[:8]}"
    try:
        bucket.put(name, b"")
        bucket.names(name)
        bucket.delete([name])
    except TrinityError as error:
        raise ConfigError(f"trainer.weights: {error}") from error
