"""What makes the learners of all ranks do the same: the first rank's says each call before it makes it.

The first rank alone speaks to the database, draws, commits, publishes and writes checkpoints. The others
wait here for its next call, for as long as it takes. A step that is given up or has no finite loss is that
on each rank, as its metrics are sums over all of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from trinity_db.trainer.checkpoints import checkpoint
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.distribution.ranks import Ranks
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Abandoned, Learner, NonFiniteLoss

AnyLearner = TypeVar("AnyLearner", bound=Learner)


@dataclass(frozen=True)
class Start:
    """All that a learner is built from, on each rank alike."""

    config: TrainerConfig
    algorithm: AlgorithmConfig
    model: Path
    """Folder of the starting model, or of the checkpoint to go on from."""
    resumes: bool
    total_steps: int
    seed: int
    """Of weights that are random at first, as an adapter's."""
    reference: Path | None
    temperature: float

    def build(
        self, kind: type[AnyLearner], ranks: Ranks, should_stop: Callable[[], bool] = lambda: False
    ) -> AnyLearner:
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
    """The first rank's learner, whose calls the others make too."""

    def step(self, batch: Batch) -> dict[str, float]:
        self.ranks.broadcast(("step", batch))
        return super().step(batch)

    def evaluate(self, batch: Batch) -> dict[str, float]:
        self.ranks.broadcast(("evaluate", batch))
        return super().evaluate(batch)

    @contextmanager
    def whole(self) -> Iterator[dict[str, Any]]:
        self.ranks.broadcast(("whole",))
        with super().whole() as state:
            yield state


def lead(start: Start, ranks: Ranks, should_stop: Callable[[], bool]) -> Leader:
    """A learner on each rank; returns the first rank's."""
    ranks.broadcast(start)
    return start.build(Leader, ranks, should_stop)


def dismiss(ranks: Ranks) -> None:
    """There will be no more calls."""
    ranks.broadcast(None)


def follow(ranks: Ranks) -> None:
    """Make the first rank's calls until it dismisses us."""
    learner: Learner
    while (call := ranks.broadcast(None)) is not None:
        with suppress(Abandoned, NonFiniteLoss):  # the first rank knows what to do about them
            match call:
                case Start():
                    learner = None  # type: ignore[assignment]  # rather than two in memory
                    learner = call.build(Learner, ranks)
                case "step", batch:
                    learner.step(batch)
                case "evaluate", batch:
                    learner.evaluate(batch)
                case ("whole",):
                    with learner.whole():
                        pass
