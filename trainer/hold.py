"""A trainer's hold on its run.

It knows the newest version and the last committed batch, as the store last told them to this trainer. Each
transaction that changes the run checks that the store still agrees.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from trinity_db.database import Database, Transaction
from trinity_db.errors import LeaseLost
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, runs
from trinity_db.store.metrics import record_metrics

Result = TypeVar("Result")


class Hold:
    """The right of one worker to change a run as its trainer, and the newest state that it knows.

    Args:
        give_up: whether to stop waiting for a database that is away.

    Raises:
        LeaseLost: another trainer has this one's place.
        SetBack: the run has no version.
    """

    def __init__(
        self, database: Database, run: runs.Run, worker_id: int, give_up: Callable[[], bool]
    ) -> None:
        self.database, self.run, self.worker_id = database, run, worker_id
        self._give_up = give_up
        self.lock = threading.RLock()
        """Hold it during a transaction that calls `check`, and until the mark agrees with its commit: the
        trainer's thread and the thread that writes a version both commit."""
        with database.transaction() as tx:
            self.mark = batches.hold_trainer(tx, run.id, worker_id)
            """The newest version and the last committed batch, as this trainer knows them."""

    def check(self, tx: Transaction, *done: batches.Mark) -> None:
        """Let no worker replace this trainer before the transaction ends. Hold `lock` around it.

        Args:
            done: what the mark becomes by this transaction. The store may say so already, because an earlier
                try of the transaction was committed and its answer lost.

        Raises:
            LeaseLost: another trainer has taken over the run.
            SetBack: the store names another version or step than the mark.
        """
        batches.hold_trainer(tx, self.run.id, self.worker_id, self.mark, *done)

    def retry(self, decide: Callable[[], Result], step: int) -> Result:
        """Run a transaction that only the run's trainer may commit, again while the database is away.

        If the store refuses because another trainer has taken over, count that in a metric.

        Args:
            step: the metric's step: the last one that the weights contain.

        Raises:
            LeaseLost: another trainer has taken over the run, and this one may publish nothing more.
        """
        try:
            return self.database.retry(decide, self._give_up)
        except LeaseLost:
            self.database.retry(lambda: self._record_refusal(step), self._give_up)
            raise

    def _record_refusal(self, step: int) -> None:
        with self.database.transaction() as tx:
            record_metrics(tx, self.run.id, WorkerRole.TRAIN, step, {"refused/batches": 1.0})
