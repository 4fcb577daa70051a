"""Rows for tests, made by the store's own verbs: a run with tasks, policy versions and written rollouts.

A Scene plays all roles in turn, each as a worker of its own; what a test is about it does itself. A rollout's
response is its reward, written out, so that scoring needs no function.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from psycopg.rows import DictRow, tuple_row

from tests.support.postgres import new_database
from trinity_db.arrays.codec import Payload
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Demonstration, Preference, Task, Trajectory, Unpaired
from trinity_db.postgres.connection import Database, Transaction, connect
from trinity_db.schema.states import Draws, WorkerRole
from trinity_db.store import (
    adoption,
    batches,
    draws,
    evaluations,
    finish_groups,
    groups,
    offline,
    policies,
    processing,
    rewards,
    runs,
    samplers,
    workers,
)
from trinity_db.store.metrics import record_metrics
from trinity_db.store.selection import TaskSelection
from trinity_db.trainer.recipes.recipes import RECIPES

Result = TypeVar("Result")

WAIT_SECONDS = 30.0
UNLIMITED = groups.Pace(max_staleness=None, per_version=1)


@dataclass(frozen=True)
class Scene:
    """A run with its workers, one of each role."""

    database: Database
    run: runs.Run
    selection: TaskSelection
    explorer: int
    processor: int
    trainer: int

    @classmethod
    def open(
        cls,
        database: Database,
        name: str = "run",
        num_tasks: int = 8,
        data: Sequence[str] = (),
        holdout: float = 0.0,
        seed: int = 0,
        algorithm: str = "sft",
        as_groups: bool = False,
    ) -> Self:
        """A run at policy version 0, over a taskset and the data sets that are named; it may derive pairs.

        With `as_groups` it adopts whole groups, also those of other runs.
        """
        config = {"name": name, "seed": seed, "processors": {"pair": {"margin": 0.0}}}
        config |= {"algorithm": {"name": algorithm}}
        open_writer(database, "tasks", "tasks")([task(number) for number in range(num_tasks)])
        with database.transaction() as tx:
            run = runs.open_run(
                tx,
                name,
                config,
                RECIPES[algorithm].draws,
                adoption.Sources(data, holdout, as_groups=as_groups),
            )
            selection = TaskSelection({runs.find_taskset(tx, "tasks"): 1.0}, seed=0, walk="sequential")
            roles = [workers.register(tx, run, role) for role in WorkerRole]
        hold = partial(runs.hold_adopter, run=run)
        adoption.adopt_runs(database, run.id, hold, adoption.Sources(data, holdout, as_groups=as_groups))
        scene = cls(database, run, selection, *roles)
        scene.publish(0, step=0)
        return scene

    def beside(self, name: str, config: Mapping[str, Any] | None = None, data: Sequence[str] = ()) -> Self:
        """The same tasks with another run, which has workers and no policy version yet."""
        with self.database.transaction() as tx:
            run = runs.open_run(tx, name, dict(config or {}), "groups", adoption.Sources(data))
            explorer, processor, trainer = (workers.register(tx, run, role) for role in WorkerRole)
        return replace(self, run=run, explorer=explorer, processor=processor, trainer=trainer)

    def record(self, step: int, values: Mapping[str, float], role: WorkerRole = WorkerRole.TRAIN) -> None:
        """Metrics, as a role measures them."""
        with self.database.transaction() as tx:
            record_metrics(tx, self.run.id, role, step, values)

    def new_worker(self, role: WorkerRole) -> int:
        with self.database.transaction() as tx:
            return workers.register(tx, self.run, role)

    def lose(self, worker_id: int) -> workers.Released:
        """The worker ends, and what it held is given back."""
        with self.database.transaction() as tx:
            workers.stop(tx, worker_id)
            return workers.release_leases(tx, self.run.id, lease_seconds=30)

    def publish(
        self, version: int, step: int, worker: int | None = None, *, with_checkpoint: bool = True
    ) -> None:
        policy = policies.PolicyVersion(version, step, Path(f"version-{version}"), f"hash {version}")
        with self.database.transaction() as tx:
            policies.publish(tx, self.run.id, policy, worker or self.trainer)
            if version and with_checkpoint:
                saved = policies.Checkpoint(Path(f"checkpoint-{version}"), f"hash of checkpoint {version}")
                policies.record_checkpoint(tx, self.run.id, version, saved)

    def claim(
        self,
        limit: int,
        *,
        group_size: int = 2,
        version: int = 0,
        pace: groups.Pace = UNLIMITED,
        worker: int | None = None,
        selection: TaskSelection | None = None,
        greedy: bool = False,
        spare: int = 0,
    ) -> list[groups.ClaimedGroup]:
        plan = groups.GroupPlan(pace, selection or self.selection, group_size, greedy, spare)
        with self.database.transaction() as tx:
            return groups.claim(tx, self.run.id, worker or self.explorer, plan, version, limit)

    def write(self, rollouts: Sequence[groups.Rollout], worker: int | None = None) -> int:
        with self.database.transaction() as tx:
            return groups.write_rollouts(tx, self.run.id, worker or self.explorer, rollouts).refused

    def explore(
        self, num_groups: int, rewards: Sequence[float] = (1.0, 0.0), version: int = 0
    ) -> list[groups.ClaimedGroup]:
        """New groups, all of their members written; the member with ordinal i will get the i-th reward."""
        claimed = self.claim(num_groups, group_size=len(rewards), version=version)
        self.write(
            [
                rollout(group, member, str(rewards[member]), (version, version))
                for group in claimed
                for member in group.members
            ]
        )
        return claimed

    def evaluate(self, num_groups: int, version: int = 0, rewards: Sequence[float] = (1.0, 0.0)) -> int:
        """An evaluation over the tasks, so many of its groups explored and scored; its id."""
        with self.database.transaction() as tx:
            tasks = runs.find_taskset(tx, "tasks")
            settings = evaluations.Settings(tasks, len(rewards), temperature=0.5, max_new_tokens=4)
            begun = evaluations.begin(tx, self.run.id, version, settings)
            assert begun is not None
            claimed = evaluations.claim(tx, self.explorer, begun, num_groups)
        self.write(
            [
                rollout(group, member, str(rewards[member]), (version, version))
                for group in claimed
                for member in group.members
            ]
        )
        self.judge(processing.SCORE)
        return begun

    def judge(self, stage: processing.Stage, limit: int = 1000) -> list[int]:
        """Claim rows for a stage and pass them all; returns their ids. The score is the response."""
        with self.database.transaction() as tx:
            reading = replace(stage, columns=("response", "last_step"))
            claimed = processing.claim(tx, reading, self.run.id, self.processor, limit)
        with self.database.transaction() as tx:
            verdicts = [
                processing.StepVerdict(
                    row["id"], row["attempt"], events=self._score(row) if stage is processing.SCORE else ()
                )
                for row in claimed
            ]
            processing.finish(tx, stage, self.run.id, self.processor, verdicts, max_attempts=3)
        return [row["id"] for row in claimed]

    def settle(
        self,
        min_group_size: int = 2,
        requires_reward: str | None = None,
        drop_equal_rewards: bool = False,
        solved_reward: float = 1.0,
        keep: str = "all",
    ) -> int:
        with self.database.transaction() as tx:
            rules = finish_groups.Rules(
                min_group_size, drop_equal_rewards, keep, solved_reward, requires_reward
            )
            return finish_groups.settle_groups(tx, self.run.id, rules, 1000)

    def process(self) -> None:
        """Clean, score and settle all there is."""
        self.judge(processing.CLEAN)
        self.judge(processing.SCORE)
        self.settle()

    def make_ready(
        self, num_groups: int, rewards: Sequence[float] = (1.0, 0.0), version: int = 0
    ) -> list[int]:
        """New groups, explored, cleaned, scored and ready; their ids."""
        claimed = self.explore(num_groups, rewards, version)
        self.process()
        return [group.id for group in claimed]

    def draw(
        self,
        step: int,
        size: int,
        *,
        max_staleness: int | None = None,
        worker: int | None = None,
        sampler: samplers.Picks = samplers.FIFO,
        max_uses: int = 1,
        experts: int = 0,
        versions_ahead: int = 0,
    ) -> batches.Batch | None:
        """Whole groups for a trainer step, and adopted rows beside them."""
        draw = replace(self._draw(step, size, worker, max_uses, experts), versions_ahead=versions_ahead)
        with self.database.transaction() as tx:
            return draws.draw_groups(tx, draw, max_staleness, centered, sampler)

    def draw_rows(self, step: int, size: int) -> batches.Batch | None:
        with self.database.transaction() as tx:
            return draws.draw_rows(tx, self._draw(step, size))

    def draw_adopted_groups(self, step: int, size: int) -> batches.Batch | None:
        with self.database.transaction() as tx:
            return draws.draw_adopted_groups(tx, self._draw(step, size), centered)

    def draw_pairs(self, step: int, size: int) -> batches.Batch | None:
        with self.database.transaction() as tx:
            return draws.draw_pairs(tx, self._draw(step, size))

    def pair(self, margin: float = 0.0) -> int:
        """Derive preferences until no group is left to look at; how many are new."""
        made = 0
        with self.database.transaction() as tx:
            while (found := processing.pair_groups(tx, self.run.id, margin, limit=10)) is not None:
                made += found
        return made

    @property
    def _draws(self) -> Draws:
        found: Draws = self.value("SELECT draws FROM trinity.run WHERE id = %s", self.run.id)
        return found

    def adopt_again(self, *data: str) -> None:
        """As another role does that joins the run."""
        with self.database.transaction() as tx:
            runs.open_run(tx, self.run.name, self.run.config, self._draws, adoption.Sources(data))

    def commit(self, batch: batches.Batch | None, *, worker: int | None = None, max_uses: int = 1) -> bool:
        assert batch is not None
        with self.database.transaction() as tx:
            return batches.commit(tx, batch, worker or self.trainer, max_uses)

    def train(self, step: int, size: int) -> batches.Batch:
        """One whole trainer step."""
        batch = self.draw(step, size)
        assert batch is not None
        self.commit(batch)
        return batch

    def reopen(self, version: int, worker: int | None = None) -> int:
        with self.database.transaction() as tx:
            return batches.reopen(tx, self.run.id, worker or self.trainer, version)

    def encode(self) -> None:
        """Give every adopted row tokens; groups whose rows all have tokens enter the passes."""
        with self.database.transaction() as tx:
            texts = offline.unencoded(tx, self.run.id, after=0, limit=10_000)
            written = payload(())
            offline.write_tokens(tx, [(text.id, written) for text in texts])
        offline.seed_groups(self.database, self.run.id, min_size=1)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a statement returns, as tuples."""
        with self.database.transaction() as tx:
            return tx.cursor(row_factory=tuple_row).execute(statement, values or None).fetchall()

    def value(self, statement: str, *values: Any) -> Any:
        """The one value that a statement returns."""
        [(value,)] = self.rows(statement, *values)
        return value

    def values(self, statement: str, *values: Any) -> list[Any]:
        """The one column that a statement returns."""
        return [value for (value,) in self.rows(statement, *values)]

    def _score(self, row: DictRow) -> list[rewards.RewardEvent]:
        value = float(row["response"])
        if row["last_step"]:
            return [rewards.RewardEvent(None, "score", value, experience_id=row["id"])]
        return [reward(row["rollout_id"], value)]

    def _draw(
        self, step: int, size: int, worker: int | None = None, max_uses: int = 1, experts: int = 0
    ) -> batches.Draw:
        return batches.Draw(self.run.id, worker or self.trainer, step, size, self.run.seed, max_uses, experts)


