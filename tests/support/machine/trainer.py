"""The part of a machine that every run has: a trainer that draws, commits, publishes, dies and is replaced.

A machine plays the roles on a real database and on the model at the same time, and reads the whole run back
after every step. A subclass opens the run, names its model, and says what is drawn.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.machine.history import Batch, History
from tests.support.machine.snapshot import Snapshot, broken_promises, differences, read_back
from tests.support.rows import Scene
from trinity_db.errors import LeaseLost
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, policies, workers

Result = TypeVar("Result")
Thing = TypeVar("Thing")

TIMES = int(os.environ.get("TRINITY_TEST_TIMES", "1"))
KEEP = 2  # checkpoints
SEED = 7
WHICH = st.integers(0, 5)  # of the things there are, from the newest
HEARD = st.sampled_from([True, True, True, False])  # whether the answer of a transaction arrives

numbers = count(1)


@dataclass
class Trainer:
    """What a trainer's process remembers."""

    worker: int
    step: int = 0
    published: int = 0
    batch: batches.Batch | None = None


class Machine(RuleBasedStateMachine):
    """A run with one trainer at a time, and those that it replaced."""

    database: ClassVar[Database]
    snapshot: ClassVar[Snapshot]
    scene: Scene
    model: History
    batch_size: int
    publish_every: int
    max_staleness: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.interrupted = False
        self.zombies: list[Trainer] = []
        self.drawn: list[batches.Batch] = []
        self.published: list[tuple[int, policies.PolicyVersion]] = []

    def open(
        self,
        kind: str,
        data: Sequence[str] = (),
        num_tasks: int = 1,
        holdout: float = 0.0,
        algorithm: str = "sft",
        as_groups: bool = False,
    ) -> None:
        """Begin a run of its own; with `as_groups` it adopts whole groups."""
        name = f"{kind} {next(numbers)}"
        self.scene = Scene.open(self.database, name, num_tasks, data, holdout, SEED, algorithm, as_groups)
        self.trainer = Trainer(self.scene.trainer)

    def perform(self, verb: Callable[[Transaction], Result]) -> Result:
        """One transaction; after an interruption it is first done in vain, as when the connection breaks."""
        if self.interrupted:
            self.interrupted = False
            with self.database.transaction() as tx, tx.transaction(force_rollback=True):
                verb(tx)
        with self.database.transaction() as tx:
            return verb(tx)

    def draw_from_store(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        """Draw as the store does it; a machine of groups, rows or pairs says by which statement."""
        raise NotImplementedError

    def draw_from_model(self, draw: batches.Draw) -> Batch | None:
        """Draw as the model of the store does it."""
        raise NotImplementedError

    @precondition(lambda self: not self.interrupted)
    @rule()
    def interrupt(self) -> None:
        self.interrupted = True

    @precondition(lambda self: self.can_draw() and not self.is_publishing_due())
    @rule(heard=HEARD)
    def draw(self, heard: bool) -> None:
        draw = self._next_draw(self.trainer)
        batch = self.perform(lambda tx: self._draw(tx, draw))
        self.model.reopen_leased(draw.step, draw.worker_id)
        expected = self.draw_from_model(draw)
        assert (batch is None) == (expected is None), (batch, expected)
        if batch is not None and expected is not None:
            assert (batch.step, batch.version) == (expected.step, expected.version)
            self.model.lease(batch.id, expected)
            if heard:
                self.trainer.batch = batch
                self.drawn.append(batch)

    @precondition(lambda self: self.trainer.batch is not None)
    @rule()
    def commit(self) -> None:
        batch = self.trainer.batch
        assert batch is not None
        if self.zombies:
            answer = said(lambda: self._commit(batch, self.zombies[-1].worker))
            assert answer == LeaseLost, f"another worker committed batch {batch.id}"
        assert self._commit(batch, self.trainer.worker), f"batch {batch.id} was committed already"
        self.model.commit(batch.id, self.trainer.worker)
        self.trainer.step += 1
        self.trainer.batch = None

    @precondition(lambda self: any(batch != self.trainer.batch for batch in self.drawn))
    @rule(which=WHICH, trainer=WHICH)
    def commit_late(self, which: int, trainer: int) -> None:
        """A batch that is committed already, or that is not the trainer's any more, or never was."""
        batch = pick([batch for batch in self.drawn if batch != self.trainer.batch], which)
        worker = pick([*self.zombies, self.trainer], trainer).worker
        expected = said(lambda: self.model.commit(batch.id, worker))
        assert said(lambda: self._commit(batch, worker)) == expected, f"batch {batch.id}, worker {worker}"

    @precondition(lambda self: self.trainer.batch is None and self.trainer.step > self.trainer.published)
    @rule()
    def publish(self) -> None:
        policy = self._next_version(self.trainer)
        self._publish(policy, self.trainer.worker)
        self.model.publish(policy, self.trainer.worker, KEEP)
        self.published.append((self.trainer.worker, policy))
        self.trainer.published = policy.step

    @precondition(lambda self: self.published)
    @rule(which=WHICH)
    def publish_again(self, which: int) -> None:
        """The answer was lost, or a trainer that was replaced wakes up: either way nothing changes."""
        worker, policy = pick(self.published, which)
        said(lambda: self._publish(policy, worker))

    @precondition(lambda self: any(zombie.step > zombie.published for zombie in self.zombies))
    @rule(which=WHICH)
    def publish_late(self, which: int) -> None:
        """A trainer that was replaced has a checkpoint with steps that were reopened."""
        zombie = pick([zombie for zombie in self.zombies if zombie.step > zombie.published], which)
        policy = self._next_version(zombie)
        assert said(lambda: self._publish(policy, zombie.worker)) == LeaseLost, "its steps were reopened"

    @precondition(lambda self: self.zombies)
    @rule(which=WHICH)
    def draw_late(self, which: int) -> None:
        """A trainer that was replaced wakes up between two steps."""
        draw = self._next_draw(pick(self.zombies, which))
        assert said(lambda: self.perform(lambda tx: self._draw(tx, draw))) == LeaseLost, "it drew a batch"

    @precondition(lambda self: self.zombies)
    @rule(which=WHICH)
    def reopen_late(self, which: int) -> None:
        """A trainer that was replaced while it looked at its checkpoints would give back too much."""
        zombie, run_id = pick(self.zombies, which), self.scene.run.id
        answer = said(lambda: self.perform(lambda tx: batches.reopen(tx, run_id, zombie.worker, 0)))
        assert answer == LeaseLost, "it reopened batches"

    @precondition(lambda self: self.model.batches)
    @rule(damaged=st.sampled_from([0, 0, 0, 1, 2]))
    def resume(self, damaged: int) -> None:
        """The trainer dies or is lost sight of; the next one goes on from the newest whole checkpoint."""
        self.zombies.append(self.trainer)
        worker = self.scene.new_worker(WorkerRole.TRAIN)
        self.perform(lambda tx: workers.replace_others(tx, worker))
        found = self.perform(lambda tx: policies.with_checkpoint(tx, self.scene.run.id))
        assert [policy.version for policy in found] == self.model.with_checkpoint()
        whole = found[min(damaged, len(found) - 1)]
        reopened = self.perform(lambda tx: batches.reopen(tx, self.scene.run.id, worker, whole.version))
        assert reopened == self.model.reopen(whole.version)
        self.trainer = Trainer(worker, whole.step, whole.step)

    @invariant()
    def check(self) -> None:
        """The store equals the model, the promises hold, and the history has each step once."""
        run_id = self.scene.run.id
        wrong = differences(self.model.tables(), read_back(self.database, self.snapshot, run_id))
        wrong += broken_promises(self.database, run_id, self.model.max_uses, self.max_staleness)
        assert not wrong, "\n".join(wrong)
        assert self.model.steps() == list(range(1, self.trainer.step + 1))
        newest = self.model.with_checkpoint()[0]
        assert self.model.steps(newest) == list(range(1, self.model.versions[newest].step + 1))

    def train(self) -> None:
        """A step undisturbed, and before it the version that is due."""
        if self.is_publishing_due():
            self.publish()
        if self.trainer.batch is None:
            self.draw(heard=True)
        if self.trainer.batch is not None:
            self.commit()

    def can_draw(self) -> bool:
        """Whether there may be a batch, and the trainer has none."""
        return self.trainer.batch is None and any(row.state == "ready" for row in self.model.rows.values())

    def is_publishing_due(self) -> bool:
        return self.trainer.step - self.trainer.published >= self.publish_every

    def _next_draw(self, trainer: Trainer) -> batches.Draw:
        return batches.Draw(self.scene.run.id, trainer.worker, trainer.step + 1, self.batch_size, SEED)

    def _draw(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        batches.reopen_leased(tx, draw)
        return self.draw_from_store(tx, draw)

    def _commit(self, batch: batches.Batch, worker: int) -> bool:
        return self.perform(lambda tx: batches.commit(tx, batch, worker, self.model.max_uses))

    def _next_version(self, trainer: Trainer) -> policies.PolicyVersion:
        with self.database.transaction() as tx:
            version = (policies.latest_version(tx, self.scene.run.id) or 0) + 1
        digest = f"step {trainer.step} of worker {trainer.worker}"
        folder = Path(self.scene.run.name, f"version-{version}")
        return policies.PolicyVersion(version, trainer.step, folder, digest)

    def _publish(self, policy: policies.PolicyVersion, worker: int) -> None:
        def verb(tx: Transaction) -> None:
            policies.publish(tx, self.scene.run.id, policy, worker)
            saved = policies.Checkpoint(Path(f"checkpoint-{policy.version}"), policy.checkpoint_hash)
            policies.record_checkpoint(tx, self.scene.run.id, policy.version, saved)
            policies.prune(tx, self.scene.run.id, KEEP)

        self.perform(verb)


def pick(things: Sequence[Thing], which: int) -> Thing:
    """One of the things there are, counted from the newest."""
    return things[-1 - which % len(things)]


def said(verb: Callable[[], Result]) -> Result | type[LeaseLost]:
    """The answer, or that the lease was lost."""
    try:
        return verb()
    except LeaseLost:
        return LeaseLost


def assert_no_failures(machine: type[Machine], database: Database, examples: int, steps: int) -> None:
    """Let Hypothesis run the machine; raises its shortest failure."""
    Machine.database = database
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples * TIMES,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            phases=set(Phase) - {Phase.explain},  # it takes minutes and says little
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
