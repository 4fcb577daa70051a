"""An offline run as a state machine: after any number of crashes, it draws what an undisturbed one would.

As test_store_machine.py, which says how to see a failure again. The model knows the order of both epochs from
the beginning: each batch must be the next of it, after any number of crashes, and each row is used twice.
"""

from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.machine.history import Batch, History
from tests.machine.snapshot import PAIRS, ROWS
from tests.machine.trainer import SEED, TIMES, Machine, assert_no_failures
from tests.rows import demonstration, import_records, preference
from trinity_db.database import Database, Transaction
from trinity_db.store import batches, draws

EPOCHS = 2
NUM_RECORDS = 7  # no multiple of a batch


class OfflineRun(Machine):
    """Imported rows or pairs, each to be used twice, in the order of a run that is not disturbed."""

    source: ClassVar[str]
    order: ClassVar[str]
    """The ids of a run in the order of an epoch; its values are the run and the epoch's seed."""

    @initialize(batch_size=st.integers(1, 4), publish_every=st.integers(1, 3))
    def begin(self, batch_size: int, publish_every: int) -> None:
        self.batch_size, self.publish_every = batch_size, publish_every
        self.open(self.source, [self.source])
        self.scene.encode()
        epochs = [self.scene.values(self.order, self.scene.run.id, SEED + epoch) for epoch in range(EPOCHS)]
        self.model = History(EPOCHS, sorted(epochs[0]))
        self.plan = [
            epoch[first : first + batch_size]
            for epoch in epochs
            for first in range(0, len(epoch), batch_size)
        ]

    def draw_from_model(self, draw: batches.Draw) -> Batch | None:
        if draw.step > len(self.plan):
            return None
        chosen = [self.model.rows[row] for row in self.plan[draw.step - 1]]
        version = self.model.with_checkpoint()[0]
        return Batch(draw.step, draw.worker_id, version, chosen, [(None, None, None)] * len(chosen))

    @rule()
    def train_to_the_end(self) -> None:
        """Undisturbed from here on: each row was used twice then, and nothing is left."""
        while self.trainer.step < len(self.plan):
            self.train()
        assert {row.uses for row in self.model.rows.values()} == {EPOCHS}


class OfflineRows(OfflineRun):
    """Rows to imitate."""

    snapshot = ROWS
    source = "demonstrations"
    order = "SELECT id FROM trinity.experience WHERE run_id = %s ORDER BY hashint8extended(source_id, %s), id"

    def draw_from_store(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        return draws.draw_rows(tx, draw)


class OfflinePairs(OfflineRun):
    """Pairs to prefer."""

    snapshot = PAIRS
    source = "preferences"
    order = (
        "SELECT p.id FROM trinity.preference p JOIN trinity.experience e ON e.id = p.chosen_id"
        " WHERE p.run_id = %s ORDER BY hashint8extended(e.source_id, %s), p.id"
    )

    def draw_from_store(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        return draws.draw_pairs(tx, draw)


@pytest.mark.timeout(600 * TIMES)  # of a failure the shortest form is looked for, for five minutes
@pytest.mark.parametrize(("machine", "record"), [(OfflineRows, demonstration), (OfflinePairs, preference)])
def test_an_offline_run_draws_what_an_undisturbed_one_would(
    shared_database: Database, machine: type[OfflineRun], record: Callable[[int], object]
) -> None:
    import_records(shared_database, machine.source, [record(number) for number in range(NUM_RECORDS)])
    assert_no_failures(machine, shared_database, examples=25, steps=30)
