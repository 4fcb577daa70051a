"""Draws the batch of a step, as the algorithm of a run needs it."""

from trinity_db.postgres.connection import Transaction
from trinity_db.store import batches, draws
from trinity_db.store.samplers import Picks
from trinity_db.trainer.algorithms.interface import Algorithm
from trinity_db.trainer.loop.setup import TrainerSetup


def draw_batch(
    tx: Transaction, draw: batches.Draw, setup: TrainerSetup, algorithm: Algorithm, sampler: Picks
) -> batches.Batch | None:
    """Lease the rows of a step. Return None if there are not enough now, or offline, if none has uses left.

    Raises:
        LeaseLost: if another trainer draws for this run.
        SetBack: if the server has lost steps that the weights contain.
    """
    match setup.algorithm.draws:
        case "groups":
            if not setup.is_online:
                return draws.draw_adopted_groups(tx, draw, algorithm.advantages, algorithm.compares)
            return draws.draw_groups(
                tx, draw, setup.max_staleness, algorithm.advantages, sampler, algorithm.compares
            )
        case "pairs":
            return draws.draw_pairs(tx, draw)
        case "rows" | "labels":
            return draws.draw_rows(tx, draw)
