"""A trainer's process without a model, as `benchmarks.restart` starts it: from nothing to its first batch.

It takes the ways that a trainer takes (`trinity_db.service`, the store's verbs), prints when it had come how
far, in seconds since it was started, and waits to be killed.
"""

import json
import sys
import threading
import time

from trinity_db import database, opening
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS, Service
from trinity_db.store import batches, draws, policies, runs

BATCH_GROUPS = 8  # 64 rows


class _Clock:
    """When the process had come how far, in seconds since it was started."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self.reached: dict[str, float] = {}

    def mark(self, what: str) -> None:
        self.reached[what] = time.monotonic() - self._begun


class _Restarted(Service):
    """The run's trainer, up to the point where it would compute."""

    role = WorkerRole.TRAIN
    exclusive = True

    def __init__(self, store: database.Database, run: runs.Run, clock: _Clock) -> None:
        super().__init__(store, run)
        self._clock = clock

    def start(self) -> None:
        """Find the newest version, and give back what it does not include."""
        self._clock.mark("registered")
        with self.database.transaction() as tx:
            policy = policies.with_checkpoint(tx, self.run.id)[0]
        with self.database.transaction() as tx:
            batches.reopen(tx, self.run.id, self.worker_id, policy.version)
        self._clock.mark("recovered")
        self._step_number = policy.step + 1

    def work(self) -> bool:
        """Draw and read one batch, tell, and wait for the end."""
        draw = batches.Draw(self.run.id, self.worker_id, self._step_number, BATCH_GROUPS, seed=0)
        with self.database.transaction() as tx:
            batch = draws.draw_groups(tx, draw, 1_000_000, lambda columns: columns["rewards"])
        assert batch is not None
        self._clock.mark("drew")
        rows = batches.read(self.database, batch.id)
        self._clock.mark("read")
        print(json.dumps({"rows": len(rows), "reached": self._clock.reached}), flush=True)
        threading.Event().wait()
        return True


def main() -> None:
    begun, name = float(sys.argv[1]), sys.argv[2]
    clock = _Clock(begun)
    clock.mark("imported")
    store = opening.open_database(LEASE_SECONDS)
    with store.transaction() as tx:
        run = runs.find(tx, name)
    clock.mark("connected")
    _Restarted(store, run, clock).serve()


if __name__ == "__main__":
    main()
