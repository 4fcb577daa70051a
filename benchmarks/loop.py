"""The whole loop without model work: rollouts per second from the first claim to the last commit.

An explorer, a processor and a trainer, each a process, do what the services do to the store, through its own
verbs: claim and write groups, clean, score and settle those just judged, draw, read, commit and publish.
Agent-lightning's scenario with fewer rollouts: 256 in flight, batches of 1,024. Lost and doubled rollouts are
counted at the end.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from psycopg.rows import DictRow

from benchmarks import data, peer
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, figure
from benchmarks.processes import at_once, elapsed
from benchmarks.scene import Scene, rollouts
from benchmarks.server import Server
from trinity_db.database import Database
from trinity_db.processors import lists
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.scan_position import ScanPosition
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import batches, draws, groups, policies, processing, rewards, runs, settling
from trinity_db.store.attempts import Advantage
from trinity_db.store.settling import Rules

MEASURE = "loop"
STAGES = lists.stages(lists.load(ProcessorsConfig()))
BATCH = 1024  # rollouts
BATCHES = 12  # 12,288 rollouts; all 50,000 would take ten minutes
IN_FLIGHT = 256  # rollouts, and rows of one claim of a processor
VARIANT = f"{IN_FLIGHT} in flight, batches of {BATCH:,}"
PUBLISHED = Bar(57)  # rollouts/s: agent-lightning's best, on 32 cores
IDLE_SECONDS = 0.002  # between two looks, in place of the services' notifications

COUNTS = """
SELECT (SELECT count(*) FROM trinity.rollout WHERE state = 'finished') AS finished,
       count(*) AS trained, count(DISTINCT i.experience_id) AS distinct_trained
