"""Runs in passes over data, one after the other, whose trainer and server are disturbed in every way we know.

Each run ends by itself after one and a half passes, and then the next one begins, until the time is over. So
trainers die in each part of a pass, between two passes, and at the end of a run. Afterwards each pass of each
run must have used each group, row or pair once, and the half pass half of them.
"""

import atexit
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Store, reversals
from tests.chaos.aftermath import Aftermath
from tests.chaos.crew import Crew, Member
from tests.chaos.driver import ROUND_SECONDS, Driver, plan
from tests.chaos.experiment import log_into, new_store
from tests.chaos.promises import (  # noqa: F401  they are tests here too
    test_batches_are_drawn_again_as_they_were,
    test_every_version_includes_each_step_up_to_its_own_once,
    test_no_process_ended_with_a_traceback,
    test_no_process_gave_up,
    test_nothing_is_leased_at_rest,
)
from tests.support.postgres import cluster_18
from tests.support.waiting import wait_until
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.worker.service import SUPERVISOR

# The fixture takes as long as it was told to, and bounds each of its waits itself.
pytestmark = pytest.mark.timeout(300, func_only=True)

SHARE = 1 / 4  # of the minutes: a run takes seconds, so many end in that time
END_SECONDS = 240.0  # a run that starts again some times, on a busy machine
EPOCHS, BATCH_SIZE = 1.5, 2
NUM_UNITS = 45  # so few that a run on a slow machine ends while it is disturbed
A_PASS = math.ceil(NUM_UNITS / BATCH_SIZE)
THE_HALF = math.ceil(A_PASS / 2)
KILLS = ("kill train",) * 4  # of a round, besides the two of every plan

# What a run learns from, by the kind of its data.
ALGORITHMS = {"groups": "raft", "rows": "sft", "pairs": "dpo"}
SERIES = {"adopted groups": ("groups",), "rows and pairs": ("rows", "pairs")}
USES = """
SELECT r.name, r.state::text, b.epoch, coalesce(-i.preference_id, g.id, i.experience_id) AS unit,
       count(DISTINCT b.id) AS uses
FROM run r
JOIN batch b ON b.run_id = r.id AND b.state = 'committed'
JOIN batch_item i ON i.batch_id = b.id
JOIN experience e ON e.id = i.experience_id
LEFT JOIN rollout_group g ON g.id = e.group_id AND g.run_id = r.id
GROUP BY r.id, b.epoch, unit
"""
"""How often each pass of each run used each group, row or pair; a pair has its id with a minus before it."""
WRONG_COUNTS = """
SELECT 'row' AS what, e.id, e.use_count, count(b.id) AS uses
FROM experience e
LEFT JOIN batch_item i ON i.experience_id = e.id AND i.preference_id IS NULL
LEFT JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
GROUP BY e.id HAVING e.use_count <> count(b.id)
UNION ALL
SELECT 'group', g.id, g.use_count, count(DISTINCT b.id)
FROM rollout_group g
LEFT JOIN experience e ON e.group_id = g.id AND e.run_id = g.run_id
LEFT JOIN batch_item i ON i.experience_id = e.id
LEFT JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
GROUP BY g.id HAVING g.use_count <> count(DISTINCT b.id)
UNION ALL
SELECT 'pair', p.id, p.use_count, count(DISTINCT b.id)
FROM preference p
LEFT JOIN batch_item i ON i.preference_id = p.id
LEFT JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
GROUP BY p.id HAVING p.use_count <> count(DISTINCT b.id)
"""
COUNTS = """
SELECT (SELECT count(*) FROM run WHERE kind = 'train' AND state = 'finished') AS runs_finished,
       (SELECT count(*) FROM experience WHERE source_id IS NOT NULL) AS rows_adopted,
       (SELECT count(*) FROM batch WHERE state = 'committed') AS batches_committed,
       (SELECT count(*) FROM batch WHERE state = 'reopened') AS batches_reopened,
       (SELECT count(*) FROM batch
        WHERE state = 'reopened' AND committed_at IS NOT NULL) AS commits_taken_back,
       (SELECT count(*) FROM policy_version WHERE version > 0) AS versions_published
"""


@dataclass(kw_only=True)
class Series(Crew):
    """A trainer, and another one for the next run when it has ended by itself."""

    next_config: Callable[[], Path]
    num_ended: int = 0

    def finish(self) -> None:
        """Let the present run end, and begin no other."""
        before = self.num_ended

        def ended() -> bool:
            place = self.places[0]
            if not place.process.running and place.ended is None:
                self._bury(place)
                if self.num_ended == before:
                    self.places[0] = self._start(*self.seats[0])
            return self.num_ended > before

        wait_until(ended, "the last run ends", seconds=END_SECONDS)
        for member in self.members:
            if member.ended is None:  # it was frozen, and ended when it saw that it was replaced
                member.ended = member.process.wait()

    def _bury(self, member: Member) -> None:
        super()._bury(member)
        if member.ended is not None and member.ended.code == 0:
            member.gave_up = False
            self.num_ended += 1
            self.config = self.next_config()


