"""Divides rows among ranks, and the rows of a rank into micro-batches."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from trinity_db.arrays.codec import Payload
from trinity_db.models.forward import Forward
from trinity_db.trainer.distribution.ranks import Ranks, split_by_cost

logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0  # between progress lines for slow rows


class Abandoned(Exception):
    """The learner stopped between two micro-batches. Its state is that before the step or evaluation."""


class MicroBatch(NamedTuple):
    """Rows that go through the model together, on this rank."""

    rows: list[int]
    """Indices of the rows."""
    counts: bool
    """Whether the results count. Over all ranks each row counts once."""
    is_last: bool
    """Whether it is the last one, on all ranks."""


MicroBatches = Callable[[Sequence[Payload]], Iterator[MicroBatch]]
"""Function that splits rows into this rank's micro-batches. It may raise `Abandoned` between two of them."""


def micro_batches(
    payloads: Sequence[Payload], width: int, forward: Forward, ranks: Ranks, should_stop: Callable[[], bool]
) -> Iterator[MicroBatch]:
    """Yield each micro-batch of this rank.

    Every rank gets the same number of micro-batches, because sharded weights make all ranks compute together.
    A rank that runs out computes the cheapest item again, and that result does not count.

    Args:
        width: Rows of an item, which stay together.
        should_stop: Called between two micro-batches. Only the first rank's result matters.

    Raises:
        Abandoned: if the first rank's `should_stop` returned True.
    """
    sets, costs = forward.related(payloads, width, ranks.size)
    plans = []
    for numbers in split_by_cost(costs, ranks.size):
        own = sorted(row for number in numbers for row in sets[number])
        batches = forward.micro_batches([payloads[row] for row in own], width)
        plans.append([[own[index] for index in batch] for batch in batches])
    cheapest = sets[int(np.argmin(costs))][:width] if sets else []
    number_of_all = max(map(len, plans))
    began = reported = time.monotonic()
    for number in range(number_of_all):
        now = time.monotonic()
        if number and now - reported >= REPORT_SECONDS and ranks.rank == 0:
            reported, remaining = now, (now - began) / number * (number_of_all - number)
            logger.info("%d of %d micro-batches, %.0f s left", number, number_of_all, remaining)
        if number and ranks.broadcast(should_stop()):
            raise Abandoned
        mine = plans[ranks.rank][number : number + 1]
        rows = mine[0] if mine else cheapest
        yield MicroBatch(rows, counts=bool(mine), is_last=number + 1 == number_of_all)
