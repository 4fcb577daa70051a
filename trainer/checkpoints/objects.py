"""The folders of one kind that a run has in an object store: its versions, or its checkpoints.

Each has a name of its own that is never used again, so a replaced trainer that still runs writes into no
folder of its successor. A process deletes only those whose names it knew before the store of the run last
told it which are kept.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from trinity_db.errors import TrinityError
from trinity_db.trainer.checkpoints.patience import PatientBucket
from trinity_db.weights import at_once, manifest
from trinity_db.weights.bucket import PART_BYTES
from trinity_db.weights.manifest import File, Manifest

logger = logging.getLogger(__name__)


class Objects:
    """What a run has of one kind. One thread at a time calls it.

    Args:
        kind: version or checkpoint.
        found: the names of all objects that were there at first.
    """

    def __init__(self, bucket: PatientBucket, kind: str, found: Iterable[str]) -> None:
        self._bucket, self._kind = bucket, kind
        folders = {one.partition("/")[0] for one in found}
        own = [name for name in folders if manifest.NAME.fullmatch(name) and name.startswith(kind)]
        self._known: dict[str, Manifest | None] = dict.fromkeys(own)
        """By the names of folders that are there, whole or not: their manifests, once they were read."""
        self._newest: str | None = None
        """The name of the one that was uploaded last, or is being uploaded."""

    def has(self, address: str | None) -> bool:
        """Whether one with this address was there when this trainer started, or was uploaded by it."""
        if address is None or not address.startswith(f"{self._bucket.url}/"):
            return False
        name = address.rpartition("/")[2]
        return name in self._known and self._manifest(name) is not None

    def sweep(self, kept: Iterable[str]) -> None:
        """Delete all but these, those that they lie on, and the newest one of this process.

        Args:
            kept: the addresses that the store of the run had, after this process learnt of each that goes.
        """
        try:
            self._sweep(kept)
        except TrinityError as error:
            logger.warning("objects of %ss that are not kept stay for now: %s", self._kind, error)

    def _sweep(self, kept: Iterable[str]) -> None:
        found = [address.rpartition("/")[2] for address in kept]
        found += [self._newest] if self._newest else []
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
            # The manifest first: a folder whose objects are missing must not look whole.
            self._bucket.delete(sorted(objects, key=lambda one: not one.endswith(f"/{manifest.FILE}")))
            del self._known[name]

    def _new(self, version: int) -> str:
        """A name that was never used."""
        name = f"{self._kind}-{version:06d}-{uuid4().hex[:8]}"
        self._known[name] = None
        return name

    def _put(self, name: str, file: File, source: Path) -> File:
        """Put the bytes of a file as objects, several at a time."""
        names = file.names(name)

        def put(number: int) -> None:
            with source.open("rb") as content:
                content.seek(number * PART_BYTES)
                block = content.read(PART_BYTES)
            self._bucket.put(names[number], block)

        at_once.do(put, range(len(names)))
        return file

    def _complete(self, name: str, made: Manifest) -> str:
        """Put the manifest when all files are there. Return the address."""
        self._bucket.put(f"{name}/{manifest.FILE}", made.content)
        self._known[name], self._newest = made, name
        return f"{self._bucket.url}/{name}"

    def _manifest(self, name: str) -> Manifest | None:
        """The manifest of one that is known; None if there is none that can be read."""
        if self._known[name] is None:
            try:
                self._known[name] = manifest.read(self._bucket, name)
            except manifest.Broken as error:
                logger.warning("%s", error)
        return self._known[name]