def import_data(store: Store) -> None:
    """A data set of each kind, named after it, with NUM_UNITS groups, rows or pairs."""
    tasks = reversals(3)[:NUM_UNITS]
    assert len(tasks) == NUM_UNITS
    answers = [(task["prompt"], task["answer"]) for task in tasks]
    trajectories = [
        {"prompt": prompt, "response": answer + more, "reward": reward}
        for prompt, answer in answers
        for more, reward in (("", 1.0), ("0", 0.5), ("4", 0.0))
    ]
    pairs = [{"prompt": p, "chosen": answer + "0", "rejected": answer + "4"} for p, answer in answers]
    store.import_rows("groups", "trajectories", trajectories)
    store.import_rows("rows", "demonstrations", [{"prompt": p, "completion": a} for p, a in answers])
    store.import_rows("pairs", "preferences", pairs)


def configurations(store: Store, kinds: Sequence[str]) -> Iterator[Path]:
    """Of one run after the other, each with a seed and a cadence of its own."""
    for number, kind in zip(count(1), cycle(kinds), strict=False):
        every = 1 + number % 3
        trainer = {
            "epochs": EPOCHS,
            "batch_size": BATCH_SIZE,
            "learning_rate": 1e-3,
            "publish_every": every,
            "checkpoint_every": 2 * every,  # so that a crash withdraws a version now and then
            "keep_checkpoints": 2,
        }
        name = f"{kind}-{number}"
        yield store.config(name, seed=number, data=[kind], algorithm=ALGORITHMS[kind], trainer=trainer)


def go_through(name: str, store: Store, cluster: Cluster, seed: int, minutes: float) -> Aftermath:
    """Disturb runs for so many minutes, and let the last one end."""
    seconds, say = SHARE * 60 * minutes, log_into(store.folder)
    say(f"seed {seed}, {seconds:.0f} s of {name}")
    import_data(store)
    configs = configurations(store, SERIES[name])
    environment = {SUPERVISOR: str(os.getpid())}
    series = Series([("train", store)], next(configs), environment, say, next_config=partial(next, configs))
    driver = Driver(store, cluster, series, say)
    try:
        series.start()
        driver.settle(1)
        driver.play(plan(seed, seconds, KILLS, roles=("train",)))
        series.finish()
        say("the last run has ended")
    finally:
        series.release()
    return Aftermath(name, seed, seconds, 0, store, store.folder, series, driver)


@pytest.fixture(scope="module", params=SERIES, ids=lambda name: name.replace(" ", ""))
def after(request: pytest.FixtureRequest, summaries: list[dict[str, Any]]) -> Iterator[Aftermath]:
    """Runs that were disturbed, all of them over."""
    cluster = cluster_18()
    folder, failures = cluster.home, request.session.testsfailed
    cluster = replace(cluster, home=folder / "home")
    atexit.register(cluster.stop)
    store = new_store(cluster, folder)
    option, is_well = request.config.getoption, False
    try:
        after = go_through(request.param, store, cluster, option("--seed"), option("--minutes"))
        summaries.append(summary(after))
        yield after
        is_well = request.session.testsfailed == failures
    finally:
        store.clear_away()
        cluster.stop()
        if is_well:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"What the processes said and the store are left in {folder}")


def summary(after: Aftermath) -> dict[str, Any]:
    did = after.driver.count
    disturbed = {
        name: did[name] for name in ("kill train", "freeze train", "cut", "restart", "crash", "zombie")
    }
    told = {"server": after.server, "seed": after.seed, "seconds": after.seconds}
    return told | disturbed | {"trainers": len(after.crew.members)} | after.store.rows(COUNTS)[0]


def test_every_run_but_the_first_began_when_the_one_before_had_ended(after: Aftermath) -> None:
    runs = after.store.rows("SELECT name, state::text FROM run WHERE kind = 'train' ORDER BY id")
    assert {run["state"] for run in runs} == {"finished"}
    if after.seconds >= ROUND_SECONDS:  # otherwise the plan does not have everything
        assert after.driver.count["kill train"] > 0
        assert after.store.value("SELECT count(*) FROM batch WHERE state = 'reopened'") > 0


def test_each_pass_of_each_run_used_each_unit_once(after: Aftermath) -> None:
    used = after.store.rows(USES)
    assert [row for row in used if row["uses"] != 1] == []
    sizes = Counter((row["name"], row["epoch"]) for row in used)
    runs = [row["name"] for row in after.store.rows("SELECT name FROM run WHERE kind = 'train'")]
    assert sizes == {
        (name, epoch): size for name in runs for epoch, size in enumerate((NUM_UNITS, THE_HALF * BATCH_SIZE))
    }


def test_use_counts_are_those_of_the_committed_batches(after: Aftermath) -> None:
    assert after.store.rows(WRONG_COUNTS) == []
