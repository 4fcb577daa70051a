"""A trainer's exclusive hold on its run.

It has the newest version and the last committed batch, as last reported by the store. Each transaction that
changes the run checks that the store still agrees.
"""

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from trinity_db.errors import LeaseLost
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, evaluations, runs
from trinity_db.store.metrics import record_metrics

Result = TypeVar("Result")


class Hold:
    """The right of one worker to change a run as its trainer, and the newest state known to it.

    Args:
        give_up: Whether to stop waiting for an unreachable database.

    Raises:
        LeaseLost: if another trainer has taken over.
        SetBack: if the run has no version.
    """

    def __init__(
        self, database: Database, run: runs.Run, worker_id: int, give_up: Callable[[], bool]
    ) -> None:
        self.database, self.run, self.worker_id = database, run, worker_id
        self._give_up = give_up
        self.lock = threading.RLock()
        """Held during a transaction that calls `check`, and until the mark agrees with its commit: both the
        trainer's main thread and the thread that writes a version commit."""
        with database.transaction() as tx:
            self.mark = batches.hold_trainer(tx, run.id, worker_id)
            """The newest version and the last committed batch known to this trainer."""

    def check(self, tx: Transaction, *done: batches.Mark) -> None:
        """Let no worker replace this trainer before the transaction ends. Hold `lock` around it.

        Args:
            done: The mark after this transaction. The store may already have it, because an earlier attempt
                of the transaction was committed and its answer lost.

        Raises:
            LeaseLost: if another trainer has taken over the run.
            SetBack: if the store has another version or step than the mark.
        """
        batches.hold_trainer(tx, self.run.id, self.worker_id, self.mark, *done)

    def commit(self, batch: batches.Batch, max_uses: int, metrics: Mapping[str, float]) -> bool:
        """Commit a batch with the metrics of its step. Return False if it was committed before.

        Raises:
            LeaseLost, SetBack: see `check`.
        """
        with self.lock:
            done = batches.Mark(self.mark.version, batch.step, batch.id, batch.created_at)
            with self.database.transaction() as tx:
                self.check(tx, done)
                is_new = batches.commit(tx, batch, self.worker_id, max_uses)
                if is_new:
                    record_metrics(tx, self.run.id, WorkerRole.TRAIN, batch.step, metrics)
            self.mark = done
        return is_new

    def finish(self) -> None:
        """Begin the evaluations of the last version, and finish the run.

        Raises:
            LeaseLost, SetBack: see `check`.
        """
        with self.lock, self.database.transaction() as tx:
            self.check(tx)
            evaluations.begin_due(tx, self.run.id, self.mark.version, is_last=True)
            runs.finish(tx, self.run.id)

    def retry(self, decide: Callable[[], Result], step: int) -> Result:
        """Run a transaction that only the run's trainer may commit, with retries while the database is
        unreachable.

        If the store refuses because another trainer has taken over, count that in a metric.

        Args:
            step: Step of the metric: the last one in the weights.

        Raises:
            LeaseLost: if another trainer has taken over the run, so that this one must not publish any more.
        """
        try:
            return self.database.retry(decide, self._give_up)
        except LeaseLost:
            self.database.retry(lambda: self._record_refusal(step), self._give_up)
            raise

    def _record_refusal(self, step: int) -> None:
        with self.database.transaction() as tx:
            record_metrics(tx, self.run.id, WorkerRole.TRAIN, step, {"refused/batches": 1.0})
