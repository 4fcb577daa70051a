"""The trainer: draws batches, learns from them, commits them and publishes versions.

The trainer owns the learner and its step counter. Before each draw this counter equals the number of
committed batches in the weights. The trainer reads batches from the store and writes checkpoints. It never
communicates with an explorer or a processor. A run has one trainer.
"""

import logging
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from trinity_db.models import context_length, end_tokens, load_tokenizer
from trinity_db.models.adapter_folder import Base
from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, policies, runs, scores, workers
from trinity_db.store.metrics import outcomes_of
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.checkpoints import lost_versions, recovery, run_files, run_objects, starting_model
from trinity_db.trainer.checkpoints.retrying_bucket import GivenUp
from trinity_db.trainer.checkpoints.trainer_lock import Hold
from trinity_db.trainer.distribution.ranks import ALONE, Ranks
from trinity_db.trainer.learner.learner import NonFiniteLoss
from trinity_db.trainer.learner.micro_batches import Abandoned
from trinity_db.trainer.learner.visible_updates import shown_in_log
from trinity_db.trainer.loop import adopted_rows, drawing, lead_follow
from trinity_db.trainer.loop.held_out import HeldOut
from trinity_db.trainer.loop.publishing import Publisher
from trinity_db.trainer.loop.run_length import RunLength, run_length
from trinity_db.trainer.loop.sampling import sampler_of
from trinity_db.trainer.loop.setup import TrainerSetup
from trinity_db.trainer.rows import batch_from_store, step_metrics
from trinity_db.trainer.rows.precompute import score_adopted
from trinity_db.weights.broadcast import Broadcasts
from trinity_db.worker.service import Service

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0  # between lines in the log