def task(number: int) -> Task:
    return Task({"prompt": f"task {number}", "answer": str(number)})


def demonstration(number: int) -> Demonstration:
    return Demonstration(task(number), f"response {number}", {})


def trajectory(number: int, response: str, reward: float | None = None) -> Trajectory:
    return Trajectory(task(number), response, reward, None, {})


def preference(number: int) -> Preference:
    return Preference(task(number), "good", "bad", None, {})


def labelled(number: int, label: bool) -> Unpaired:
    return Unpaired(task(number), "good" if label else "bad", label, {})


def import_records(database: Database, name: str, records: Sequence[Any]) -> int:
    """Write records, all of one kind, into a data set; returns how many were new."""
    kinds: dict[type, Any] = {
        Demonstration: "demonstrations",
        Trajectory: "trajectories",
        Preference: "preferences",
        Unpaired: "preferences",
    }
    return open_writer(database, kinds[type(records[0])], name)(records)


def payload(versions: Sequence[int]) -> Payload:
    """Three tokens of a prompt, then one trained token for each version; none: two that no policy sampled."""
    num_trained = len(versions) or 2
    token_ids = np.arange(3 + num_trained, dtype=np.int32)
    if not versions:
        return Payload(token_ids, token_ids >= 3)
    logprobs = np.linspace(-1.0, -0.5, num_trained, dtype=np.float32)
    return Payload(token_ids, token_ids >= 3, logprobs, np.array(versions, np.int32))


