"""An online run as a state machine: whatever the roles do and when some die, the store equals the model.

Hypothesis lets explorers, processors and trainers act in any order, in time, too late, twice or unheard, on a
real database, in a run of its own for each example. After every step the whole run is read back and compared
with the model, and the promises are asked of SQL alone.

A failure prints its shortest form as a program, and a line `@reproduce_failure(...)`: put that above the
machine's class to see it again. The next run tries it first by itself (.hypothesis/). TRINITY_TEST_TIMES=20
makes it twenty times as many examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.machine.history import Batch, Name
from tests.support.machine.snapshot import ONLINE
from tests.support.machine.store import Store
from tests.support.machine.trainer import HEARD, TIMES, WHICH, Machine, assert_no_failures, pick
from tests.support.rows import centered, reward, rollout
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import batches, draws, finish_groups, groups, processing, rewards, workers
from trinity_db.store.finish_groups import Rules

LEASE_SECONDS = 3600.0  # only the rule `lose` makes a worker silent for so long
MAX_ATTEMPTS = 2
NUM_TASKS = 3

MEMBERS = st.lists(st.sampled_from(["finish", "finish", "fail", "skip"]), min_size=3, max_size=3)
VALUES = st.sampled_from([0.0, 1.0, 0.3, -2.0, 1e6])
OUTCOMES = st.sampled_from([Outcome.PASSED, Outcome.PASSED, Outcome.DROPPED, Outcome.FAILED])
JUDGEMENTS = st.lists(st.tuples(OUTCOMES, VALUES), min_size=1, max_size=4)
SCORES = st.lists(VALUES, min_size=1, max_size=4)
STAGES = st.sampled_from([processing.CLEAN, processing.SCORE])


@dataclass(frozen=True)
class Claim:
    """A group that an explorer believes to hold, and the version it explores with."""

    worker: int
    version: int
    group: groups.ClaimedGroup


@dataclass
class Work:
    """Rows that a processor believes to hold: ids and attempts."""

    worker: int
    stage: processing.Stage
    rows: list[tuple[int, int]]
    is_done: bool = False


class OnlineRun(Machine):
    """Two explorers, two processors and a trainer, some of them dead or asleep."""

    snapshot = ONLINE
    model: Store

    @initialize(
        max_staleness=st.integers(0, 2),
        batch_size=st.integers(1, 2),
        publish_every=st.integers(1, 2),
        group_size=st.integers(1, 3),
        min_group_size=st.sampled_from([1, 1, 2]),
        drop_equal_rewards=st.sampled_from([False, False, True]),
        solved_reward=st.sampled_from([1.0, 0.5]),
        max_uses=st.sampled_from([1, 1, 2]),
    )
    def begin(
        self,
        max_staleness: int,
        batch_size: int,
        publish_every: int,
        group_size: int,
        min_group_size: int,
        drop_equal_rewards: bool,
        solved_reward: float,
        max_uses: int,
    ) -> None:
        self.open("online", num_tasks=NUM_TASKS)
        self.max_staleness, self.batch_size, self.publish_every = max_staleness, batch_size, publish_every
        self.pace = groups.Pace(max_staleness, batch_size * publish_every)
        self.min_group_size = min(min_group_size, group_size)
        self.drop_equal_rewards = drop_equal_rewards
        self.solved_reward = solved_reward
        said = f'{{"solved_reward": {solved_reward}}}'
        self.perform(
            lambda tx: tx.execute(
                "UPDATE trinity.run SET config = jsonb_set(config, '{processors,group}', %s::jsonb)"
                " WHERE id = %s",
                [said, self.scene.run.id],
            )
        )
        tasks = self.scene.values("SELECT id FROM trinity.task ORDER BY ordinal")
        self.model = Store(tasks, self.pace, group_size, max_uses)
        self.explorers = [self.scene.explorer, self.scene.new_worker(WorkerRole.EXPLORE)]
        self.processors = [self.scene.processor, self.scene.new_worker(WorkerRole.PROCESS)]
        self.gone: set[int] = set()
        self.loaded = dict.fromkeys(self.explorers, 0)
        self.claims: list[Claim] = []
        self.written: list[tuple[int, list[groups.Rollout]]] = []
        self.works: list[Work] = []
        self.rollout_ids: dict[int, int] = {}

    def draw_from_store(self, tx: Transaction, draw: batches.Draw) -> batches.Batch | None:
        return draws.draw_groups(tx, draw, self.max_staleness, centered)

    def draw_from_model(self, draw: batches.Draw) -> Batch | None:
        return self.model.draw(draw.worker_id, draw.step, draw.batch_size)

    # Explorers

    @precondition(lambda self: self._can_claim())
    @rule(explorer=WHICH, limit=st.integers(1, 3), is_fresh=st.booleans(), heard=HEARD)
    def claim(self, explorer: int, limit: int, is_fresh: bool, heard: bool) -> None:
        claims = self._claim(pick(self.explorers, explorer), limit, is_fresh)
        if heard:
            self.claims += claims

    @precondition(lambda self: self._held_claims())
    @rule(which=WHICH, members=MEMBERS, spans=st.booleans())
    def write(self, which: int, members: list[str], spans: bool) -> None:
        self._write(pick(self._held_claims(), which), members, spans)

    @precondition(lambda self: self._lost_claims())
    @rule(which=WHICH, members=MEMBERS)
    def write_late(self, which: int, members: list[str]) -> None:
        self._write(pick(self._lost_claims(), which), members, spans=False)

    @precondition(lambda self: self.written)
    @rule(which=WHICH)
    def write_again(self, which: int) -> None:
        self._send(*pick(self.written, which))

    @precondition(lambda self: self._can_claim())
    @rule(explorer=WHICH, members=MEMBERS)
    def explore(self, explorer: int, members: list[str]) -> None:
        """As many groups as the pace allows, and of each some members."""
        self.claims += (claims := self._claim(pick(self.explorers, explorer), 3, is_fresh=True))
        for claim in claims:
            self._write(claim, members, spans=False)

    # Processors

    @precondition(lambda self: self.model.unprocessed())
    @rule(processor=WHICH, stage=STAGES, limit=st.integers(1, 4), heard=HEARD)
    def claim_rows(self, processor: int, stage: processing.Stage, limit: int, heard: bool) -> None:
        work = self._claim_rows(pick(self.processors, processor), stage, limit)
        if heard and work.rows:
            self.works.append(work)

    @precondition(lambda self: any(not work.is_done for work in self.works))
    @rule(which=WHICH, judgements=JUDGEMENTS)
    def finish(self, which: int, judgements: list[tuple[Outcome, float]]) -> None:
        self._finish(pick([work for work in self.works if not work.is_done], which), judgements)

    @precondition(lambda self: any(work.is_done for work in self.works))
    @rule(which=WHICH, judgements=JUDGEMENTS)
    def finish_again(self, which: int, judgements: list[tuple[Outcome, float]]) -> None:
        self._finish(pick([work for work in self.works if work.is_done], which), judgements)

    @precondition(lambda self: self.model.groups_in("complete"))
    @rule()
    def settle(self) -> None:
        settled = self.perform(
            lambda tx: finish_groups.settle_groups(
                tx,
                self.scene.run.id,
                Rules(
                    self.min_group_size,
                    drop_equal_rewards=self.drop_equal_rewards,
                    solved_reward=self.solved_reward,
                ),
                limit=1000,
            )
        )
        assert settled == self.model.settle(self.min_group_size, self.drop_equal_rewards, self.solved_reward)

    @precondition(lambda self: self.model.groups_in("complete") or self.model.unprocessed())
    @rule(processor=WHICH, num_stages=st.sampled_from([1, 2, 2]), values=SCORES)
    def process(self, processor: int, num_stages: int, values: list[float]) -> None:
        """A good day: all rows, then whole groups."""
        for stage in (processing.CLEAN, processing.SCORE)[:num_stages]:
            work = self._claim_rows(pick(self.processors, processor), stage, limit=100)
            self._finish(work, [(Outcome.PASSED, value) for value in values])
        self.settle()

    @precondition(lambda self: self.model.rows)
    @rule(
        which=WHICH,
        name=st.sampled_from(["score", "helpful"]),
        value=VALUES,
        weight=st.sampled_from([1.0, 0.5, -1.0]),
    )
    def record_reward(self, which: int, name: str, value: float, weight: float) -> None:
        """A person judges a row, in any state."""
        row = pick(list(self.model.rows.values()), which)
        event = reward(self.rollout_ids[row.id], value, name, weight)
        self.perform(lambda tx: rewards.record(tx, self.scene.run.id, "human", [event]))
        self.model.reward(row, name, value * weight, self.solved_reward)

    @rule(explorer=WHICH, processor=WHICH, values=SCORES)
    def work_undisturbed(self, explorer: int, processor: int, values: list[float]) -> None:
        """A good day of all roles, to get somewhere."""
        self.explore(explorer, ["finish"] * 3)
        self.process(processor, 2, values)
        self.train()

    # Workers

    @precondition(lambda self: self._holders())
    @rule(which=WHICH, is_silent=st.booleans())
    def lose(self, which: int, is_silent: bool) -> None:
        self._lose(pick(self._holders(), which), is_silent)

    @precondition(lambda self: self._can_claim())
    @rule(explorer=WHICH, members=MEMBERS, is_silent=st.booleans())
    def lose_explorer(self, explorer: int, members: list[str], is_silent: bool) -> None:
        """It claims, writes some, and is given up."""
        worker = pick(self.explorers, explorer)
        self.claims += (claims := self._claim(worker, 2, is_fresh=True))
        for claim in claims[:1]:
            self._write(claim, members, spans=False)
        self._lose(worker, is_silent)
        self.rescue()

    @precondition(lambda self: self.model.unprocessed())
    @rule(processor=WHICH, stage=STAGES, is_silent=st.booleans())
    def lose_processor(self, processor: int, stage: processing.Stage, is_silent: bool) -> None:
        """It claims, and is given up."""
        worker = pick(self.processors, processor)
        self.works.append(self._claim_rows(worker, stage, limit=4))
        self._lose(worker, is_silent)
        self.rescue()

    @precondition(lambda self: self.gone.intersection([*self.explorers, *self.processors]))
    @rule(which=WHICH)
    def wake_up(self, which: int) -> None:
        worker = pick([w for w in (*self.explorers, *self.processors) if w in self.gone], which)
        self.perform(lambda tx: workers.beat(tx, worker, LEASE_SECONDS))
        self.gone.remove(worker)

    @precondition(lambda self: self.gone.intersection(self.model.holders()))
    @rule()
    def rescue(self) -> None:
        released = self.perform(lambda tx: workers.release_leases(tx, self.scene.run.id, LEASE_SECONDS))
        assert (released.experiences, released.groups) == self.model.release(self.gone)
        holders = self.scene.values(
            "SELECT worker_id FROM trinity.experience WHERE run_id = %s AND state <> 'leased'"
            " UNION SELECT worker_id FROM trinity.rollout_group WHERE run_id = %s AND state <> 'leased'",
            self.scene.run.id,
            self.scene.run.id,
        )
        assert not self.gone.intersection(holders)

    @precondition(lambda self: self._holders())
    @rule(which=WHICH, stage=STAGES)
    def lose_track(self, which: int, stage: processing.Stage) -> None:
        """A worker that missed an answer gives back what it holds, and claims again, maybe the same."""
        worker = pick(self._holders(), which)
        released = self.perform(lambda tx: workers.release_own(tx, worker))
        assert (released.experiences, released.groups) == self.model.release({worker})
        if worker in self.explorers:
            self.claims += self._claim(worker, 3, is_fresh=True)
        else:
            self.works.append(self._claim_rows(worker, stage, limit=4))

    def _lose(self, worker: int, is_silent: bool) -> None:
        """It is not heard of any more, or ends and is replaced; what it has in hand may arrive yet."""
        self.gone.add(worker)
        if is_silent:
            aged = "UPDATE trinity.worker SET heartbeat_at = now() - interval '1 day' WHERE id = %s"
            self.perform(lambda tx: tx.execute(aged, [worker]))
            return
        self.perform(lambda tx: workers.stop(tx, worker))
        role = WorkerRole.EXPLORE if worker in self.explorers else WorkerRole.PROCESS
        team = self.explorers if worker in self.explorers else self.processors
        team[team.index(worker)] = new = self.scene.new_worker(role)
        self.loaded[new] = 0

    def _holders(self) -> list[int]:
        """Workers that hold something."""
        holders = self.model.holders()
        return [worker for worker in (*self.explorers, *self.processors) if worker in holders]

    def _can_claim(self) -> bool:
        return self.model.ahead(self.model.with_checkpoint()[0]) < self.model.max_ahead or any(
            group.holder is None for group in self.model.groups_in("open")
        )

    def _claim(self, worker: int, limit: int, is_fresh: bool) -> list[Claim]:
        if is_fresh:
            self.loaded[worker] = self.model.with_checkpoint()[0]
        version = self.loaded[worker]
        plan = groups.GroupPlan(self.pace, self.scene.selection, self.model.group_size)
        claimed = self.perform(lambda tx: groups.claim(tx, self.scene.run.id, worker, plan, version, limit))
        taken, tasks = self.model.claim(worker, version, limit)
        assert {group.id: group.members for group in claimed[: len(taken)]} == taken
        for group, task in zip(claimed[len(taken) :], tasks, strict=True):
            self.model.start(group.id, task, worker)
        assert not tasks or self.model.ahead(version) <= self.model.max_ahead
        return [Claim(worker, version, group) for group in claimed]

    def _held_claims(self) -> list[Claim]:
        return [claim for claim in self.claims if self.model.holds(claim.worker, claim.group)]

    def _lost_claims(self) -> list[Claim]:
        lost = (claim for claim in self.claims if not self.model.holds(claim.worker, claim.group))
        return [claim for claim in lost if self._unwritten(claim)]

    def _unwritten(self, claim: Claim) -> list[int]:
        group = claim.group
        return [n for n in group.members if (group.id, n, group.attempt) not in self.model.rollouts]

    def _write(self, claim: Claim, members: Sequence[str], spans: bool) -> None:
        versions = (claim.version, self.model.with_checkpoint()[0] if spans else claim.version)
        rollouts = []
        for member in self._unwritten(claim):
            if members[member] != "skip":
                error = "no answer" if members[member] == "fail" else None
                response = f"{len(self.written)}th write, member {member}"
                rollouts.append(rollout(claim.group, member, response, versions, error))
        self.written.append((claim.worker, rollouts))
        self._send(claim.worker, rollouts)

    def _send(self, worker: int, rollouts: list[groups.Rollout]) -> None:
        refused = self.perform(
            lambda tx: groups.write_rollouts(tx, self.scene.run.id, worker, rollouts).refused
        )
        found: dict[Name, int | None] = {}
        for group, member, attempt, rollout_id, row_id in self.scene.rows(
            "SELECT m.group_id, m.ordinal, m.attempt, m.id, e.id"
            " FROM trinity.rollout m LEFT JOIN trinity.experience e ON e.rollout_id = m.id"
            " WHERE m.group_id = ANY(%s)",
            [r.group.id for r in rollouts],
        ):
            found[group, member, attempt] = row_id
            self.rollout_ids[row_id] = rollout_id
        assert refused == self.model.write(worker, rollouts, found)

    def _claim_rows(self, worker: int, stage: processing.Stage, limit: int) -> Work:
        claimed = self.perform(
            lambda tx: processing.claim(tx, stage, self.scene.run.id, worker, limit, MAX_ATTEMPTS)
        )
        found = [(row["id"], row["attempt"]) for row in claimed]
        assert found == self.model.claim_rows(stage, worker, limit, MAX_ATTEMPTS)
        return Work(worker, stage, found)

    def _finish(self, work: Work, judgements: Sequence[tuple[Outcome, float]]) -> None:
        verdicts, values = [], {}
        for (row_id, attempt), (outcome, value) in zip(work.rows, cycle(judgements), strict=False):
            detail = {"error": "broken"} if outcome == Outcome.FAILED else None
            reason = None if outcome == Outcome.PASSED else "unfit"
            events = []
            if work.stage is processing.SCORE and outcome == Outcome.PASSED:
                events, values[row_id] = [reward(self.rollout_ids[row_id], value)], value
            step = None if outcome == Outcome.PASSED else "strict"
            verdicts.append(
                processing.StepVerdict(row_id, attempt, outcome, reason, detail, events, step=step)
            )
        held = self.perform(
            lambda tx: processing.finish(
                tx, work.stage, self.scene.run.id, work.worker, verdicts, MAX_ATTEMPTS
            )
        )
        assert held == self.model.finish(work.stage, work.worker, verdicts, MAX_ATTEMPTS)
        for row_id in held & values.keys():
            self.model.rows[row_id].parts["score"] = values[row_id]
        work.is_done = True


@pytest.mark.timeout(600 * TIMES)  # of a failure the shortest form is looked for, for five minutes
def test_an_online_run_equals_the_model(shared_database: Database) -> None:
    assert_no_failures(OnlineRun, shared_database, examples=80, steps=40)