class Trainer(Service):
    """The only trainer of a run."""

    role = WorkerRole.TRAIN
    exclusive = True

    def __init__(self, database: Database, run: runs.Run, setup: TrainerSetup, ranks: Ranks = ALONE) -> None:
        super().__init__(database, run)
        self._setup = setup
        self._ranks = ranks
        self._sampler = sampler_of(setup.sampler)
        self._learner: lead_follow.Leader
        self._hold: Hold
        """Used by each transaction to check that the store still agrees with this trainer."""
        self._files: run_files.RunFiles
        self._publisher: Publisher
        self._held_out: HeldOut
        self._rows: dict[int, int] = {}
        """Number of rows of each step since the start."""
        self._lost_weights: lost_versions.Weights | None = None
        """Steps in the weights when the trainer found that the server had lost some of them. None once the
        setback is recorded."""
        self._score_names: list[scores.Name] = []
        """Stored scores to read with each batch."""
        self._broadcasts: Broadcasts | None = None
        """Sends versions to explorers. It is kept when the trainer starts again."""
        self._length = RunLength(0)
        self._has_begun = False
        """Whether there are a learner and a publisher. A stop may end `start` before there are."""
        self._is_exhausted = False
        self._waiting_since = time.monotonic()
        self._logged_at = 0.0

    def start(self) -> None:
        """Continue from the latest complete checkpoint. Rows that it does not include are drawn again."""
        setup = self._setup
        setup.check()
        weights = setup.trainer.weights
        files = run_files.own_folder(
            self.database, self.run, self.worker_id, setup.checkpoints, weights, lambda: self.stopping
        )
        lost = run_files.clear_leftovers(files)
        self._begin_broadcasts()  # before version 0 exists: an explorer may not have access to its folder
        starting_model.publish_first_version(files, setup.model, setup.seed)
        policy = recovery.recover(files, setup.allowed, lost, self._lost_weights)
        run_objects.upload_missing(files, policy)
        if self._broadcasts is not None:
            self._broadcasts.offer(policy.checkpoint, policy.checkpoint_hash)
        self._hold = Hold(self.database, self.run, self.worker_id, give_up=lambda: self.stopping)
        first = starting_model.first_model(files) if setup.needs_first_model else None
        first_digest = starting_model.first_digest(self.database, self.run)
        whole = policy.checkpoint
        if setup.trainer.lora is not None and first is not None:
            files.folder.note_base(Base(first, first_digest))
            whole = first
        renderer = ChatRenderer(load_tokenizer(whole), setup.model, end_tokens(whole))
        tokenizer = renderer.tokenizer
        self._prepare_adopted_rows(files, context_length(whole), renderer)
        if self.stopping:  # rows without tokens may remain, and the rest needs the tokens of all
            return
        self._length = run_length(self.database, self.run, setup, policy.step)
        learner = lead_follow.LearnerSetup(
            setup.trainer,
            setup.algorithm,
            policy.checkpoint,
            policy.resumed.folder if policy.resumed else None,
            total_steps=self._length.steps,
            seed=setup.seed,
            reference=first,
            reference_digest=first_digest,
            temperature=setup.temperature if setup.is_online else 1.0,
        )
        self._learner = lead_follow.lead(learner, self._ranks, lambda: self.stopping)
        logger.info("computes on %s, %d ranks", self._learner.policy.forward.computing, self._ranks.size)
        if setup.trainer.sharding == "full" and self._ranks.size == 1:
            logger.warning("trainer.sharding: full has no effect with one rank, and neither has offload")
        self._begin(files, tokenizer, policy)

    def serve(self) -> None:
        """Run like every role. If it should stop while it waits for the object store, end immediately."""
        try:
            super().serve()
        except GivenUp as error:
            logger.warning("%s No more requests were sent to the object store, as the trainer stops.", error)

    def work(self) -> bool:
        """Take one step. Return False if no batch can be drawn now, or if the run has ended."""
        try:
            return self._work()
        except batches.SetBack:
            pass
        self._go_back()
        return True

    def is_done(self) -> bool:
        """After the last step, or when no adopted row has uses left: publish, and finish the run."""
        if not self._is_at_last_step() and not self._is_exhausted:
            return False
        try:
            return self._finish()
        except batches.SetBack:
            pass
        self._go_back()
        return False

    def release(self) -> None:
        """Publish and save the steps that no checkpoint includes, so that the next start repeats none."""
        if self._has_begun:
            self._publisher.publish_rest()

    def _begin(self, files: run_files.RunFiles, tokenizer: Any, policy: policies.PolicyVersion) -> None:
        """Start working with a new learner, which continues from the checkpoint of a version."""
        setup = self._setup
        self._files = files
        self._publisher = Publisher(
            self._hold,
            files,
            setup,
            self._learner,
            tokenizer,
            policy=policy,
            total_steps=self._length.steps,
            broadcasts=self._broadcasts,
        )
        self._held_out = HeldOut(
            self.database,
            self.run,
            setup,
            self._learner,
            self._score_names,
            total_steps=self._length.steps,
        )
        self._has_begun = True
        self._lost_weights = None
        self._rows = {}
        self._is_exhausted = False
        self._waiting_since = time.monotonic()

    def _begin_broadcasts(self) -> None:
        """Announce the address of version broadcasts to explorers, if configured."""
        address = self._setup.trainer.broadcast
        if address is None or not self._setup.is_online:
            return
        self._broadcasts = self._broadcasts or Broadcasts(address)
        with self.database.transaction() as tx:
            workers.record_broadcast(tx, self.worker_id, self._broadcasts.address)

    def _prepare_adopted_rows(self, files: run_files.RunFiles, context: int, renderer: ChatRenderer) -> None:
        """Tokenise adopted rows and, if the reference is precomputed, score them with it."""
        setup = self._setup
        adopted_rows.prepare(
            self.database, self.run, self.worker_id, setup, context, renderer, lambda: self.stopping
        )
        if self.stopping:
            return
        self._score_names = ["teacher"] if "teacher" in create(setup.algorithm).needs else []
        if setup.trainer.reference.name == "precomputed":
            self._score_names.append("reference")
            score_adopted(files, setup.trainer, self._load_starting_model, lambda: self.stopping)

    def _load_starting_model(self, folder: Path) -> lead_follow.LeadingScores:
        setup = lead_follow.ScoringSetup(self._setup.trainer, folder)
        return lead_follow.lead_scores(setup, self._ranks, lambda: self.stopping)

    def _is_at_last_step(self) -> bool:
        """Whether trainer.steps or a partial pass are done. An offline run without ends with its rows."""
        return self._length.is_last and self._learner.steps_done >= self._length.steps

    def _work(self) -> bool:
        self._ranks.check()
        setup = self._setup
        if self._is_at_last_step():
            return False
        # All come before a step, not after it, so that they are retried if the database was unreachable.
        self._publisher.record_checkpoint_if_written()
        self._publisher.check_room()
        if self._publisher.is_due():
            self._publisher.publish()
            self._waiting_since = time.monotonic()
        if setup.max_staleness == 0:
            self._publisher.record()
        if self._held_out.is_due():
            if not self._held_out.evaluate():
                return True
            self._waiting_since = time.monotonic()
        with self._hold.lock:  # so that no version is recorded while the draw counts staleness
            draw = self._next_draw()
            with self.database.transaction() as tx:
                batch = drawing.draw_batch(tx, draw, setup, self._learner.algorithm, self._sampler)
        if batch is None:
            if draw.versions_ahead:  # once the version is recorded, explorers may start more groups
                self._publisher.record()
                return True
            with suppress(GivenUp):  # the next start repeats it
                run_objects.upload_broken(self._files)
            self._is_exhausted = not setup.is_online
            return False
        try:
            metrics = self._train_on(batch)
        except (Abandoned, NonFiniteLoss) as error:
            with self.database.transaction() as tx:
                batches.reopen_leased(tx, draw)
            if isinstance(error, NonFiniteLoss):
                self.release()  # the previous steps are valid, and the next start need not repeat them
                raise
            logger.info("step %d was abandoned; its rows are released", batch.step)
            return True
        self._publisher.record()
        self._publisher.record_checkpoint_if_written()
        commit = partial(self._hold.commit, batch, setup.uses_of_row, metrics)
        self._hold.retry(commit, self._learner.steps_done)
        self._log(metrics)
        self._waiting_since = time.monotonic()
        return True

    def _finish(self) -> bool:
        """Publish the rest, and finish the run. Return False if a stop ended the evaluation before."""
        self.release()
        if not self._held_out.evaluate():
            return False
        self._hold.finish()
        self._publisher.finish()
        logger.info("run '%s' is finished after %d steps", self.run.name, self._learner.steps_done)
        return True

    def _go_back(self) -> None:
        """Restart from the state of the store: the server has lost steps that the weights contain.

        Call it after `except`, not within: while an error is handled, its traceback keeps the learner in
        memory.
        """
        if self._lost_weights is None:
            self._lost_weights = lost_versions.Weights(self._learner.steps_done, self._rows)
        self._publisher.abandon()
        logger.warning("the store has another last step or version than before: restarting from its state")
        self._has_begun = False
        del self._learner, self._publisher, self._held_out  # so that memory never holds two learners
        self.database.retry(self.start, give_up=lambda: self.stopping)

    def _next_draw(self) -> batches.Draw:
        setup = self._setup
        return batches.Draw(
            self.run.id,
            self.worker_id,
            self._learner.steps_done + 1,
            setup.trainer.batch_size,
            self.run.seed,
            setup.max_uses,
            setup.expert_rows,
            setup.expert_shares,
            self._hold.mark,
            versions_ahead=int(self._publisher.is_writing),
        )

    def _train_on(self, batch: batches.Batch) -> dict[str, float]:
        waited = time.monotonic() - self._waiting_since
        started = time.monotonic()
        algorithm = self._learner.algorithm
        compares = algorithm.compares & algorithm.needs.keys()
        drawn = batches.read(self.database, batch.id)
        with self.database.transaction() as tx:
            rows = batch_from_store.drawn_batch(
                tx, drawn, batch.experts, self._score_names, compares, self._publisher.version_of_weights
            )
            outcomes = outcomes_of(tx, batch.id) if self._setup.algorithm.draws == "groups" else None
        self._rows[batch.step] = len(drawn)
        metrics = self._learner.step(rows)
        if outcomes is not None:
            metrics |= step_metrics.of_rollouts(rows, outcomes)
        if not self._setup.is_online:
            metrics["epoch"] = batch.step * self._length.epochs / self._length.steps
        computed = time.monotonic() - started
        metrics |= step_metrics.of_memory(self._learner.policy.device)
        return metrics | step_metrics.of_time(rows, waited=waited, computed=computed, ranks=self._ranks.size)

    def _log(self, metrics: dict[str, float]) -> None:
        step = self._learner.steps_done
        if time.monotonic() - self._logged_at > PROGRESS_SECONDS or step == self._length.steps:
            self._logged_at = time.monotonic()
            metrics |= shown_in_log(self._learner.policy.measured)
            logger.info("step %d of %d: %s", step, self._length.steps, step_metrics.short(metrics))