def rollout(
    group: groups.ClaimedGroup,
    member: int,
    response: str = "1",
    versions: Sequence[int] = (0, 0),
    error: str | None = None,
) -> groups.Rollout:
    """A finished rollout, or with an error a failed one."""
    now = datetime.now(UTC)
    if error is not None:
        return groups.Rollout(group, member, now, now, error=error)
    step = groups.Step("prompt", response, payload(versions))
    return groups.Rollout(group, member, now, now, "stop", steps=[step])


def with_step(rollout: groups.Rollout, **changes: Any) -> groups.Rollout:
    """A rollout of one step, with changes of the step."""
    [step] = rollout.steps
    return replace(rollout, steps=[replace(step, **changes)])


def attempt(
    group: groups.ClaimedGroup,
    member: int,
    responses: Sequence[str],
    states: Sequence[str | None] = (),
    rewards: Sequence[groups.Reward] = (),
    version: int = 0,
) -> groups.Rollout:
    """A finished rollout of several steps; its prompts are "prompt 0", "prompt 1", ..."""
    now, nothing = datetime.now(UTC), [None] * len(responses)
    steps = [
        groups.Step(f"prompt {number}", response, payload((version,) * (number + 1)), reward, state)
        for number, (response, reward, state) in enumerate(
            zip(responses, rewards or nothing, states or nothing, strict=True)
        )
    ]
    return groups.Rollout(group, member, now, now, "stop", steps=steps)


