"""Uploads the versions of a run to an object store, and deletes there what the run keeps no more.

A version is announced, as a row of the store, when all of it can be fetched. Each has a name of its own that
is never used again, so a replaced trainer that still runs writes into no version of its successor. A process
deletes only versions whose names it knew before the store last told it which are kept.
"""

import filecmp
import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models.adapter_folder import is_adapter
from trinity_db.trainer.checkpoints import writing
from trinity_db.weights import at_once, delta, manifest
from trinity_db.weights.bucket import PART_BYTES, Bucket, Missing, Unreachable
from trinity_db.weights.manifest import OWNER_FILE, File, Manifest

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

WHOLE_EVERY = 10  # versions: one that an explorer fetches first needs the deltas since the last whole one
AT_A_TIME = 4  # objects, with 32 MB in memory each
PATIENCE_SECONDS = 300.0  # that an object store may be away before a version is given up
PAUSE_SECONDS = 2.0  # between two tries; the library makes a few of its own before


@dataclass(frozen=True)
class _Base:
    """The version that was uploaded last. Deltas are made from its folder."""

    name: str
    folder: Path
    length: int
    """Versions that one fetches to have it."""


class Uploads:
    """The objects of one run.

    Args:
        url: `trainer.weights`.
        identity: the run and its store.

    Raises:
        ConfigError: the address is wrong, or the objects there belong to another run.
        TrinityError: the object store refuses the credentials, has no such bucket, or is away.
    """

    def __init__(self, url: str, identity: dict[str, Any], name: str) -> None:
        owner = json.dumps(identity)
        own = f"{name}-{hashlib.sha256(owner.encode()).hexdigest()[:8]}"
        self._bucket = Bucket(f"{url.rstrip('/')}/{own}")
        if not _patiently(lambda: self._bucket.create(OWNER_FILE, owner.encode())):
            raise ConfigError(
                f"trainer.weights: {self._bucket.url}/{OWNER_FILE} names another run; take another address."
            )
        found = _patiently(self._bucket.names)
        versions = {one.partition("/")[0] for one in found}
        self._known: dict[str, Manifest | None] = dict.fromkeys(filter(manifest.NAME.fullmatch, versions))
        """By the names of versions that are there, whole or not: their manifests, once they were read."""
        self._addresses: dict[int, str] = {}
        self._last: _Base | None = None
        self._first: str | None = None
        """The name of version 0. Adapters lie on it."""

    def has(self, weights: str | None) -> bool:
        """Whether a version with this address was there when this trainer started, or was uploaded by it."""
        if weights is None or not weights.startswith(f"{self._bucket.url}/"):
            return False
        name = weights.rpartition("/")[2]
        return name in self._known and self._manifest(name) is not None

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
            TrinityError: the object store was away for too long, or refuses it; or the folder cannot be read.
        """
        begun = time.monotonic()
        name = f"version-{version:06d}-{uuid4().hex[:8]}"
        base = None if whole or is_adapter(folder) else self._last
        if base is not None and (base.length >= WHOLE_EVERY or not base.folder.is_dir()):
            base = None
        self._known[name] = None
        aside = writing.aside_of(folder)
        with writing.or_nothing(folder, aside):
            aside.mkdir(parents=True)
            # The largest first: a version lies on another one only if that saves what takes most.
            paths = sorted(filter(Path.is_file, folder.rglob("*")), key=lambda one: -one.stat().st_size)
            files: list[File] = []
            for path in paths:
                files.append(self._file(name, path, folder, base, aside))
                base = None if files[0].encoding == "whole" else base
            shutil.rmtree(aside)
        lies_on = self._first if is_adapter(folder) else None
        made = Manifest(digest, files, base.name if base else None, lies_on)
        _patiently(lambda: self._bucket.put(f"{name}/{manifest.FILE}", made.content))
        self._known[name] = made
        self._last = _Base(name, folder, base.length + 1 if base else 1)
        logger.info(
            "version %d: %.1f MB uploaded in %.1f s%s",
            *(version, made.stored / 1e6, time.monotonic() - begun, " as a delta" if base else ""),
        )
        self._addresses[version] = f"{self._bucket.url}/{name}"
        return self._addresses[version]

    def sweep(self, kept: Iterable[str]) -> None:
        """Delete all versions but these and those that they lie on.

        Args:
            kept: the addresses that the store had, after this process learnt of each version that goes.
        """
        try:
            self._sweep(kept)
        except TrinityError as error:
            logger.warning("objects of versions that are not kept stay for now: %s", error)

    def _sweep(self, kept: Iterable[str]) -> None:
        found = [address.rpartition("/")[2] for address in kept]
        found += [self._last.name] if self._last else []
        needed = set[str]()
        while found:
            name = found.pop()
            if name in needed or name not in self._known:
                continue
            needed.add(name)
            if (made := self._manifest(name)) is not None:
                found += [one for one in (made.base, made.adapter_on) if one is not None]
        for name in sorted(self._known.keys() - needed):
            objects = self._bucket.names(name)
            # The manifest first: a version of which objects are missing must not look whole.
            self._bucket.delete(sorted(objects, key=lambda one: not one.endswith(f"/{manifest.FILE}")))
            del self._known[name]

    def _manifest(self, name: str) -> Manifest | None:
        """The manifest of a version; None if there is none that can be read."""
        if self._known[name] is None:
            try:
                self._known[name] = _patiently(lambda: manifest.read(self._bucket, name))
            except manifest.Broken as error:
                logger.warning("%s", error)
        return self._known[name]

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

    def _put(self, name: str, file: File, source: Path) -> File:
        """Put the bytes of a file as objects, several at a time."""
        names = file.names(name)

        def put(number: int) -> None:
            with source.open("rb") as content:
                content.seek(number * PART_BYTES)
                block = content.read(PART_BYTES)
            _patiently(lambda: self._bucket.put(names[number], block))

        at_once.do(put, range(len(names)), AT_A_TIME)
        return file


def clear(prefix: str, identity: dict[str, Any]) -> bool:
    """Delete all objects of a run.

    Args:
        prefix: where its versions are.

    Returns:
        whether they belong to the run. Those of another one are left as they are.

    Raises:
        TrinityError: the object store is away, or refuses it.
    """
    bucket = Bucket(prefix)
    try:
        if bucket.get(OWNER_FILE) != json.dumps(identity).encode():
            return False
    except Missing:
        return False
    names = bucket.names()
    bucket.delete(sorted(names, key=lambda name: (name == OWNER_FILE, not name.endswith(manifest.FILE))))
    return True


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


def _patiently(work: Callable[[], Result]) -> Result:
    """Ask an object store again while it is away, but not for ever.

    Raises:
        TrinityError: it was away for PATIENCE_SECONDS. Other errors come at once.
    """
    deadline, is_said = time.monotonic() + PATIENCE_SECONDS, False
    while True:
        try:
            return work()
        except Unreachable as error:
            if time.monotonic() > deadline:
                raise TrinityError(
                    f"{error} It was asked again for {PATIENCE_SECONDS:.0f} s. When it answers, start again."
                ) from error
            if not is_said:
                logger.warning("%s Trying again.", error)
            is_said = True
        time.sleep(PAUSE_SECONDS)
