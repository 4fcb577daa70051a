"""The trainer: draws batches, takes optimizer steps, commits them and publishes versions.

The trainer owns the learner and its step counter. Before each draw this counter equals the number of
committed batches that the weights contain. The trainer reads batches from the store and writes checkpoints.
It never talks to an explorer or a processor. A run has one trainer.
"""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from trinity_db.config import ModelConfig
from trinity_db.database import Database, Transaction
from trinity_db.errors import ConfigError, LeaseLost, TrinityError
from trinity_db.models import context_length, load_tokenizer
from trinity_db.schema.states import WorkerRole
from trinity_db.service import Service
from trinity_db.store import batches, evaluations, offline, policies, runs, samplers, scores
from trinity_db.store.metrics import outcomes_of, record_metrics
from trinity_db.trainer import lead_follow
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.checkpoints import checkpoint, recovery
from trinity_db.trainer.checkpoints.folder import Folder, Publication
from trinity_db.trainer.config import (
    AlgorithmConfig,
    FifoConfig,
    PrioritizedConfig,
    SamplerConfig,
    TrainerConfig,
)
from trinity_db.trainer.distribution.ranks import ALONE, Ranks
from trinity_db.trainer.learner.learner import Abandoned, NonFiniteLoss
from trinity_db.trainer.recipes import MixConfig
from trinity_db.trainer.rows import batch_from_store, step_metrics
from trinity_db.trainer.rows.encode import encode_adopted
from trinity_db.trainer.rows.precompute import score_adopted

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PROGRESS_SECONDS = 5.0  # between lines in the log


@dataclass(frozen=True)
class TrainerSetup:
    """The settings of a run that its trainer reads."""

    trainer: TrainerConfig
    algorithm: AlgorithmConfig
    model: ModelConfig
    seed: int
    max_staleness: int | None
    temperature: float
    checkpoints: Path
    sampler: SamplerConfig = field(default_factory=FifoConfig)
    max_uses: int = 1
    allowed: recovery.Allowed = field(default_factory=recovery.Allowed)

    @property
    def is_online(self) -> bool:
        """Whether the run learns from live rollout groups. An offline run learns from adopted rows."""
        return self.algorithm.draws == "groups"

    @property
    def expert_rows(self) -> int:
        """The number of adopted rows beside the live rollout groups in each step."""
        return self.algorithm.expert_rows if isinstance(self.algorithm, MixConfig) else 0

    def check(self) -> None:
        """Find mistakes in the settings early, without a database.

        Raises:
            ConfigError: a part of the algorithm does not exist or has wrong parameters, or the algorithm
                cannot use the configured reference.
        """
        needs = create(self.algorithm).needs
        if "mismatched" in needs and self.trainer.reference.name == "precomputed":
            raise ConfigError(
                f"trainer.reference: {needs['mismatched']} also scores each prompt with the response to "
                "another prompt of the batch, and batches are not known in advance; leave out precomputed."
            )
        if "reference" not in needs and self.trainer.reference.name != "start":
            raise ConfigError(
                f"trainer.reference: algorithm {self.algorithm.name}, as it is composed, compares the policy "
                "with nothing; leave it out."
            )

    @property
    def needs_first_model(self) -> bool:
        """Whether the learner loads the starting model, as a reference or as the base of an adapter."""
        has_reference = "reference" in create(self.algorithm).needs
        loads_reference = has_reference and self.trainer.reference.name != "precomputed"
        return loads_reference or self.trainer.lora is not None

    @property
    def publish_every(self) -> int:
        """Steps between published versions."""
        return self.trainer.publish_every or (1 if self.is_online else 100)


