"""Publishes policy versions and saves checkpoints.

Threads write the files of a version and of a checkpoint while the trainer computes the next steps. The thread
that writes a version records it in the store once its files are durable. The trainer's main thread records
checkpoints between two steps, since all ranks take part.
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trinity_db.errors import DiskFull
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.states import WorkerRole
from trinity_db.store import policies, workers
from trinity_db.store.metrics import record_metrics
from trinity_db.trainer.checkpoints import checkpoint as checkpoints
from trinity_db.trainer.checkpoints import run_files, run_objects
from trinity_db.trainer.checkpoints import version as versions
from trinity_db.trainer.checkpoints.cadence import Cadence
from trinity_db.trainer.checkpoints.folder import Publication
from trinity_db.trainer.checkpoints.older_versions import OlderVersions
from trinity_db.trainer.checkpoints.retrying_bucket import GivenUp
from trinity_db.trainer.checkpoints.trainer_lock import Hold
from trinity_db.trainer.checkpoints.writing import Writing
from trinity_db.trainer.loop.lead_follow import Leader, Saving
from trinity_db.trainer.loop.setup import TrainerSetup
from trinity_db.trainer.loop.uploading import Uploading
from trinity_db.weights.broadcast import Broadcasts
from trinity_db.worker.service import LEASE_SECONDS

logger = logging.getLogger(__name__)

END_SECONDS = 60.0  # that the end of a run waits for older versions to be converted to deltas


@dataclass(frozen=True)
class _Unrecorded:
    """A version whose files are being written, and which is not yet in the store."""

    version: int
    step: int
    folder: Path
    writing: Writing
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class _Unsaved:
    """A version whose checkpoint is being written."""

    version: int
    saving: Saving
    hash: str | None = None
    """Digest; None until the checkpoint is complete."""


class Publisher:
    """Publishes the versions of one learner, and saves its checkpoints.

    At most one version and one checkpoint are written at a time.

    Args:
        hold: The trainer's hold of the run. It records the newest version, which a publication changes.
        files: The run's own folder of checkpoints, and its objects.
        policy: The version that the learner started from.
        total_steps: Steps of the whole run.
        broadcasts: Sends new versions to explorers; None: they use the files.
    """

    def __init__(
        self,
        hold: Hold,
        files: run_files.RunFiles,
        setup: TrainerSetup,
        learner: Leader,
        tokenizer: Any,
        *,
        policy: policies.PolicyVersion,
        total_steps: int,
        broadcasts: Broadcasts | None = None,
    ) -> None:
        self._hold = hold
        self._files = files
        self._folder = files.folder
        self._setup = setup
        self._learner = learner
        self._tokenizer = tokenizer
        self._total_steps = total_steps
        self._broadcasts = broadcasts
        self._unrecorded: _Unrecorded | None = None
        self._recorded_step = policy.step
        """Step of the newest version in the store."""
        self._begun_step = policy.step
        """Step of the newest version, recorded or not."""
        self._unsaved: _Unsaved | None = None
        self._checkpoint_step = policy.step
        """Step of the latest checkpoint, recorded or not."""
        with hold.database.transaction() as tx:
            self._cadence = Cadence(policies.seconds_since(tx, hold.run.id, policy.version))
        self._older = OlderVersions(files, setup.trainer.keep_checkpoints, setup.trainer.keep_deltas)
        self._uploading = Uploading(hold, files)
        if policy.resumed is not None:
            self._uploading.add(policy.version, policy.resumed)

    @property
    def is_writing(self) -> bool:
        """Whether a version is not yet in the store."""
        return self._unrecorded is not None

    @property
    def version_of_weights(self) -> int | None:
        """The version with the current weights; None after a step that was not published."""
        with self._hold.lock:
            return self._hold.mark.version if self._learner.steps_done == self._recorded_step else None

    def is_due(self) -> bool:
        """Whether to publish the current weights."""
        return self._learner.steps_done - self._begun_step >= self._setup.publish_every

    def check_room(self) -> None:
        """Check that the disk has room for the next writes, and for the version and checkpoint of a stop.

        Raises:
            DiskFull: if it does not, after the trainer has saved all steps.
            TrinityError: if the steps cannot be saved.
        """
        version, checkpoint = self._learner.policy.version_bytes, checkpoints.num_bytes(self._learner)
        need = version + checkpoint
        if self.is_due():
            need += version + (checkpoint if self._checkpoint_is_due() else 0)
        if self._unsaved is not None and self._unsaved.hash is None:
            need += checkpoint
        free = shutil.disk_usage(self._folder.path).free
        if free >= need:
            return
        self.publish_rest()
        raise DiskFull(
            f"{self._folder.path}: {free / 1e6:.0f} MB are free, and the next version and checkpoint need "
            f"{need / 1e6:.0f} MB. Step {self._learner.steps_done} is saved. Free space there, lower "
            "trainer.keep_checkpoints, or name another folder with trainer.checkpoints, and start again."
        )

    def publish(self) -> None:
        """Start writing the current weights as the next version, and a checkpoint of it if one is due.

        `record` finishes the version, and `record_checkpoint` the checkpoint.
        """
        self._older.catch_up()
        is_due = self._checkpoint_is_due()
        if is_due:
            self.record_checkpoint()
        version = self._begin()
        if is_due:
            self._begin_checkpoint(version)

    def publish_rest(self) -> None:
        """Publish and save the steps that no checkpoint includes, so that the next start repeats none."""
        self.record_checkpoint()
        self.record()
        if self._learner.steps_done > self._checkpoint_step:
            is_published = self._learner.steps_done == self._recorded_step
            self._begin_checkpoint(self._hold.mark.version if is_published else self._begin())
            self.record_checkpoint()
        self._uploading.finish(self._learner.steps_done)
        run_objects.sweep(self._files)

    def finish(self) -> None:
        """Wait until older versions are converted to deltas, at the end of the run."""
        self._older.wait(END_SECONDS)

    def record(self) -> None:
        """Wait for the version that is being written, and record it unless its thread has.

        Raises:
            LeaseLost: if another trainer has taken over the run.
            SetBack: if the server has lost steps or versions.
            TrinityError: if the files cannot be written.
        """
        new = self._unrecorded
        if new is None:
            return
        digest = new.writing.digest()
        self._hold.retry(partial(self._record, new, digest), self._learner.steps_done)

    def record_checkpoint(self) -> None:
        """Wait for the checkpoint that is being written, and record it after its version.

        Raises:
            LeaseLost, SetBack, TrinityError: see `record`.
        """
        if self._unsaved is None:
            return
        self.record()
        if self._unsaved.hash is None:
            self._unsaved = replace(self._unsaved, hash=self._unsaved.saving.finish())
            self._cadence.written(self._unsaved.saving.seconds)
        self._hold.retry(partial(self._record_checkpoint, self._unsaved), self._learner.steps_done)

    def record_checkpoint_if_written(self) -> None:
        """Record a checkpoint that is completely written or uploaded. All ranks are between two steps."""
        self._uploading.record_if_uploaded(self._learner.steps_done)
        if self._unsaved is not None and self._unsaved.saving.has_ended:
            self.record_checkpoint()

    def abandon(self) -> None:
        """Wait for unrecorded files. The next start removes them."""
        self._older.abandon()
        if (unrecorded := self._unrecorded) is not None:
            unrecorded.writing.wait()
            self._unrecorded = None
        if self._unsaved is not None:
            self._unsaved.saving.wait()
            self._unsaved = None
        self._uploading.abandon()

    def _checkpoint_is_due(self) -> bool:
        """Whether to save a checkpoint with the current version."""
        every, step = self._setup.trainer.checkpoint_every, self._learner.steps_done
        if step >= self._total_steps:
            return True
        if every == "auto":
            return self._unsaved is None and self._cadence.is_due
        return step - self._checkpoint_step >= every

    def _begin(self) -> int:
        """Start writing a version, after the previous one is recorded. Return its number."""
        self.record()
        self._choose_dtype()
        step = self._learner.steps_done
        with self._hold.database.transaction() as tx:
            version = (policies.latest_version(tx, self._hold.run.id) or 0) + 1
            recorded = policies.with_checkpoint(tx, self._hold.run.id) if self._files.uploads else []
        folder = self._folder.version_folder(version)
        publish = partial(
            self._publish,
            version,
            folder,
            [policy_version.weights for policy_version in recorded if policy_version.weights],
        )
        policy = self._learner.policy
        if policy.visible and not policy.visible.has_start:
            logger.info(
                "publish/visible counts from version %d on: the checkpoint has no sample of version 0",
                version,
            )
        with self._hold.lock:  # the thread waits for it before it records the attributes set here
            writing = versions.begin(folder, self._learner, self._tokenizer, publish)
            self._unrecorded = _Unrecorded(version, step, folder, writing, policy.measured)
        self._begun_step = step
        return version

    def _choose_dtype(self) -> None:
        """With `publish_dtype: auto`, choose the 16-bit format of all running explorers, else float32.

        Without running explorers the format is unchanged. An adapter's own matrices are always in float32.
        """
        policy = self._learner.policy
        if self._setup.trainer.publish_dtype != "auto" or policy.publishes_adapter:
            return
        with self._hold.database.transaction(read_only=True) as tx:
            formats = workers.engine_dtypes(tx, self._hold.run.id, LEASE_SECONDS)
        if not formats:
            return
        agreed = formats.pop() if len(formats) == 1 else None
        dtype = agreed or "float32"
        if dtype != str(policy.publish_dtype).removeprefix("torch."):
            logger.info("versions are in %s from now on: trainer.publish_dtype is auto", dtype)
            self._learner.publish_in(dtype)

    def _publish(self, version: int, folder: Path, addresses: Sequence[str], digest: str) -> None:
        """Upload and record a version whose files are durable, in the thread that wrote them.

        An error while recording is left to `record`, which retries in the trainer's main thread.
        """
        self._upload(version, folder, addresses, digest)
        with suppress(Exception), self._hold.lock:
            if self._unrecorded is not None and self._unrecorded.version == version:
                self._record(self._unrecorded, digest)
        self._hold.database.close()  # the connection of this thread

    def _upload(self, version: int, folder: Path, addresses: Sequence[str], digest: str) -> None:
        """Upload a version whose files are durable, in the thread that wrote them, and delete older
        objects."""
        if self._files.uploads is None:
            return
        try:
            self._files.uploads.versions.upload(version, folder, digest)
            self._files.uploads.versions.sweep(addresses)
        except GivenUp as error:  # publish it without an upload
            logger.warning("version %d is not uploaded: %s The next start here uploads it.", version, error)

    def _begin_checkpoint(self, version: int) -> None:
        """Start writing a checkpoint of a version with the current weights. No other checkpoint is
        unrecorded."""
        saving = self._learner.begin_checkpoint(self._folder.checkpoint_folder(version))
        self._unsaved = _Unsaved(version, saving)
        self._checkpoint_step = self._learner.steps_done

    def _record(self, new: _Unrecorded, digest: str) -> None:
        """Record a version whose files are durable. Then delete versions that are no longer kept."""
        with self._hold.lock:
            if self._unrecorded is new:
                self._record_unrecorded(new, digest)

    def _record_unrecorded(self, new: _Unrecorded, digest: str) -> None:
        hold, uploads = self._hold, self._files.uploads
        weights = None if uploads is None else uploads.versions.address(new.version)
        policy = policies.PolicyVersion(new.version, new.step, new.folder, digest, weights=weights)
        if self._broadcasts is not None:
            self._broadcasts.offer(policy.checkpoint, digest)
        done = replace(hold.mark, version=policy.version)
        with hold.database.transaction() as tx:
            hold.check(tx, done)
            policies.publish(tx, hold.run.id, policy, hold.worker_id)
            record_metrics(tx, hold.run.id, WorkerRole.TRAIN, policy.step, new.metrics)
            pruned = self._prune(tx, self._unsaved)
        hold.mark = done
        self._recorded_step = policy.step
        self._drop(pruned)
        self._folder.acknowledge(Publication(policy.version, policy.step, digest))
        self._unrecorded = None  # last: if writing the note fails, the next call repeats this and raises

    def _record_checkpoint(self, new: _Unsaved) -> None:
        """Record a checkpoint whose files are durable. Then delete checkpoints that are no longer kept."""
        assert new.hash is not None, "all of it is written"
        with self._hold.lock, self._hold.database.transaction() as tx:
            self._hold.check(tx)
            saved = policies.Checkpoint(new.saving.folder, new.hash)
            policies.record_checkpoint(tx, self._hold.run.id, new.version, saved)
            pruned = self._prune(tx, None)
        self._drop(pruned)
        self._folder.acknowledge_checkpoint(new.version, new.hash)
        self._unsaved = None  # last, after recording; an upload that does not start here starts later
        self._uploading.add(new.version, saved)

    def _prune(self, tx: Transaction, unsaved: _Unsaved | None) -> policies.PrunedCheckpoints:
        """Delete the records of versions that are no longer kept. `_drop` deletes files after the
        transaction."""
        settings = self._setup.trainer
        return policies.prune(
            tx,
            self._hold.run.id,
            settings.keep_checkpoints,
            settings.keep_every,
            settings.keep_best,
            saving=None if unsaved is None else unsaved.version,
            uploading=self._uploading.version,
            packed=self._older.kept(tx),
        )

    def _drop(self, pruned: policies.PrunedCheckpoints) -> None:
        """Delete folders without records, and start converting versions that may become deltas."""
        for old, files in pruned.deleted:
            self._folder.delete(old, files)
        self._older.convert(pruned.packable)
