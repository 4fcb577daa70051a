"""Writes the rollouts of finished attempts, and the explorer's throughput metrics."""

import logging
import time
from collections import Counter
from collections.abc import Sequence

from trinity_db.errors import TrinityError
from trinity_db.explorer.engines.engine import Engine
from trinity_db.explorer.http.log import CallLog
from trinity_db.explorer.loop.idle_time import EmptyPlaces
from trinity_db.explorer.loop.store_thread import StoreThread
from trinity_db.explorer.loop.under_way import UnderWay
from trinity_db.postgres.connection import Transaction, storable
from trinity_db.schema.states import WorkerRole
from trinity_db.store import calls, groups, parks
from trinity_db.store.groups import Rollout
from trinity_db.store.metrics import record_metrics

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 256  # failed rollouts after which the setup is at fault, not a task
FAILURES_OF_A_GROUP = 32  # maximum counted per group, so that no single task ends the explorer
MEASURE_SECONDS = 5.0  # between two rows of metrics


class RolloutWriter:
    """Writes rollouts and metrics, batching everything since the last write into one transaction.

    Args:
        has_spare: whether more members of a group are attempted than it needs.
    """

    def __init__(
        self,
        store: StoreThread,
        log: CallLog,
        under_way: UnderWay,
        empty: EmptyPlaces,
        engine: Engine,
        has_spare: bool,
    ) -> None:
        self._store = store
        self._log = log
        self._under_way = under_way
        self._empty = empty
        self._engine = engine
        self._has_spare = has_spare
        self._failures = FailuresInARow()
        self._num_tokens = 0
        self._measured_at = 0.0

    def begin(self) -> None:
        """Start measuring."""
        self._num_tokens, self._measured_at = 0, time.monotonic()

    async def write(self, finished: list[Rollout], is_last: bool) -> None:
        """Write rollouts and, periodically, metrics. Cancel attempts that are no longer needed.

        Raises:
            TrinityError: if too many rollouts failed in a row. All are written.
        """
        metrics = self._measured(finished, is_last)
        if finished or metrics:
            self._under_way.end_spare(await self._write(finished, metrics))

    def _measured(self, finished: list[Rollout], is_last: bool) -> dict[str, float]:
        self._num_tokens += sum(step.payload.num_trained for rollout in finished for step in rollout.steps)
        elapsed = time.monotonic() - self._measured_at
        if not self._num_tokens or not (is_last or elapsed > MEASURE_SECONDS):
            return {}
        speed = {"explore/tokens_per_second": self._num_tokens / elapsed, "explore/seconds": elapsed}
        self.begin()
        return speed | self._empty.measure()

    async def _write(self, finished: list[Rollout], metrics: dict[str, float]) -> set[int]:
        """Write rollouts and metrics; with spare members, return which of their groups are complete."""

        def write(tx: Transaction) -> tuple[groups.Unwanted, set[int]]:
            if metrics:
                record_metrics(tx, self._store.run_id, WorkerRole.EXPLORE, self._engine.version, metrics)
            unwanted = groups.write_rollouts(tx, self._store.run_id, self._store.worker_id, finished)
            ids = {rollout.group.id for rollout in finished}
            if self._log.has_agents:
                calls.end(tx, self._store.worker_id, finished)
            if self._under_way.parked.keys() & ids:
                parks.end_spare(tx, sorted(ids))
            return unwanted, groups.complete(tx, ids) if self._has_spare else set()

        unwanted, complete = await self._store.decide(write)
        if late := unwanted.refused - unwanted.spare:
            logger.warning("%d rollouts came too late: another explorer has claimed their groups", late)
        if unwanted.lost:
            logger.warning(
                "%d rollouts could not be written: the server has lost the start of their groups, such as in "
                "a failover to a lagging replica; their tasks are attempted again",
                unwanted.lost,
            )
        self._failures.watch([rollout for rollout in finished if not rollout.was_cancelled])
        return complete


class FailuresInARow:
    """Counts failed rollouts since the last successful one."""

    def __init__(self) -> None:
        self._by_group: Counter[int] = Counter()

    def watch(self, finished: Sequence[Rollout]) -> None:
        """Count rollouts, in the order in which they ended.

        Raises:
            TrinityError: if too many failed.
        """
        for rollout in finished:
            if rollout.error is None:
                self._by_group.clear()
                continue
            if not self._by_group:
                logger.warning("group %d failed: %s", rollout.group.id, storable(rollout.error))
            self._by_group[rollout.group.id] += 1
        counted = sum(min(number, FAILURES_OF_A_GROUP) for number in self._by_group.values())
        if counted >= FAILURES_IN_A_ROW:
            total = self._by_group.total()
            raise TrinityError(f"{total} rollouts failed in a row, the last with: {finished[-1].error}")