class Trainer(Service):
    """The one trainer of a run."""

    role = WorkerRole.TRAIN
    exclusive = True

    def __init__(self, database: Database, run: runs.Run, setup: TrainerSetup, ranks: Ranks = ALONE) -> None:
        super().__init__(database, run)
        self._setup = setup
        self._ranks = ranks
        self._learner: lead_follow.Leader
        self._folder: Folder
        self._mark: batches.Mark
        """The newest version and the last committed batch, as this trainer knows them. Each transaction
        checks that the store still agrees."""
        self._rows: dict[int, int] = {}
        """The number of rows of each step since the start."""
        self._lost_weights: recovery.Weights | None = None
        """The steps that the weights contained when the trainer found that the server had lost some of them.
        None once the setback is recorded."""
        self._score_names: list[scores.Name] = []
        """The stored scores that are read with each batch."""
        self._total_steps = 0
        self._published_step = 0
        self._evaluated_step = -1
        self._is_exhausted = False
        self._waiting_since = time.monotonic()
        self._logged_at = 0.0

    def start(self) -> None:
        """Continue from the latest whole checkpoint. Rows that it does not include are drawn again."""
        setup = self._setup
        setup.check()
        files = recovery.own_folder(self.database, self.run, self.worker_id, setup.checkpoints)
        self._folder = files.folder
        lost = recovery.clear_leftovers(files)
        recovery.publish_first_version(files, setup.model, setup.seed)
        policy = recovery.recover(files, setup.allowed, lost, self._lost_weights)
        with self.database.transaction() as tx:
            self._mark = batches.hold_trainer(tx, self.run.id, self.worker_id)
        self._tokenizer = load_tokenizer(policy.checkpoint)
        self._prepare_adopted_rows(files, policy)
        self._total_steps = self._count_steps(policy.step)
        learner = lead_follow.LearnerSetup(
            setup.trainer,
            setup.algorithm,
            policy.checkpoint,
            resumes=policy.version > 0,
            total_steps=self._total_steps,
            seed=setup.seed,
            reference=recovery.first_model(files) if setup.needs_first_model else None,
            temperature=setup.temperature if setup.is_online else 1.0,
        )
        self._learner = lead_follow.lead(learner, self._ranks, should_stop=lambda: self.stopping)
        self._lost_weights = None
        self._published_step = policy.step
        self._rows = {}
        self._is_exhausted = False
        self._waiting_since = time.monotonic()

    def work(self) -> bool:
        """Take one step. Return False if no batch can be drawn now, or if the run has ended."""
        try:
            return self._work()
        except batches.SetBack:
            self._go_back()
            return True

    def is_done(self) -> bool:
        """After the last step, or when no adopted row has uses left: publish, and finish the run."""
        online_end = self._setup.is_online and self._learner.steps_done >= self._total_steps
        if not online_end and not self._is_exhausted:
            return False
        try:
            self.release()
            if not self._evaluate():
                return False
            with self.database.transaction() as tx:
                batches.hold_trainer(tx, self.run.id, self.worker_id, self._mark)
                evaluations.begin_due(tx, self.run.id, self._mark.version, is_last=True)
                runs.finish(tx, self.run.id)
        except batches.SetBack:
            self._go_back()
            return False
        logger.info("run '%s' is finished after %d steps", self.run.name, self._learner.steps_done)
        return True

    def release(self) -> None:
        """Publish the steps that no checkpoint includes, so that the next start repeats none."""
        if self._learner.steps_done > self._published_step:
            self._publish()

    def _prepare_adopted_rows(self, files: recovery.RunFiles, policy: policies.PolicyVersion) -> None:
        """Give adopted rows their tokens and, if the reference is precomputed, its scores."""
        setup = self._setup
        if setup.expert_rows or not setup.is_online:
            limit = min(setup.trainer.max_length or sys.maxsize, context_length(policy.checkpoint))
            encode_adopted(
                self.database,
                self.run.id,
                self.worker_id,
                self._tokenizer,
                setup.model.prompt_template,
                limit,
                should_stop=lambda: self.stopping,
            )
        self._score_names = ["teacher"] if "teacher" in create(setup.algorithm).needs else []
        if setup.trainer.reference.name == "precomputed":
            self._score_names.append("reference")
            score_adopted(files, setup.trainer, should_stop=lambda: self.stopping)

    def _work(self) -> bool:
        step = self._learner.steps_done
        if self._setup.is_online and step >= self._total_steps:
            return False
        # Both come before a step, not after it. So they are tried again if the database was away.
        if step - self._published_step >= self._setup.publish_every:
            self._publish()
            self._waiting_since = time.monotonic()
        if self._evaluation_is_due():
            if not self._evaluate():
                return True
            self._waiting_since = time.monotonic()
        draw = self._next_draw()
        with self.database.transaction() as tx:
            batch = self._draw(tx, draw)
        if batch is None:
            self._is_exhausted = not self._setup.is_online
            return False
        try:
            metrics = self._train_on(batch)
        except (Abandoned, NonFiniteLoss) as error:
            with self.database.transaction() as tx:
                batches.reopen_leased(tx, draw)
            if isinstance(error, NonFiniteLoss):
                self.release()  # the steps before are good, and the next start need not repeat them
                raise
            logger.info("step %d was abandoned; its rows are given back", batch.step)
            return True
        self._retry_as_owner(lambda: self._commit(batch, metrics))
        self._log(metrics)
        self._waiting_since = time.monotonic()
        return True

    def _go_back(self) -> None:
        """Start again from what the store still knows: the server has lost steps that the weights contain."""
        if self._lost_weights is None:
            self._lost_weights = recovery.Weights(self._learner.steps_done, self._rows)
        logger.warning("the store names another last step or version than it did before: going back")
        del self._learner  # so that memory never holds two learners
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
            self._mark,
        )

    def _draw(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        match self._setup.algorithm.draws:
            case "groups":
                algorithm, sampler = self._learner.algorithm, _sampler(self._setup.sampler)
                return batches.draw_groups(
                    tx, draw, self._setup.max_staleness, algorithm.advantages, sampler, algorithm.compares
                )
            case "pairs":
                return batches.draw_pairs(tx, draw)
            case "rows" | "labels":
                return batches.draw_rows(tx, draw)

    def _train_on(self, batch: batches.Batch) -> dict[str, float]:
        waited = time.monotonic() - self._waiting_since
        started = time.monotonic()
        algorithm = self._learner.algorithm
        compares = algorithm.compares & algorithm.needs.keys()
        drawn = batches.read(self.database, batch.id)
        with self.database.transaction() as tx:
            rows = batch_from_store.drawn_batch(
                tx, drawn, batch.experts, self._score_names, compares, self._version_of_weights
            )
            outcomes = outcomes_of(tx, batch.id) if self._setup.is_online else None
        self._rows[batch.step] = len(drawn)
        metrics = self._learner.step(rows)
        if outcomes is not None:
            metrics |= step_metrics.of_rollouts(rows, outcomes)
        else:
            metrics["epoch"] = batch.step * self._setup.trainer.epochs / self._total_steps
        computed = time.monotonic() - started
        return metrics | step_metrics.of_time(rows, waited=waited, computed=computed, ranks=self._ranks.size)

    @property
    def _version_of_weights(self) -> int | None:
        """The version with the weights of now; None after a step that was not published."""
        return self._mark.version if self._learner.steps_done == self._published_step else None

    def _commit(self, batch: batches.Batch, metrics: dict[str, float]) -> None:
        max_uses = self._setup.max_uses if self._setup.is_online else self._setup.trainer.epochs
        done = batches.Mark(self._mark.version, batch.step, batch.id, batch.created_at)
        with self.database.transaction() as tx:
            batches.hold_trainer(tx, self.run.id, self.worker_id, self._mark, done)
            if batches.commit(tx, batch, self.worker_id, max_uses):
                record_metrics(tx, self.run.id, self.role, batch.step, metrics)
        self._mark = done

    def _publish(self) -> None:
        """Save a checkpoint and record it as a version. Then delete checkpoints that are no longer kept."""
        step = self._learner.steps_done
        with self.database.transaction() as tx:
            version = (policies.latest_version(tx, self.run.id) or 0) + 1
        folder = self._folder.version_folder(version)
        policy = policies.PolicyVersion(
            version, step, folder, checkpoint.save(folder, self._learner, self._tokenizer)
        )
        pruned = self._retry_as_owner(lambda: self._record(policy))
        self._published_step = step
        self._folder.acknowledge(Publication(version, step, policy.checkpoint_hash))
        for old, files in pruned:
            self._folder.delete(old, files)

    def _record(self, policy: policies.PolicyVersion) -> list[tuple[int, Path]]:
        done = replace(self._mark, version=policy.version)
        with self.database.transaction() as tx:
            batches.hold_trainer(tx, self.run.id, self.worker_id, self._mark, done)
            policies.publish(tx, self.run.id, policy, self.worker_id)
            pruned = policies.prune(tx, self.run.id, self._setup.trainer.keep_checkpoints)
        self._mark = done
        return pruned

    def _retry_as_owner(self, decide: Callable[[], Result]) -> Result:
        """Run a transaction that only the run's trainer may commit, again while the database is away.

        If the store refuses because another trainer has taken over, count that in a metric.

        Raises:
            LeaseLost: another trainer has taken over the run, and this one may publish nothing more.
        """
        try:
            return self.database.retry(decide, give_up=lambda: self.stopping)
        except LeaseLost:
            self.database.retry(self._record_refusal, give_up=lambda: self.stopping)
            raise

    def _record_refusal(self) -> None:
        with self.database.transaction() as tx:
            record_metrics(tx, self.run.id, self.role, self._learner.steps_done, {"refused/batches": 1.0})

    def _log(self, metrics: dict[str, float]) -> None:
        step = self._learner.steps_done
        if time.monotonic() - self._logged_at > PROGRESS_SECONDS or step == self._total_steps:
            self._logged_at = time.monotonic()
            logger.info("step %d of %d: %s", step, self._total_steps, _short(metrics))

    def _evaluation_is_due(self) -> bool:
        """Whether to evaluate now: before the first step, and every `eval_every` steps.

        A step is evaluated again after a restart, because the crash may have come before the measurement.
        """
        step, every = self._learner.steps_done, self._setup.trainer.eval_every
        if step == self._evaluated_step or step >= self._total_steps:
            return False
        return step == 0 or (every is not None and step % every == 0)

    def _evaluate(self) -> bool:
        """Evaluate the held-out rows, if there are any. Return False if a stop ended the evaluation."""
        step = self._learner.steps_done
        if not self._setup.is_online:
            pairs = self._setup.algorithm.draws == "pairs"
            kept = offline.held_out(self.database, self.run.id, pairs, batch_from_store.HELD_OUT_ROWS)
            if kept:
                with self.database.transaction() as tx:
                    rows = batch_from_store.held_out_batch(tx, kept, self._score_names)
                try:
                    measured = self._learner.evaluate(rows)
                except Abandoned:
                    return False
                metrics = {f"eval/{name}": value for name, value in measured.items()}
                logger.info("held out, step %d: %s", step, _short(metrics))
                with self.database.transaction() as tx:
                    record_metrics(tx, self.run.id, self.role, step, metrics)
        self._evaluated_step = step
        return True

    def _count_steps(self, done: int) -> int:
        """All steps of the run. Offline these are the steps for which rows have uses left.

        Args:
            done: the steps that the checkpoint includes.
        """
        setup = self._setup
        if setup.is_online:
            assert setup.trainer.steps is not None, "the configuration checks it"
            if setup.expert_rows:
                self._check_experts(setup.expert_rows)
            return setup.trainer.steps
        pairs, epochs = setup.algorithm.draws == "pairs", setup.trainer.epochs
        if moved := offline.fit_to_epochs(self.database, self.run.id, pairs, epochs):
            logger.info("%d rows have another number of uses left, as trainer.epochs was changed", moved)
        with self.database.transaction() as tx:
            available = offline.count_trainable(tx, self.run.id, pairs)
            unlabelled = offline.count_unlabelled(tx, self.run.id)
        if unlabelled:
            logger.warning(
                "%d rows have no reward: nothing is learned from them until they have one", unlabelled
            )
        if not available:
            what, other = _SOURCES[setup.algorithm.draws]
            raise TrinityError(
                f"Run '{self.run.name}' has no {what}; import some and name them under data:, or {other}"
            )
        return done + offline.steps_left(available, setup.trainer.batch_size, epochs)

    def _check_experts(self, wanted: int) -> None:
        with self.database.transaction() as tx:
            available = sum(offline.count_trainable(tx, self.run.id, pairs=False).values())
        if available < wanted:
            raise offline.too_few(available, wanted)


_SOURCES = {
    "pairs": ("preferences", "derive pairs with: trinity-db process CONFIG --drain"),
    "rows": (
        "rows to imitate",
        "look at those that it has: with a reward of zero or less they are not imitated, and what the model "
        'cannot take is counted by: trinity-db sql "select * from drop_view"',
    ),
    "labels": ("rows with a reward", "say what its rows are worth with: trinity-db reward"),
}
"""By what an offline run draws: the rows that it may lack, and a remedy other than importing some."""


def _sampler(config: SamplerConfig) -> samplers.Sampler:
    match config:
        case PrioritizedConfig():
            return samplers.Sampler(config.name, config.alpha, config.beta)
        case _:
            return samplers.Sampler(config.name)


def _short(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in metrics.items())
