"""Passes over rows and pairs as a state machine: each draw is the next in the order that is defined.

As test_store_machine.py, which says how to see a failure again. While a run learns, people judge and drop its
rows, a processor derives pairs, and its trainer dies. After every step rows and pairs have the model's order,
and the index holds no row that cannot be drawn.
"""

from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.support.machine.history import Batch
from tests.support.machine.passes import Fact, Pair, Passes
from tests.support.machine.snapshot import ROWS_AND_PAIRS
from tests.support.machine.trainer import SEED, TIMES, Machine, assert_no_failures, pick
from tests.support.rows import import_records, payload, preference, trajectory
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.store import batches, draws, offline, processing, rewards

MAX_USES = 3
HOLDOUT = 0.2
NUM_TASKS = 5
REWARDS = [None, -1.0, 0.0, 1.0, 2.0]
VALUES = st.sampled_from([-1.0, 0.0, 0.5, 2.0])

FACTS = """
SELECT id, ARRAY(SELECT hashint8extended(source_id, %s + n) FROM generate_series(0, %s) n ORDER BY n),
       held_out, reward
FROM trinity.experience WHERE run_id = %s ORDER BY id
"""
PAIRS = """
SELECT id, chosen_id, rejected_id, source = 'pair', held_out
FROM trinity.preference WHERE run_id = %s AND id <> ALL(%s) ORDER BY id
"""
PLACED = """
SELECT (SELECT count(*) FROM trinity.experience WHERE run_id = %s AND state = 'ready' AND place IS NOT NULL),
       (SELECT count(*) FROM trinity.preference WHERE run_id = %s AND state = 'ready' AND place IS NOT NULL)
"""


class ChangingRun(Machine):
    """A run over attempts and pairs, some of them held out and some without tokens yet."""

    snapshot = ROWS_AND_PAIRS
    model: Passes
    algorithm: ClassVar[str]

    @initialize(
        batch_size=st.integers(1, 9),
        publish_every=st.integers(1, 3),
        num_encoded=st.sampled_from([100, 20, 3]),
    )
    def begin(self, batch_size: int, publish_every: int, num_encoded: int) -> None:
        self.batch_size, self.publish_every = batch_size, publish_every
        self.open(self.algorithm, ["attempts", "pairs"], holdout=HOLDOUT, algorithm=self.algorithm)
        found = self.scene.rows(FACTS, SEED, MAX_USES - 1, self.scene.run.id)
        facts = {id: Fact(places, is_held_out, reward) for id, places, is_held_out, reward in found}
        self.model = Passes(facts, MAX_USES, learns_labels=self.algorithm == "kto")
        self.learns_from_pairs = False
        self._encode(num_encoded)
        self._find_pairs()

    def draw_from_store(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        return draws.draw_pairs(tx, draw) if self.learns_from_pairs else draws.draw_rows(tx, draw)

    def draw_from_model(self, draw: batches.Draw) -> Batch | None:
        return self.model.draw(draw, self.learns_from_pairs)

    @rule(from_pairs=st.booleans())
    def learn(self, from_pairs: bool) -> None:
        """A step undisturbed; later draws are of the same kind."""
        self.learns_from_pairs = from_pairs
        self.train()

    @rule(which=st.integers(0, 50), value=VALUES)
    def judge(self, which: int, value: float) -> None:
        row = pick(self.model.rated(), which)
        event = rewards.RewardEvent(None, "reward", value, experience_id=row)
        self.perform(lambda tx: rewards.record(tx, self.scene.run.id, "person", [event]))
        self.model.judge(row, value)

    @precondition(lambda self: self._ready())
    @rule(which=st.integers(0, 50))
    def drop(self, which: int) -> None:
        row = pick(self._ready(), which)
        self.perform(lambda tx: offline.drop(tx, self.scene.run.id, [(row, "unfit", "a person said so")]))
        self.model.drop(row)

    @rule()
    def pair(self) -> None:
        """Derive pairs until no group is left to look at."""

        def verb(tx: Transaction) -> int:
            made = 0
            while (found := processing.pair_groups(tx, self.scene.run.id, 0.0, limit=10)) is not None:
                made += found
            return made

        assert self.perform(verb) == self._find_pairs()

    @precondition(lambda self: not all(fact.has_tokens for fact in self.model.facts.values()))
    @rule(limit=st.sampled_from([100, 5]))
    def encode(self, limit: int) -> None:
        self._encode(limit)

    @invariant()
    def order_is_as_defined(self) -> None:
        """Also behind what the next batch takes."""
        run_id = self.scene.run.id
        for name, pairs in (("draw_rows", False), ("draw_pairs", True)):
            with self.database.transaction() as tx:
                found = [row["id"] for row in tx.execute(query(name), {"run_id": run_id, "limit": 1000})]
            assert found == [abs(row.id) for row in self.model.drawable(pairs)], name
        [placed] = self.scene.rows(PLACED, run_id, run_id)
        assert placed == (len(self.model.placed(False)), len(self.model.placed(True))), (
            "others stand in the way"
        )

    def _ready(self) -> list[int]:
        return [row for row in self.model.facts if self.model.rows[row].state == "ready"]

    def _encode(self, limit: int) -> None:
        """Give tokens to so many rows that have none."""
        with self.database.transaction() as tx:
            texts = offline.unencoded(tx, self.scene.run.id, 0, limit)
            offline.write_tokens(tx, [(text.id, payload(())) for text in texts])
        for text in texts:
            self.model.facts[text.id].has_tokens = True

    def _find_pairs(self) -> int:
        """Take over the pairs that the model does not know; how many these are."""
        known = [pair.id for pair in self.model.pairs.values()]
        found = [Pair(*row) for row in self.scene.rows(PAIRS, self.scene.run.id, known)]
        self.model.add(found)
        return len(found)


class Imitation(ChangingRun):
    """Rows to imitate: good ones, and none that is the worse of a pair."""

    algorithm = "sft"


class Labels(ChangingRun):
    """Rows to learn from by their label, good and bad ones."""

    algorithm = "kto"


@pytest.mark.timeout(600 * TIMES)  # of a failure the shortest form is looked for, for five minutes
@pytest.mark.parametrize("machine", [Imitation, Labels])
def test_draws_are_in_the_order_that_is_defined(
    shared_database: Database, machine: type[ChangingRun]
) -> None:
    attempts = [
        trajectory(number % NUM_TASKS, f"attempt {number}", REWARDS[number % len(REWARDS) - number // 7])
        for number in range(3 * NUM_TASKS)
    ]
    import_records(shared_database, "attempts", attempts)
    import_records(shared_database, "pairs", [preference(number) for number in range(8)])
    assert_no_failures(machine, shared_database, examples=25, steps=30)
