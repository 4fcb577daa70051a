"""Uploads checkpoints to an object store, one at a time, in parallel to the trainer's steps.

A checkpoint is recorded with its folder before its upload. Its address is recorded when it can be fetched
completely. Of the checkpoints recorded during an upload, the newest is the next one: older ones are skipped.
"""

import logging
from dataclasses import dataclass, replace
from functools import partial

from trinity_db.store import policies
from trinity_db.trainer.checkpoints import run_files
from trinity_db.trainer.checkpoints.retrying_bucket import GivenUp
from trinity_db.trainer.checkpoints.trainer_lock import Hold
from trinity_db.trainer.checkpoints.writing import Writing

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _UnderWay:
    """A checkpoint being uploaded by a thread."""

    version: int
    checkpoint: policies.Checkpoint
    writing: Writing


class Uploading:
    """Uploads the checkpoints of one trainer.

    Args:
        hold: The trainer's hold of the run.
        files: The run's own folder of checkpoints, and its objects.
    """

    def __init__(self, hold: Hold, files: run_files.RunFiles) -> None:
        self._hold = hold
        self._files = files
        self._under_way: _UnderWay | None = None
        self._next: tuple[int, policies.Checkpoint] | None = None

    @property
    def version(self) -> int | None:
        """The version whose checkpoint is being uploaded. Its files must be kept."""
        return None if self._under_way is None else self._under_way.version

    def add(self, version: int, checkpoint: policies.Checkpoint) -> None:
        """Upload the newest recorded checkpoint, unless it is in the object store."""
        uploads = self._files.uploads
        if uploads is None or uploads.checkpoints.has(checkpoint.address):
            return
        self._next = version, checkpoint
        self._begin()

    def record_if_uploaded(self, step: int) -> None:
        """Record an uploaded checkpoint, and start the next upload.

        Args:
            step: The last step in the weights.

        Raises:
            LeaseLost: if another trainer has taken over the run.
            SetBack: if the server has lost steps or versions.
            TrinityError: if the checkpoint cannot be uploaded.
        """
        if self._under_way is None:
            self._begin()  # not started yet if the database was unreachable
        elif self._under_way.writing.has_ended:
            self._end(self._under_way, step)

    def finish(self, step: int) -> None:
        """Wait until all is uploaded and recorded, or until the stopping trainer gives up.

        Raises:
            LeaseLost, SetBack, TrinityError: see `record_if_uploaded`.
        """
        self._begin()
        while self._under_way is not None:
            self._end(self._under_way, step)

    def abandon(self) -> None:
        """Wait for the current upload. The next start deletes unrecorded objects."""
        if self._under_way is not None:
            self._under_way.writing.wait()
        self._under_way = self._next = None

    def _begin(self) -> None:
        """Start uploading the waiting checkpoint, unless an upload is running."""
        if self._next is None or self._under_way is not None:
            return
        uploads = self._files.uploads
        assert uploads is not None, "only a run with an object store uploads"
        version, checkpoint = self._next
        with self._hold.database.transaction() as tx:
            addresses = run_files.addresses(policies.with_checkpoint(tx, self._hold.run.id))
        upload = partial(uploads.checkpoints.upload, version, checkpoint.folder, checkpoint.hash, addresses)
        self._under_way, self._next = _UnderWay(version, checkpoint, Writing("upload", upload)), None

    def _end(self, done: _UnderWay, step: int) -> None:
        """Wait for an upload, record it, and start the next."""
        try:
            address = done.writing.digest()
        except GivenUp as error:
            logger.warning(
                "checkpoint %d is not uploaded: %s The next start here uploads it.", done.version, error
            )
            self._under_way = self._next = None
            return
        uploaded = replace(done.checkpoint, address=address)
        self._hold.retry(partial(self._record, done.version, uploaded), step)
        self._under_way = None
        self._begin()

    def _record(self, version: int, uploaded: policies.Checkpoint) -> None:
        with self._hold.lock, self._hold.database.transaction() as tx:
            self._hold.check(tx)
            policies.record_upload(tx, self._hold.run.id, version, uploaded)
