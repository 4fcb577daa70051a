"""Objects of one kind that a run has in an object store: its versions, or its checkpoints.

Each has a unique name, so that a replaced trainer that still runs does not write into folders of its
successor. A process only deletes objects whose names it knew before it last read from the run's store which
ones are kept.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from trinity_db.errors import TrinityError
from trinity_db.trainer.checkpoints.retrying_bucket import PatientBucket
from trinity_db.weights import daemon_threads, manifest
from trinity_db.weights.bucket import PART_BYTES
from trinity_db.weights.manifest import Manifest, UploadedFile

logger = logging.getLogger(__name__)


class Objects:
    """A run's objects of one kind. It is used by one thread at a time.

    Args:
        kind: version or checkpoint.
        names: Names of all objects that existed initially.
    """

    def __init__(self, bucket: PatientBucket, kind: str, names: Iterable[str]) -> None:
        self._bucket, self._kind = bucket, kind
        folders = {name.partition("/")[0] for name in names}
        own = [name for name in folders if manifest.NAME.fullmatch(name) and name.startswith(kind)]
        self._known: dict[str, Manifest | None] = dict.fromkeys(own)
        """Manifests by the names of existing folders, complete or not; None until read."""
        self._newest: str | None = None
        """Name of the folder uploaded last, or being uploaded."""

    def has(self, address: str | None) -> bool:
        """Whether an object with this address existed when this trainer started, or was uploaded by it."""
        if address is None or not address.startswith(f"{self._bucket.url}/"):
            return False
        name = address.rpartition("/")[2]
        return name in self._known and self._manifest(name) is not None

    def sweep(self, addresses: Iterable[str]) -> None:
        """Delete all folders except these, their bases, and the newest one of this process.

        Args:
            addresses: Addresses in the run's store, read after this process knew all folders to delete.
        """
        try:
            self._sweep(addresses)
        except TrinityError as error:
            logger.warning("objects of %ss that are not kept stay for now: %s", self._kind, error)

    def _sweep(self, addresses: Iterable[str]) -> None:
        waiting = [address.rpartition("/")[2] for address in addresses]
        waiting += [self._newest] if self._newest else []
        needed = set[str]()
        while waiting:
            name = waiting.pop()
            if name in needed or name not in self._known:
                continue
            needed.add(name)
            if (made := self._manifest(name)) is not None:
                waiting += [base for base in (made.base, made.adapter_on) if base is not None]
        for name in sorted(self._known.keys() - needed):
            objects = self._bucket.names(name)
            # The manifest first: a folder with missing objects must not look complete.
            self._bucket.delete(sorted(objects, key=lambda path: not path.endswith(f"/{manifest.FILE}")))
            del self._known[name]

    def _new(self, version: int) -> str:
        """Return a unique name."""
        name = f"{self._kind}-{version:06d}-{uuid4().hex[:8]}"
        self._known[name] = None
        return name

    def _put(self, name: str, file: UploadedFile, source: Path) -> UploadedFile:
        """Put the bytes of a file as objects, several at a time."""
        names = file.names(name)

        def put(number: int) -> None:
            with source.open("rb") as content:
                content.seek(number * PART_BYTES)
                block = content.read(PART_BYTES)
            self._bucket.put(names[number], block)

        daemon_threads.in_parallel(put, len(names))
        return file

    def _complete(self, name: str, made: Manifest) -> str:
        """Put the manifest when all files are uploaded. Return the address."""
        self._bucket.put(f"{name}/{manifest.FILE}", made.content)
        self._known[name], self._newest = made, name
        return f"{self._bucket.url}/{name}"

    def _manifest(self, name: str) -> Manifest | None:
        """Return the manifest of a known folder; None if it cannot be read."""
        if self._known[name] is None:
            try:
                self._known[name] = manifest.read(self._bucket, name)
            except manifest.BrokenUpload as error:
                logger.warning("%s", error)
        return self._known[name]
