"""Downloads a folder's files from an object store."""

import logging
import threading
import time
from pathlib import Path
from uuid import uuid4

from trinity_db.weights import daemon_threads, delta
from trinity_db.weights.bucket import Bucket, Missing, TooLarge
from trinity_db.weights.manifest import BrokenUpload, Manifest, UploadedFile

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0  # between lines in the log


def make(folder: Path, bucket: Bucket, name: str, manifest: Manifest) -> None:
    """Make the files of a version or a checkpoint, in a copy of its base or in an empty folder.

    Args:
        name: its name below the bucket's address.

    Raises:
        Broken: if an object is missing or has another size.
        Damaged: if a delta does not fit the base.
        TrinityError: as `Bucket.get`.
        OSError: if the files cannot be written.
    """
    named = {Path(file.path) for file in manifest.files}
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder) not in named:
            path.unlink()
    progress = _Progress(name, manifest.stored)
    for file in manifest.files:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.encoding == "whole":
            _get(bucket, name, file, target, progress)
        elif not target.is_file():
            raise delta.Damaged(f"The base has no {file.path}.")
        elif file.encoding == delta.ENCODING:
            change = folder / f"{uuid4().hex}.delta"
            _get(bucket, name, file, change, progress)
            made = folder / f"{uuid4().hex}.made"
            delta.apply([change], target, made)
            made.replace(target)
            change.unlink()


class _Progress:
    """Logs the progress of a long fetch."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._done = name, total, 0
        self._said_at = time.monotonic()
        self._one_at_a_time = threading.Lock()

    def add(self, num_bytes: int) -> None:
        with self._one_at_a_time:
            self._done += num_bytes
            if time.monotonic() - self._said_at > PROGRESS_SECONDS:
                self._said_at = time.monotonic()
                logger.info("%s: %.1f of %.1f MB fetched", self._name, self._done / 1e6, self._total / 1e6)


def _get(bucket: Bucket, name: str, file: UploadedFile, target: Path, progress: _Progress) -> None:
    """Fetch the objects of a file, several at a time."""
    names = file.names(name)

    def get(number: int) -> None:
        start = number * file.part
        size = min(file.part, file.stored - start)
        content = bucket.get(names[number], size)
        if len(content) != size:
            raise BrokenUpload(f"{bucket.url}/{names[number]}: has another size than its manifest records.")
        with target.open("r+b") as out:
            out.seek(start)
            out.write(content)
        progress.add(len(content))

    target.write_bytes(b"")
    try:
        daemon_threads.in_parallel(get, len(names))
    except (Missing, TooLarge) as error:
        raise BrokenUpload(str(error)) from error
