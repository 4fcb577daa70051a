"""Computes the number of steps of a run."""

import logging
import math
from dataclasses import dataclass

from trinity_db.errors import TrinityError
from trinity_db.postgres.connection import Database
from trinity_db.store import offline, runs
from trinity_db.trainer.loop.setup import TrainerSetup

logger = logging.getLogger(__name__)

_SOURCES = {
    "groups": (
        "adopted rollout groups",
        "check that all of their attempts have rewards and unpruned arrays: trinity-db status",
    ),
    "pairs": (
        "preferences",
        "derive them from rewards with processors: {pair: {}} and: trinity-db process CONFIG --drain",
    ),
    "rows": (
        "rows to imitate",
        "check the existing rows: those with a reward of zero or less are not imitated, and rows that the "
        'model cannot process are counted by: trinity-db sql "select * from drop_view"',
    ),
    "labels": ("rows with a reward", "add rewards to its rows with: trinity-db reward"),
}
"""By kind of draw of an offline run: the rows that it may lack, and a remedy other than importing some."""


@dataclass(frozen=True)
class RunLength:
    """When a run ends."""

    steps: int
    """Total number of steps, including those done."""
    epochs: float = 0.0
    """How often these steps use each adopted row; 0 for an online run."""
    is_last: bool = True
    """Whether the run ends after these steps. Otherwise it ends when no row has uses left."""


def run_length(database: Database, run: runs.Run, setup: TrainerSetup, done: int) -> RunLength:
    """Compute the length of the run. Offline it ends when no row has uses left, or after `trainer.steps`.

    Args:
        done: Steps included in the checkpoint.

    Raises:
        TrinityError: if the run has too few rows for one step.
    """
    if setup.is_online:
        assert setup.trainer.steps is not None, "the configuration checks it"
        if setup.expert_rows:
            _check_experts(database, run, setup.expert_rows)
        return RunLength(setup.trainer.steps)
    draws, epochs = setup.algorithm.draws, setup.trainer.epochs
    if moved := offline.fit_to_epochs(database, run.id, draws, math.ceil(epochs)):
        logger.info("%d rows have another number of uses left, because trainer.epochs was changed", moved)
    with database.transaction() as tx:
        available = offline.count_trainable(tx, run.id, draws)
        unlabelled = offline.count_unlabelled(tx, run.id)
    if unlabelled:
        logger.warning("%d rows have no reward: nothing is learned from them until they have one", unlabelled)
    if not available:
        source, remedy = _SOURCES[setup.algorithm.draws]
        raise TrinityError(
            f"Run '{run.name}' has no {source}; import some and name them under data:, or {remedy}"
        )
    all_uses = done + offline.steps_left(available, setup.trainer.batch_size, epochs)
    steps = min(all_uses, setup.trainer.steps or all_uses)
    is_last = setup.trainer.steps is not None or epochs != math.ceil(epochs)
    return RunLength(steps, epochs * steps / all_uses, is_last)


def _check_experts(database: Database, run: runs.Run, needed: int) -> None:
    with database.transaction() as tx:
        available = sum(offline.count_trainable(tx, run.id, "rows").values())
    if available < needed:
        raise offline.too_few(available, needed)