def members(group: groups.ClaimedGroup, response: str = "1") -> list[groups.Rollout]:
    """A rollout for every missing member of a group."""
    return [rollout(group, member, response) for member in group.members]


def reward(rollout_id: int, value: float, name: str = "score", weight: float = 1.0) -> rewards.RewardEvent:
    return rewards.RewardEvent(rollout_id, name, value, weight)


def centered(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Rewards less their group's mean: an advantage that can be computed by hand."""
    rewards, groups = columns["rewards"], columns["groups"]
    return np.array([value - rewards[groups == of].mean() for value, of in zip(rewards, groups, strict=True)])


def claim_rows(
    scene: Scene, stage: processing.Stage = processing.CLEAN, limit: int = 100, worker: int | None = None
) -> list[int]:
    """The ids of rows that are claimed, oldest first."""
    with scene.database.transaction() as tx:
        return [
            row["id"] for row in processing.claim(tx, stage, scene.run.id, worker or scene.processor, limit)
        ]


def finish_rows(
    scene: Scene,
    verdicts: list[processing.StepVerdict],
    stage: processing.Stage = processing.CLEAN,
    worker: int | None = None,
    max_attempts: int = 3,
) -> set[int]:
    """The ids of rows that were still the worker's when it gave its verdicts."""
    with scene.database.transaction() as tx:
        return processing.finish(tx, stage, scene.run.id, worker or scene.processor, verdicts, max_attempts)


@contextmanager
def copy_of(scene: Scene, server: str) -> Iterator[Scene]:
    """A scene's run in a copy of the store that stands beside it."""
    scene.database.close()
    with (
        new_database(server, urlsplit(scene.database.url).path.strip("/")) as url,
        closing(Database(url)) as database,
    ):
        yield replace(scene, database=database)


@contextmanager
def rolled_back(database: Database) -> Iterator[Transaction]:
    """A transaction that is undone at the end, as by a crash."""
    with database.transaction() as tx, tx.transaction(force_rollback=True):
        yield tx


def at_once(database: Database, verbs: Iterable[Callable[[Transaction], Result]]) -> list[Result]:
    """Each verb in a transaction and a thread of its own, all begun at the same moment."""
    verbs = list(verbs)
    barrier = Barrier(len(verbs), timeout=WAIT_SECONDS)

    def perform(verb: Callable[[Transaction], Result]) -> Result:
        with database.transaction() as tx:
            barrier.wait()
            return verb(tx)

    futures = [in_a_thread(database, partial(perform, verb)) for verb in verbs]
    return [future.result(WAIT_SECONDS) for future in futures]


def in_a_thread(database: Database, call: Callable[[], Result]) -> Future[Result]:
    """Begin a call in a thread of its own, which closes its connection at the end."""
    future: Future[Result] = Future()

    def perform() -> None:
        try:
            result = call()
        except BaseException as error:
            database.close()
            future.set_exception(error)
        else:
            database.close()
            future.set_result(result)

    Thread(target=perform, daemon=True).start()
    return future


def wait_until_blocked(database: Database, call: Future[Any]) -> None:
    """Return as soon as a session of this database, that of a call, waits for a lock."""
    blocked = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock') AS is_so"
    )
    deadline = time.monotonic() + WAIT_SECONDS
    with closing(connect(database.url, autocommit=True)) as observer:
        while observer.execute(blocked).fetchone() != {"is_so": True}:
            assert not call.done(), "it waited for no lock"
            assert time.monotonic() < deadline, "no session waits for a lock"
