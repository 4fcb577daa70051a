"""Divides rows among ranks, and the rows of a rank into micro-batches."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from trinity_db.arrays import Payload
from trinity_db.models.forward import Forward
from trinity_db.trainer.distribution.ranks import Ranks, split_by_cost

logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0  # between two lines about rows that take long


class Abandoned(Exception):
    """The learner stopped between two micro-batches. Its state is that of before the step or evaluation."""


class MicroBatch(NamedTuple):
    """Rows that go through the model together, on this rank."""

    rows: list[int]
    """Their indices."""
    counts: bool
    """Whether the results count. Over all ranks each row counts once."""
    is_last: bool
    """Whether no other follows, on any rank."""


MicroBatches = Callable[[Sequence[Payload]], Iterator[MicroBatch]]
"""Splits rows into this rank's micro-batches. Between two of them it may raise `Abandoned`."""


def micro_batches(
    payloads: Sequence[Payload], width: int, forward: Forward, ranks: Ranks, should_stop: Callable[[], bool]
) -> Iterator[MicroBatch]:
    """Yield each micro-batch of this rank.

    Every rank gets the same number of micro-batches, because sharded weights make all ranks compute together.
    A rank that runs out computes the cheapest item again, and that result does not count.

    Args:
        width: rows of an item, which stay together.
        should_stop: called between two micro-batches. Only the first rank's answer counts.

    Raises:
        Abandoned: the first rank's `should_stop` returned True.
    """
    costs = np.array([payload.num_tokens for payload in payloads], np.int64).reshape(-1, width).sum(axis=1)
    plans = []
    for items in split_by_cost(costs.tolist(), ranks.size):
        own = [item * width + member for item in items for member in range(width)]
        batches = forward.micro_batches([payloads[i] for i in own], width)
        plans.append([[own[place] for place in places] for places in batches])
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
        cheapest = int(costs.argmin()) * width
        rows = mine[0] if mine else list(range(cheapest, cheapest + width))
        yield MicroBatch(rows, counts=bool(mine), is_last=number + 1 == number_of_all)
