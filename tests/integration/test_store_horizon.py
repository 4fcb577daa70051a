"""The flow with an old transaction that keeps everything that died since, and with many claimers at once."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from statistics import median

import psycopg

from tests.support.rows import WAIT_SECONDS, Scene, in_a_thread, reward, rollout
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import finish_groups, processing
from trinity_db.store.finish_groups import Rules
from trinity_db.store.processing import CLEAN, SCORE, Stage, StepVerdict

ROUNDS = 30
GROUP_SIZE = 8
SIZE = 4  # groups a round
# Of all tables with their indexes, so far; those of this session are counted when its transaction ends.
PAGES = """
SELECT sum(coalesce(heap_blks_read, 0) + coalesce(heap_blks_hit, 0) + coalesce(idx_blks_read, 0)
           + coalesce(idx_blks_hit, 0))::bigint
FROM pg_statio_user_tables WHERE schemaname = 'trinity'
"""

# What autovacuum touches meanwhile would count as well.
ONLY_OURS = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'trinity' LOOP
        EXECUTE format('ALTER TABLE trinity.%I SET (autovacuum_enabled = off)', name);
    END LOOP;
END $$
"""


class Flow:
    """All roles in turn, and the pages that each of their verbs touched, round by round."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.pages: dict[str, list[int]] = {}
        self.after = {CLEAN.processor: 0, SCORE.processor: 0}

    def round(self, step: int) -> None:
        scene = self.scene
        with self.counted("start groups"):
            claimed = scene.claim(SIZE, group_size=GROUP_SIZE)
        with self.counted("write"):
            scene.write([rollout(group, member) for group in claimed for member in group.members])
        self.judge(CLEAN)
        self.judge(SCORE)
        ids = [group.id for group in claimed]
        with self.counted("settle"), scene.database.transaction() as tx:
            assert finish_groups.settle_groups(tx, scene.run.id, Rules(2), SIZE, ids) == SIZE
        with self.counted("draw"):
            batch = scene.draw(step, SIZE, max_staleness=10)
        with self.counted("commit"):
            scene.commit(batch)

    def judge(self, stage: Stage) -> None:
        scene, size = self.scene, SIZE * GROUP_SIZE
        with self.counted(f"claim for {stage.processor}"), scene.database.transaction() as tx:
            after = self.after[stage.processor]
            claimed = processing.claim(tx, stage, scene.run.id, scene.processor, size, 3, after)
        assert len(claimed) == size
        self.after[stage.processor] = max(row["id"] for row in claimed) + 1
        verdicts = [
            StepVerdict(
                row["id"],
                row["attempt"],
                events=[reward(row["rollout_id"], 1.0)] if stage is SCORE else (),
            )
            for row in claimed
        ]
        with self.counted(f"finish {stage.processor}"), scene.database.transaction() as tx:
            processing.finish(tx, stage, scene.run.id, scene.processor, verdicts, max_attempts=3)

    @contextmanager
    def counted(self, verb: str) -> Iterator[None]:
        before = self.total()
        yield
        self.pages.setdefault(verb, []).append(self.total() - before)

    def total(self) -> int:
        self.scene.rows("SELECT pg_stat_force_next_flush()")
        return int(self.scene.value(PAGES))


def test_no_verb_of_the_flow_costs_more_while_an_old_transaction_keeps_the_dead(
    scene: Scene, shared_database: Database
) -> None:
    with shared_database.transaction() as tx:
        tx.execute(ONLY_OURS)
    flow = Flow(Scene.open(shared_database, "long", num_tasks=ROUNDS * SIZE))
    with closing(psycopg.connect(shared_database.url)) as idle:
        idle.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        idle.execute("SELECT 1")
        for step in range(1, ROUNDS + 1):
            flow.round(step)
    growth = {verb: (median(pages[5:10]), median(pages[-5:])) for verb, pages in flow.pages.items()}
    # Indexes become deeper. A claim that passes by all that was claimed before needs more with every round.
    assert {verb: pages for verb, pages in growth.items() if pages[1] > 1.25 * pages[0]} == {}


def test_processors_at_once_finish_each_row_once_and_miss_none(scene: Scene) -> None:
    scene.explore(8, rewards=(1.0,) * 20)
    workers = [scene.new_worker(WorkerRole.PROCESS) for _ in range(8)]

    def work(worker: int) -> list[int]:
        done: list[int] = []
        while True:
            with scene.database.transaction() as tx:
                claimed = processing.claim(tx, CLEAN, scene.run.id, worker, 7)
            if not claimed:
                return done
            verdicts = [StepVerdict(row["id"], row["attempt"]) for row in claimed]
            with scene.database.transaction() as tx:
                done += processing.finish(tx, CLEAN, scene.run.id, worker, verdicts, max_attempts=3)

    working = [in_a_thread(scene.database, partial(work, worker)) for worker in workers]
    finished = [row for future in working for row in future.result(WAIT_SECONDS)]
    assert sorted(finished) == scene.values("SELECT id FROM trinity.experience ORDER BY id")
    assert scene.rows("SELECT state, count(*) FROM trinity.experience GROUP BY 1") == [("clean", 160)]
    assert (
        scene.value("SELECT count(*) FROM trinity.processing WHERE outcome = 'passed' AND attempt = 1") == 160
    )


def test_a_new_reward_or_priority_touches_no_index(scene: Scene) -> None:
    """They are HOT updates: pages have room, and no index has these columns."""
    scene.make_ready(4)
    before = hot_updates(scene)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout_group SET priority = 0.9, reward_mean = 1, reward_count = 3")
        tx.execute("UPDATE trinity.experience SET reward = 0.5")
    assert [now - then for now, then in zip(hot_updates(scene), before, strict=True)] == [8, 4]


def hot_updates(scene: Scene) -> list[int]:
    """Of experiences, then of groups, so far."""
    scene.rows("SELECT pg_stat_force_next_flush()")
    return scene.values(
        "SELECT n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE schemaname = 'trinity' AND relname IN ('experience', 'rollout_group') ORDER BY relname"
    )
