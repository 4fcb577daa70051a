"""An offline run as a state machine: after any number of crashes, it draws what an undisturbed one would.

As test_store_machine.py, which says how to see a failure again. The model knows the order of both epochs from
the beginning: each batch must be the next of it, after any number of crashes, and each row, group or pair is
used twice. The run's length, of two epochs or of one and a half, stays the same after each crash.
"""

import math
from collections.abc import Callable
from statistics import fmean
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.support.machine.history import Batch, History
from tests.support.machine.passes import GroupPasses
from tests.support.machine.snapshot import GROUPS, PAIRS, ROWS
from tests.support.machine.trainer import SEED, TIMES, Machine, assert_no_failures
from tests.support.rows import centered, demonstration, import_records, preference, trajectory
from trinity_db.data.records.records import Trajectory
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.states import Draws
from trinity_db.store import batches, offline
from trinity_db.store.draws import draw_adopted_groups, draw_pairs, draw_rows

EPOCHS = 2
NUM_RECORDS = 7  # no multiple of a batch
MEMBERS = 2  # of a group


class OfflineRun(Machine):
    """Adopted rows, groups or pairs, each to be used twice, in the order of a run that is not disturbed."""

    source: ClassVar[str]
    draws: ClassVar[Draws]
    order: ClassVar[str]
    """The ids of a run in the order of an epoch; its values are the run and the epoch's seed."""

    @initialize(batch_size=st.integers(1, 4), publish_every=st.integers(1, 3))
    def begin(self, batch_size: int, publish_every: int) -> None:
        self.batch_size, self.publish_every = batch_size, publish_every
        as_groups = self.draws == "groups"
        algorithm = "grpo" if as_groups else "sft"
        self.open(self.source, [self.source], algorithm=algorithm, as_groups=as_groups)
        self.scene.encode()
        epochs = [self.scene.values(self.order, self.scene.run.id, SEED + epoch) for epoch in range(EPOCHS)]
        self.model = self.model_of(sorted(epochs[0]))
        self.plan = [
            epoch[first : first + batch_size]
            for epoch in epochs
            for first in range(0, len(epoch), batch_size)
        ]

    def model_of(self, ids: list[int]) -> History:
        """The model of the run, by what it draws."""
        return History(EPOCHS, ids)

    def draw_from_model(self, draw: batches.Draw) -> Batch | None:
        if draw.step > len(self.plan):
            return None
        return self.batch_of(draw, self.plan[draw.step - 1])

    def batch_of(self, draw: batches.Draw, chosen: list[int]) -> Batch:
        """The batch that takes these ids."""
        rows = [self.model.rows[row] for row in chosen]
        version = self.model.with_checkpoint()[0]
        return Batch(draw.step, draw.worker_id, version, rows, [(None, None, None)] * len(rows))

    @invariant()
    def length_stays(self) -> None:
        """A crash takes no step from the run, and adds none."""
        with self.database.transaction() as tx:
            trainable = offline.count_trainable(tx, self.scene.run.id, self.draws)
        done, a_pass = self.trainer.step, len(self.plan) // EPOCHS
        for epochs, steps in ((1.5, a_pass + math.ceil(a_pass / 2)), (2.0, 2 * a_pass)):
            left = offline.steps_left(trainable, self.batch_size, epochs)
            assert done + left == max(steps, done), f"{epochs} epochs"

    @rule()
    def train_to_the_end(self) -> None:
        """Undisturbed from here on: each row was used twice then, and nothing is left."""
        while self.trainer.step < len(self.plan):
            self.train()
        assert {row.uses for row in self.model.rows.values()} == {EPOCHS}


class OfflineRows(OfflineRun):
    """Rows to imitate."""

    snapshot = ROWS
    draws = "rows"
    source = "demonstrations"
    order = "SELECT id FROM trinity.experience WHERE run_id = %s ORDER BY hashint8extended(source_id, %s), id"

    def draw_from_store(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        return draw_rows(tx, draw)


class OfflineGroups(OfflineRun):
    """Groups whose members are compared."""

    snapshot = GROUPS
    model: GroupPasses
    draws = "groups"
    source = "attempts"
    order = (
        "SELECT id FROM trinity.rollout_group WHERE run_id = %s ORDER BY hashint8extended(source_id, %s), id"
    )

    def model_of(self, ids: list[int]) -> GroupPasses:
        members: dict[int, list[int]] = {key: [] for key in ids}
        self.rewards: dict[int, float] = {}
        for row, group, value in self.scene.rows(
            "SELECT id, group_id, reward FROM trinity.experience WHERE run_id = %s ORDER BY id",
            self.scene.run.id,
        ):
            members[group].append(row)
            self.rewards[row] = value
        return GroupPasses(members, EPOCHS)

    def draw_from_store(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        return draw_adopted_groups(tx, draw, centered)

    def batch_of(self, draw: batches.Draw, chosen: list[int]) -> Batch:
        groups = [self.model.groups[key] for key in sorted(chosen)]
        batch = Batch(draw.step, draw.worker_id, self.model.with_checkpoint()[0], [], [], groups)
        for group in groups:
            values = [self.rewards[row] for row in group.members]
            batch.rows += group.rows("ready")
            batch.numbers += [(value, value - fmean(values), None) for value in values]
        return batch


class OfflinePairs(OfflineRun):
    """Pairs to prefer."""

    snapshot = PAIRS
    draws = "pairs"
    source = "preferences"
    order = (
        "SELECT p.id FROM trinity.preference p JOIN trinity.experience e ON e.id = p.chosen_id"
        " WHERE p.run_id = %s ORDER BY hashint8extended(e.source_id, %s), p.id"
    )

    def draw_from_store(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        return draw_pairs(tx, draw)


def attempt(number: int) -> Trajectory:
    """One of the MEMBERS attempts at each of NUM_RECORDS tasks."""
    return trajectory(number % NUM_RECORDS, f"attempt {number}", float(number // NUM_RECORDS))


@pytest.mark.timeout(600 * TIMES)  # of a failure the shortest form is looked for, for five minutes
@pytest.mark.parametrize(
    ("machine", "record"),
    [(OfflineRows, demonstration), (OfflineGroups, attempt), (OfflinePairs, preference)],
)
def test_an_offline_run_draws_what_an_undisturbed_one_would(
    shared_database: Database, machine: type[OfflineRun], record: Callable[[int], object]
) -> None:
    num_records = NUM_RECORDS * (MEMBERS if machine is OfflineGroups else 1)
    import_records(shared_database, machine.source, [record(number) for number in range(num_records)])
    assert_no_failures(machine, shared_database, examples=25, steps=30)