FROM trinity.batch b JOIN trinity.batch_item i ON i.batch_id = b.id WHERE b.state = 'committed'
"""


@dataclass(frozen=True)
class _Part:
    """The work of one process of the loop."""

    scene: Scene
    role: WorkerRole
    num_batches: int


def run(context: Context) -> list[Result]:
    """Ours with its losses, beside the published record; then agent-lightning where it can do it."""
    num_batches = max(1, context.rows(BATCHES * BATCH) // BATCH)
    rates, lost, doubled = [], [], []
    with context.server() as server:
        for repetition in range(context.repetitions):
            context.say(f"{VARIANT}: {OURS}, {repetition + 1} of {context.repetitions}")
            rate, finished, trained, distinct = _once(server, num_batches)
            rates.append(rate)
            lost.append(float(num_batches * BATCH - distinct))
            doubled.append(float(trained - distinct + finished - num_batches * BATCH))
        found = [
            figure(MEASURE, OURS, VARIANT, "rows/s", rates, PUBLISHED),
            figure(MEASURE, OURS, VARIANT, "duplicates", doubled, Bar(0, at_most=True)),
            figure(MEASURE, OURS, VARIANT, "lost", lost, Bar(0, at_most=True)),
        ]
        asked = {
            "operation": MEASURE,
            "rows": num_batches * BATCH,
            "runners": IN_FLIGHT,
            "turns": 4,
            "size": BATCH,
        }
        answer = peer.ask(context, "agent_lightning", asked)
    return found + peer.compared(MEASURE, VARIANT, answer, rates)


def _once(server: Server, num_batches: int) -> tuple[float, int, int, int]:
    """Rollouts per second; how many were finished, trained on in all, and trained on at all."""
    scene = Scene.open(server.new_store())
    server.settle()
    roles = (WorkerRole.EXPLORE, WorkerRole.PROCESS, WorkerRole.TRAIN)
    seconds = elapsed(at_once(_prepare, [_Part(scene, role, num_batches) for role in roles]))
    with closing(Database(scene.url)) as database, database.transaction() as tx:
        counts = tx.execute(COUNTS).fetchone()
    assert counts is not None
    return num_batches * BATCH / seconds, counts["finished"], counts["trained"], counts["distinct_trained"]


def _prepare(part: _Part) -> Callable[[], None]:
    """The role's process: it has its worker, and the explorer its payloads."""
    database = Database(part.scene.url, LEASE_SECONDS)  # as a role connects
    worker_id = part.scene.new_worker(database, part.role)
    if part.role is WorkerRole.EXPLORE:
        members = list(data.groups(part.num_batches * BATCH // data.GROUP_SIZE))
        return partial(_explore, part.scene, database, worker_id, members)
    if part.role is WorkerRole.PROCESS:
        return _Processor(part.scene, database, worker_id).work
    from trinity_db.trainer.parts import kinds

    advantage = kinds.part("advantage", kinds.chosen("advantage", "group"))
    return partial(_train, part.scene, database, worker_id, part.num_batches, advantage)


def _explore(scene: Scene, database: Database, worker_id: int, members: list[list[data.Experience]]) -> None:
    in_flight = IN_FLIGHT // data.GROUP_SIZE
    for start in range(0, len(members), in_flight):
        prepared = members[start : start + in_flight]
        claimed = scene.claim(database, worker_id, len(prepared))
        for group, attempts in zip(claimed, prepared, strict=True):
            with database.transaction() as tx:
                groups.write_rollouts(tx, scene.run_id, worker_id, rollouts(group, attempts))


@dataclass
class _Processor:
    """The way of `trinity_db.processors.service`, with verdicts that cost nothing."""

    scene: Scene
    database: Database
    worker_id: int
    positions: dict[str, ScanPosition] = field(default_factory=lambda: defaultdict(ScanPosition))

    def work(self) -> None:
        """Clean, score and settle until the run is finished."""
        while True:
            judged = {group for stage in STAGES for group in self._judge(stage)}
            with self.database.transaction() as tx:
                if judged:
                    settling.settle_groups(tx, self.scene.run_id, Rules(2), IN_FLIGHT, judged)
                elif runs.is_finished(tx, self.scene.run_id):
                    return
            if not judged:
                time.sleep(IDLE_SECONDS)

    def _judge(self, stage: processing.Stage) -> set[int]:
        """Judge some rows; their groups."""
        claimed = self.positions[stage.processor].look(partial(self._claim, stage))
        is_score = stage.processor == "score"
        verdicts = [
            processing.Verdict(
                row["id"], row["attempt"], events=_events(row["rollout_id"]) if is_score else ()
            )
            for row in claimed
        ]
        if verdicts:
            with self.database.transaction() as tx:
                processing.finish(tx, stage, self.scene.run_id, self.worker_id, verdicts, max_attempts=3)
        return {row["group_id"] for row in claimed}

    def _claim(self, stage: processing.Stage, after: int) -> list[DictRow]:
        with self.database.transaction() as tx:
            return processing.claim(tx, stage, self.scene.run_id, self.worker_id, IN_FLIGHT, 3, after)


def _events(rollout_id: int) -> tuple[rewards.RewardEvent, ...]:
    return (rewards.RewardEvent(rollout_id, "score", float(rollout_id % 2), 1.0),)


def _train(scene: Scene, database: Database, worker_id: int, num_batches: int, advantage: Advantage) -> None:
    for step in range(1, num_batches + 1):
        draw = batches.Draw(scene.run_id, worker_id, step, BATCH // data.GROUP_SIZE, seed=0)
        while (batch := _draw(database, draw, advantage)) is None:
            time.sleep(IDLE_SECONDS)
        with database.transaction() as tx:
            batches.commit(tx, batch, worker_id, max_uses=1)
        with database.transaction() as tx:
            version = policies.PolicyVersion(step, step, Path(f"version-{step}"), "hash")
            policies.publish(tx, scene.run_id, version, worker_id)
    with database.transaction() as tx:
        runs.finish(tx, scene.run_id)


def _draw(database: Database, draw: batches.Draw, advantage: Advantage) -> batches.Batch | None:
    with database.transaction() as tx:
        batch = draws.draw_groups(tx, draw, None, advantage)
    if batch is not None:
        batches.read(database, batch.id)
    return batch
