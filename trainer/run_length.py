"""Counts the steps of a run."""

import logging
import math
from dataclasses import dataclass

from trinity_db.database import Database
from trinity_db.errors import TrinityError
from trinity_db.store import offline, runs
from trinity_db.trainer.setup import TrainerSetup

logger = logging.getLogger(__name__)

_SOURCES = {
    "groups": (
        "adopted rollout groups",
        "see whether all of their attempts have rewards and their arrays were not pruned: trinity-db status",
    ),
    "pairs": (
        "preferences",
        "derive them from rewards by processors: {pair: {}} and: trinity-db process CONFIG --drain",
    ),
    "rows": (
        "rows to imitate",
        "look at those that it has: with a reward of zero or less they are not imitated, and what the model "
        'cannot take is counted by: trinity-db sql "select * from drop_view"',
    ),
    "labels": ("rows with a reward", "say what its rows are worth with: trinity-db reward"),
}
"""By what an offline run draws: the rows that it may lack, and a remedy other than importing some."""


@dataclass(frozen=True)
class RunLength:
    """When a run ends."""

    steps: int
    """All of its steps, those that are done among them."""
    epochs: float = 0.0
    """How often it uses each adopted row in these steps; 0 of an online run."""
    is_last: bool = True
    """Whether the run ends after these steps. Otherwise it ends when no row has uses left."""


def run_length(database: Database, run: runs.Run, setup: TrainerSetup, done: int) -> RunLength:
    """The length of the run. Offline it ends when no row has uses left, or after `trainer.steps`.

    Args:
        done: the steps that the checkpoint includes.

    Raises:
        TrinityError: the run has too few rows for one step.
    """
    if setup.is_online:
        assert setup.trainer.steps is not None, "the configuration checks it"
        if setup.expert_rows:
            _check_experts(database, run, setup.expert_rows)
        return RunLength(setup.trainer.steps)
    draws, epochs = setup.algorithm.draws, setup.trainer.epochs
    if moved := offline.fit_to_epochs(database, run.id, draws, math.ceil(epochs)):
        logger.info("%d rows have another number of uses left, as trainer.epochs was changed", moved)
    with database.transaction() as tx:
        available = offline.count_trainable(tx, run.id, draws)
        unlabelled = offline.count_unlabelled(tx, run.id)
    if unlabelled:
        logger.warning("%d rows have no reward: nothing is learned from them until they have one", unlabelled)
    if not available:
        what, other = _SOURCES[setup.algorithm.draws]
        raise TrinityError(
            f"Run '{run.name}' has no {what}; import some and name them under data:, or {other}"
        )
    all_uses = done + offline.steps_left(available, setup.trainer.batch_size, epochs)
    steps = min(all_uses, setup.trainer.steps or all_uses)
    is_last = setup.trainer.steps is not None or epochs != math.ceil(epochs)
    return RunLength(steps, epochs * steps / all_uses, is_last)


def _check_experts(database: Database, run: runs.Run, wanted: int) -> None:
    with database.transaction() as tx:
        available = sum(offline.count_trainable(tx, run.id, "rows").values())
    if available < wanted:
        raise offline.too_few(available, wanted)
