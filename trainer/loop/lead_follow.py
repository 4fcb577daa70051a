"""Keeps all ranks in step: the first rank broadcasts each call before it makes the call.

Only the first rank uses the database: it draws, commits, publishes and writes checkpoints. The other ranks
wait in `follow` for its next call. If a step is abandoned or its loss is not finite, every rank notices,
because the decision to stop is broadcast and the loss is a sum over all ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from trinity_db.arrays.codec import Payload
from trinity_db.models.canary import Canary
from trinity_db.trainer.checkpoints import checkpoint, writing
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.distribution.ranks import Ranks
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner, NonFiniteLoss
from trinity_db.trainer.learner.memory import model_has_to_fit
from trinity_db.trainer.learner.micro_batches import Abandoned
from trinity_db.trainer.learner.starting_scores import StartingScores

AnyLearner = TypeVar("AnyLearner", bound=Learner)
AnyScores = TypeVar("AnyScores", bound=StartingScores)


@dataclass(frozen=True)
class LearnerSetup:
    """The arguments of a learner, equal on every rank."""

    config: TrainerConfig
    algorithm: AlgorithmConfig
    model: Path
    """Folder of the starting model, or of the version that training continues from."""
    checkpoint: Path | None
    """Folder of the checkpoint that training continues from; None at the run's start."""
    total_steps: int
    seed: int
    """Seed of randomly initialised weights, such as an adapter's."""
    reference: Path | None
    """Folder of the run's starting model, if the learner loads it."""
    temperature: float
    """Temperature at which the tokens were sampled."""
    reference_digest: str | None = None
    """Digest of the reference's files. None: computed if needed."""

    def build(
        self, kind: type[AnyLearner], ranks: Ranks, should_stop: Callable[[], bool] = lambda: False
    ) -> AnyLearner:
        """Build the learner of this rank, and load its state if it resumes.

        Raises:
            TrinityError: if the model does not fit into memory.
        """
        torch.manual_seed(self.seed)
        with model_has_to_fit(self.config, ranks.size):
            learner = kind(
                self.config,
                self.algorithm,
                self.model,
                total_steps=self.total_steps,
                reference=self.reference,
                reference_digest=self.reference_digest,
                temperature=self.temperature,
                should_stop=should_stop,
                ranks=ranks,
            )
            if self.checkpoint is not None:
                checkpoint.load_state(self.checkpoint, learner)
        return learner


@dataclass(frozen=True)
class ScoringSetup:
    """Arguments for loading the starting model on every rank, to score rows once (`reference:
    precomputed`)."""

    config: TrainerConfig
    model: Path
    """Folder of the run's starting model."""

    def build(
        self, kind: type[AnyScores], ranks: Ranks, should_stop: Callable[[], bool] = lambda: False
    ) -> AnyScores:
        """Load this rank's part of the model.

        Raises:
            TrinityError: if the model does not fit into memory.
        """
        with model_has_to_fit(self.config, ranks.size, keys=("sharding", "offload")):
            return kind(self.model, self.config, ranks, should_stop)


class LeadingScores(StartingScores):
    """The first rank's part of the starting model. It broadcasts each call, like `Leader`."""

    def of(self, payloads: Sequence[Payload]) -> list[tuple[int, NDArray[np.float32]]]:
        self.ranks.broadcast(("scores", payloads))
        return super().of(payloads)


class Leader(Learner):
    """The first rank's learner. It broadcasts each call, so that the other ranks repeat it."""

    def step(self, batch: Batch) -> dict[str, float]:
        self.ranks.broadcast(("step", batch))
        return super().step(batch)

    def evaluate(self, batch: Batch) -> dict[str, float]:
        self.ranks.broadcast(("evaluate", batch))
        return super().evaluate(batch)

    def publish_in(self, dtype: str) -> None:
        self.ranks.broadcast(("publish_in", dtype))
        super().publish_in(dtype)

    @contextmanager
    def ready_to_save(self) -> Iterator[Canary | None]:
        self.ranks.broadcast(("ready_to_save",))
        with super().ready_to_save() as canary:
            yield canary

    def begin_checkpoint(self, folder: Path) -> "Saving":
        """Start writing every rank's part of a checkpoint during the next steps.

        Raises:
            ConfigError: if the optimizer's state contains something that cannot be restored.
        """
        aside = writing.aside_of(folder)
        part = checkpoint.begin_part(folder, aside, self)
        self.ranks.broadcast(("begin_part", folder, aside))
        return Saving(folder, aside, part, self.ranks)


class Saving:
    """A checkpoint that all ranks are writing. The first rank calls its methods."""

    def __init__(self, folder: Path, aside: Path, part: writing.Writing | None, ranks: Ranks) -> None:
        self.folder = folder
        self._aside, self._part, self._ranks = aside, part, ranks
        self._outcomes: list[checkpoint.Outcome] = []

    @property
    def has_ended(self) -> bool:
        """Whether the first rank has written its part. The others' parts have the same size."""
        return self._part is None or self._part.has_ended

    @property
    def seconds(self) -> float:
        """Cost of the checkpoint, once it has ended: the time the first rank took to write its part."""
        return self._part.seconds if self._part else 0.0

    def wait(self) -> None:
        """Wait until all ranks have finished writing."""
        if not self._outcomes:
            self._ranks.broadcast(("end_part",))
            self._outcomes = self._ranks.gather(checkpoint.outcome(self._part))

    def finish(self) -> str:
        """Wait for all parts, and rename the checkpoint to its final name. Return its hash.

        Raises:
            TrinityError: if a rank failed to write its part. Then no files are left.
        """
        self.wait()
        return checkpoint.finish(self.folder, self._aside, self._outcomes)


def lead(setup: LearnerSetup, ranks: Ranks, should_stop: Callable[[], bool]) -> Leader:
    """Build a learner on every rank. Return the first rank's."""
    ranks.broadcast(setup)
    return setup.build(Leader, ranks, should_stop)


def lead_scores(setup: ScoringSetup, ranks: Ranks, should_stop: Callable[[], bool]) -> LeadingScores:
    """Load the starting model on every rank. Return the first rank's part."""
    ranks.broadcast(setup)
    return setup.build(LeadingScores, ranks, should_stop)


def dismiss(ranks: Ranks) -> None:
    """End `follow` on the other ranks."""
    ranks.broadcast(None)


def follow(ranks: Ranks) -> None:
    """Repeat the first rank's calls until it calls `dismiss`."""
    learner: Learner
    scores: StartingScores
    part: writing.Writing | None = None
    while (call := ranks.broadcast(None)) is not None:
        with suppress(Abandoned, NonFiniteLoss):  # the first rank handles them
            match call:
                case LearnerSetup():
                    learner = scores = None  # type: ignore[assignment]  # so that memory never holds two
                    learner = call.build(Learner, ranks)
                case ScoringSetup():
                    learner = None  # type: ignore[assignment]
                    scores = call.build(StartingScores, ranks)
                case "scores", payloads:
                    scores.of(payloads)
                case "step", batch:
                    learner.step(batch)
                case "evaluate", batch:
                    learner.evaluate(batch)
                case "publish_in", dtype:
                    learner.publish_in(dtype)
                case ("ready_to_save",):
                    with learner.ready_to_save():
                        pass
                case "begin_part", folder, aside:
                    part = checkpoint.begin_part(folder, aside, learner)
                case ("end_part",):
                    ranks.gather(checkpoint.outcome(part))
