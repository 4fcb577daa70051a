"""The trainer of a run whose model is trained by a program outside of trinity-db.

It does with the store and the folder of checkpoints what the built-in trainer does, with the same functions,
and computes nothing: the program gets rows, and a folder to write its model to. Each method is one or more
whole transactions; none stays open while the program works.
"""

import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from trinity_db.errors import LeaseLost, TrinityError
from trinity_db.models import context_length, end_tokens, folder_digest, load_tokenizer
from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, policies, runs
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.checkpoints import recovery, run_files, starting_model, writing
from trinity_db.trainer.checkpoints.folder import Publication
from trinity_db.trainer.checkpoints.trainer_lock import Hold
from trinity_db.trainer.loop import adopted_rows, drawing
from trinity_db.trainer.loop.run_length import RunLength, run_length
from trinity_db.trainer.loop.sampling import sampler_of
from trinity_db.trainer.loop.setup import TrainerSetup
from trinity_db.worker.service import POLL_SECONDS, Pulse, Service

logger = logging.getLogger(__name__)


class ExternalTrainer(Service):
    """The only trainer of a run, for a program that calls its methods instead of `serve`.

    A thread sends heartbeats from `open` to `close`.
    """

    role = WorkerRole.TRAIN
    exclusive = True

    def __init__(self, database: Database, run: runs.Run, setup: TrainerSetup) -> None:
        super().__init__(database, run)
        self._setup = setup
        self._algorithm = create(setup.algorithm)
        self._sampler = sampler_of(setup.sampler)
        self._pulse = Pulse(self)
        self._files: run_files.RunFiles
        self._hold: Hold
        self._length = RunLength(0)
        self._policy: policies.PolicyVersion
        self._drawn: batches.Batch | None = None
        self._saved: policies.Checkpoint | None = None
        self._saved_step = 0
        self._is_exhausted = False
        self.step = 0
        """Last committed step."""

    @property
    def policy(self) -> policies.PolicyVersion:
        """The newest version, with its folders."""
        return self._policy

    @property
    def saved(self) -> policies.Checkpoint | None:
        """The newest checkpoint; None before the first."""
        return self._saved

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint includes all committed steps."""
        return self._saved_step == self.step

    @property
    def has_ended(self) -> bool:
        """Whether no further batch will be drawn."""
        return self.stopping or self._is_at_end

    @property
    def first_model(self) -> Path:
        """Files of version 0, the starting model."""
        return starting_model.first_model(self._files)

    @property
    def temperature(self) -> float:
        """Sampling temperature of rows whose payload has none."""
        return self._setup.temperature

    @property
    def steps(self) -> int:
        """Number of steps of the run, including those done."""
        return self._length.steps

    @property
    def is_version_due(self) -> bool:
        """Whether explorers were promised a version that includes the last step."""
        setup = self._setup
        return setup.is_online and self.step - self._policy.step >= setup.publish_every

    @property
    def _is_at_end(self) -> bool:
        return self._is_exhausted or (self._length.is_last and self.step >= self._length.steps)

    def open(self) -> None:
        """Take the run's place for a trainer, and continue from the latest whole checkpoint.

        Raises:
            ConfigError: if the run has a live trainer, or its starting model does not exist.
            TrinityError: if a checkpoint is damaged, or the folder of checkpoints is missing.
        """
        self.worker_id = self._claim_place()
        try:
            self._pulse.start()
            self._retry(self.start)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Continue from the latest complete checkpoint. Rows that it does not include are drawn again."""
        setup = self._setup
        self._files = files = run_files.own_folder(
            self.database, self.run, self.worker_id, setup.checkpoints, should_stop=lambda: self.stopping
        )
        lost = run_files.clear_leftovers(files)
        starting_model.publish_first_version(files, setup.model, setup.seed)
        self._policy = recovery.recover(files, setup.allowed, lost)
        self._hold = Hold(self.database, self.run, self.worker_id, give_up=lambda: self.stopping)
        self.step = self._saved_step = self._policy.step
        self._saved = self._policy.resumed
        if not setup.is_online:
            first = starting_model.first_model(files)
            renderer = ChatRenderer(load_tokenizer(first), setup.model, end_tokens(first))
            adopted_rows.prepare(
                *(self.database, self.run, self.worker_id, setup, context_length(first), renderer),
                should_stop=lambda: self.stopping,
            )
        self._length = run_length(self.database, self.run, setup, self.step)

    def draw(self, seconds: float | None) -> tuple[batches.Batch, list[batches.Row]] | None:
        """Lease the rows of the next step, and read them. A batch that is not committed yet is given back.

        Return None if the run has no further step, or was asked to stop, or the store is being upgraded, or
        after so many seconds.

        Raises:
            TrinityError: if explorers were promised a version before this draw.
            LeaseLost: if another trainer has taken over the run.
            SetBack: if the server has lost steps that this trainer had committed.
        """
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            self._news.clear()
            self._check()
            if self.has_ended:
                return None
            self._check_explorers_go_on()
            self._drawn = batch = self._retry(self._draw)
            if batch is not None:
                return batch, self._retry(partial(batches.read, self.database, batch.id))
            self._is_exhausted = not self._setup.is_online
            if (left := deadline - time.monotonic()) <= 0:
                return None
            if not self._is_exhausted:
                self._news.wait(min(left, POLL_SECONDS))

    def commit(self, batch: batches.Batch, metrics: Mapping[str, float]) -> None:
        """Commit the drawn batch, which is then a step of the run.

        Raises:
            LeaseLost: if the batch was given back, or another trainer has taken over the run.
            SetBack: if the server has lost steps that this trainer had committed.
        """
        self._check()
        if batch != self._drawn:
            raise LeaseLost(f"Batch {batch.id} was given back before; its rows are drawn again.")
        commit = partial(self._hold.commit, batch, self._setup.uses_of_row, metrics)
        self._hold.retry(commit, self.step)
        self.step, self._drawn = batch.step, None

    def give_back(self, batch: batches.Batch) -> None:
        """Make the rows of the drawn batch ready again. No effect on any other batch."""
        if batch == self._drawn:
            self._retry(self._reopen)

    @contextmanager
    def publish(self) -> Iterator[Path]:
        """Publish what the caller writes to a folder as the next version, with all committed steps.

        Raises:
            TrinityError: if there is no new step, or a batch is not committed yet, or the folder is empty.
            LeaseLost, SetBack: see `commit`.
        """
        self._check_is_between_steps(self._policy.step, "version")
        version = self._next_version()
        folder = self._files.folder.version_folder(version)
        with self._written(folder) as aside:
            yield aside
        digest = writing.finish(folder, aside, {})
        self._record(policies.PolicyVersion(version, self.step, folder, digest))

    @contextmanager
    def checkpoint(self) -> Iterator[Path]:
        """Save what the caller writes to a folder as a checkpoint that includes all committed steps.

        It belongs to the version of the last step. If that step is not published, the same files become its
        version.

        Raises: see `publish`.
        """
        self._check_is_between_steps(self._saved_step, "checkpoint")
        is_published = self._policy.step == self.step
        version = self._policy.version if is_published else self._next_version()
        folder = self._files.folder.checkpoint_folder(version)
        with self._written(folder) as aside:
            yield aside
        if any(aside.glob(f"{folder_digest.PART}*")):
            shutil.rmtree(aside)
            raise TrinityError(
                f"A name in the checkpoint begins with '{folder_digest.PART}', as only ranks' parts may."
            )
        saved = policies.Checkpoint(folder, writing.finish(folder, aside, {}))
        policy = self._policy
        if not is_published:
            weights = self._files.folder.version_folder(version)
            digest = writing.write_folder(weights, partial(_link, folder))
            policy = policies.PolicyVersion(version, self.step, weights, digest)
        self._record(policy, saved)
        self._saved, self._saved_step = saved, self.step

    def close(self, *, is_complete: bool = False) -> None:
        """Give back the drawn batch and leave the run.

        Args:
            is_complete: Whether the caller's loop ended without an error. Then the run is finished if it has
                no further step.

        Raises:
            StoreUpgraded: if the loop ended because the store is being upgraded.
        """
        try:
            if is_complete and not self._pulse.failure:
                self._finish_if_done()
        finally:
            self._pulse.stop()
            self._sign_off()
            self.database.close()
        if is_complete and self._upgrade is not None:
            raise self._upgrade

    def _finish_if_done(self) -> None:
        if not self.is_saved:
            logger.warning(
                "run '%s': no checkpoint includes the steps after %d; the next start draws their rows again",
                *(self.run.name, self._saved_step),
            )
        elif self._is_at_end:
            self._hold.retry(self._hold.finish, self.step)
            logger.info("run '%s' is finished after %d steps", self.run.name, self.step)

    def _leave(self) -> None:
        if self._drawn is not None:
            self._reopen()
        super()._leave()

    def _check(self) -> None:
        """Raise the error that ended the heartbeats, if any."""
        if self._pulse.failure is not None:
            raise self._pulse.failure

    def _check_explorers_go_on(self) -> None:
        """Raise an error if explorers may be waiting for a version: the draw would then wait for them."""
        setup = self._setup
        if self.is_version_due and setup.max_staleness is not None:
            raise TrinityError(
                f"Run '{self.run.name}' publishes a version every {setup.publish_every} steps, for which "
                f"explorers wait, and the newest is of step {self._policy.step}: publish one before this "
                "draw, or change trainer.publish_every."
            )

    def _check_is_between_steps(self, last_step: int, title: str) -> None:
        self._check()
        if self._drawn is not None:
            raise TrinityError(
                f"Step {self._drawn.step} is not committed, and the {title} could contain it: commit it "
                "first, or give it back."
            )
        if self.step == last_step:
            raise TrinityError(f"Step {self.step} has a {title} already: commit another step first.")

    def _draw(self) -> batches.Batch | None:
        with self._hold.lock, self.database.transaction() as tx:
            return drawing.draw_batch(tx, self._next_draw(), self._setup, self._algorithm, self._sampler)

    def _reopen(self) -> None:
        with self.database.transaction() as tx:
            batches.reopen_leased(tx, self._next_draw())
        self._drawn = None

    def _next_draw(self) -> batches.Draw:
        setup = self._setup
        return batches.Draw(
            self.run.id,
            self.worker_id,
            self.step + 1,
            setup.trainer.batch_size,
            self.run.seed,
            setup.max_uses,
            after=self._hold.mark,
        )

    def _next_version(self) -> int:
        return self._retry(self._read_next_version)

    def _read_next_version(self) -> int:
        with self.database.transaction() as tx:
            return (policies.latest_version(tx, self.run.id) or 0) + 1

    @contextmanager
    def _written(self, folder: Path) -> Iterator[Path]:
        """Return a temporary folder for the caller's files, and remove it if the caller fails."""
        aside = writing.aside_of(folder)
        with writing.or_nothing(folder, aside):
            aside.mkdir(parents=True)
        try:
            yield aside
            if not any(aside.iterdir()):
                raise TrinityError(f"Nothing was written to {aside}: save the model there, within the block.")
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _record(self, policy: policies.PolicyVersion, saved: policies.Checkpoint | None = None) -> None:
        """Record a version, or its checkpoint, or both, whose files are durable. Delete old ones."""
        pruned = self._hold.retry(partial(self._record_durable, policy, saved), self.step)
        self._policy = policy
        for version, path in pruned.deleted:
            self._files.folder.delete(version, path)
        resume_hash = None if saved is None else saved.hash
        self._files.folder.acknowledge(
            Publication(policy.version, policy.step, policy.checkpoint_hash, resume_hash)
        )

    def _record_durable(
        self, policy: policies.PolicyVersion, saved: policies.Checkpoint | None
    ) -> policies.PrunedCheckpoints:
        hold = self._hold
        with hold.lock:
            mark = hold.mark
            done = batches.Mark(policy.version, mark.step, mark.batch_id, mark.created_at)
            with self.database.transaction() as tx:
                hold.check(tx, done)
                policies.publish(tx, self.run.id, policy, self.worker_id)
                if saved is not None:
                    policies.record_checkpoint(tx, self.run.id, policy.version, saved)
                pruned = policies.prune(tx, self.run.id, self._setup.trainer.keep_checkpoints)
            hold.mark = done
        return pruned


def _link(source: Path, target: Path) -> None:
    """Write the files of a folder to another, as further names of the same files where possible."""
    shutil.copytree(source, target, dirs_exist_ok=True, copy_function=_link_file)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copy2(source, target)
