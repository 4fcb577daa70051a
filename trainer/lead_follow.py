"""Keeps the learners of all ranks in step: the first rank broadcasts each call before it makes the call.

Only the first rank uses the database: it draws, commits, publishes and writes checkpoints. The other ranks
wait in `follow` for its next call. If a step is abandoned or its loss is not finite, every rank sees the
same, because the decision to stop is broadcast and the loss is a sum over all ranks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from trinity_db.models.canary import Canary
from trinity_db.trainer.checkpoints import checkpoint
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.distribution.ranks import Ranks
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Abandoned, Learner, NonFiniteLoss

AnyLearner = TypeVar("AnyLearner", bound=Learner)


@dataclass(frozen=True)
class LearnerSetup:
    """The arguments of a learner. Every rank builds its learner from the same ones."""

    config: TrainerConfig
    algorithm: AlgorithmConfig
    model: Path
    """Folder of the starting model, or of the checkpoint that training continues from."""
    resumes: bool
    """Whether `model` is a checkpoint whose optimizer, counters and random state are loaded."""
    total_steps: int
    seed: int
    """Seed of weights that start at random, such as an adapter's."""
    reference: Path | None
    """Folder of the run's starting model, if the learner loads it."""
    temperature: float
    """Temperature at which the tokens were sampled."""

    def build(
        self, kind: type[AnyLearner], ranks: Ranks, should_stop: Callable[[], bool] = lambda: False
    ) -> AnyLearner:
        """Build the learner of this rank, and load its state if it resumes."""
        torch.manual_seed(self.seed)
        learner = kind(
            self.config,
            self.algorithm,
            self.model,
            total_steps=self.total_steps,
            reference=self.reference,
            temperature=self.temperature,
            should_stop=should_stop,
            ranks=ranks,
        )
        if self.resumes:
            checkpoint.load_state(self.model, learner)
        return learner


class Leader(Learner):
    """The first rank's learner. It broadcasts each call, so that the other ranks repeat it."""

    def step(self, batch: Batch) -> dict[str, float]:
        self.ranks.broadcast(("step", batch))
        return super().step(batch)

    def evaluate(self, batch: Batch) -> dict[str, float]:
        self.ranks.broadcast(("evaluate", batch))
        return super().evaluate(batch)

    @contextmanager
    def ready_to_save(self) -> Iterator[tuple[dict[str, Any], Canary | None]]:
        self.ranks.broadcast(("ready_to_save",))
        with super().ready_to_save() as parts:
            yield parts


def lead(setup: LearnerSetup, ranks: Ranks, should_stop: Callable[[], bool]) -> Leader:
    """Build a learner on every rank. Return the first rank's."""
    ranks.broadcast(setup)
    return setup.build(Leader, ranks, should_stop)


def dismiss(ranks: Ranks) -> None:
    """End `follow` on the other ranks."""
    ranks.broadcast(None)


def follow(ranks: Ranks) -> None:
    """Repeat the first rank's calls until it calls `dismiss`."""
    learner: Learner
    while (call := ranks.broadcast(None)) is not None:
        with suppress(Abandoned, NonFiniteLoss):  # the first rank handles them
            match call:
                case LearnerSetup():
                    learner = None  # type: ignore[assignment]  # so that memory never holds two learners
                    learner = call.build(Learner, ranks)
                case "step", batch:
                    learner.step(batch)
                case "evaluate", batch:
                    learner.evaluate(batch)
                case ("ready_to_save",):
                    with learner.ready_to_save():
                        pass
