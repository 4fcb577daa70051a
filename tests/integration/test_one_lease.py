"""Rows that both lists of steps judge under one lease, and what becomes of it when that is disturbed."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from tests.support.rows import Scene, claim_rows, reward, rollout
from tests.support.steps import processors
from trinity_db.postgres.connection import Database
from trinity_db.processors.service import Processors
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import processing
from trinity_db.store.processing import CLEAN, SCORE, Passed, StepVerdict

STEPS = """
class Killed(BaseException):
    pass

seen = set()

def deadly(id, response):
    if not seen:
        seen.add(id)
        raise Killed
    return float(response)

def fails_once(id, response):
    if response == "0.5" and id not in seen:
        seen.add(id)
        raise ValueError("not yet")
    return float(response)

async def slow(response):
    return float(response)
"""
STATES = "SELECT state::text, count(*), max(attempt) FROM trinity.experience GROUP BY 1 ORDER BY 1"
PASSES = """
SELECT processor, attempt, outcome::text, count(*) FROM trinity.processing GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
EVENTS = "SELECT count(*), count(DISTINCT rollout_id) FROM trinity.reward_event"
HELD = "SELECT count(*) FROM trinity.experience WHERE worker_id IS NOT NULL"


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    return tmp_path / "steps.py"


def explore(scene: Scene, responses: Sequence[str]) -> None:
    """A group with these responses."""
    [group] = scene.claim(1, group_size=len(responses))
    scene.write([rollout(group, member, response) for member, response in enumerate(responses)])


def start(scene: Scene, *score: str) -> Processors:
    """A processor that is a worker of its own."""
    role = processors(scene, {"clean": ["defaults", "not_empty"], "score": list(score)}, drain=True)
    role.worker_id = scene.new_worker(WorkerRole.PROCESS)
    return role


def drain(role: Processors) -> None:
    while role.work():
        pass


def test_a_row_passes_both_lists_by_one_claim(scene: Scene, steps: Path) -> None:
    explore(scene, ["1", "0", "0.25"])
    drain(start(scene, f"{steps}:fails_once"))
    assert scene.rows(STATES) == [("ready", 3, 1)]
    assert scene.rows(PASSES) == [("clean", 1, "passed", 3), ("score", 1, "passed", 3)]
    assert scene.rows(EVENTS) == [(3, 3)]


def test_a_row_that_only_the_second_list_fails_is_cleaned_once(scene: Scene, steps: Path) -> None:
    explore(scene, ["1", "0", "0.5", " "])
    drain(start(scene, f"{steps}:fails_once"))
    assert scene.rows(STATES) == [("dropped", 1, 1), ("ready", 3, 2)]
    assert scene.rows(PASSES) == [
        ("clean", 1, "dropped", 1),
        ("clean", 1, "passed", 3),
        ("score", 1, "failed", 1),
        ("score", 1, "passed", 2),
        ("score", 2, "passed", 1),
    ]


def test_rows_of_a_processor_that_dies_between_the_lists_are_judged_by_one_list_at_a_time(
    scene: Scene, steps: Path
) -> None:
    explore(scene, ["1", "0", "0.25"])
    first = start(scene, f"{steps}:deadly")
    with pytest.raises(BaseException, match=r"^$") as killed:
        drain(first)
    assert type(killed.value).__name__ == "Killed"
    assert scene.value(HELD) == 3
    assert scene.rows(PASSES) == [], "no verdict is recorded before the row moves"
    assert scene.lose(first.worker_id).experiences == 3
    drain(start(scene, "exact_match"))
    assert scene.rows(STATES) == [("ready", 3, 3)]
    assert scene.rows(PASSES) == [("clean", 2, "passed", 3), ("score", 3, "passed", 3)]
    assert scene.rows(EVENTS) == [(3, 3)]


def test_verdicts_of_both_lists_are_refused_when_the_lease_is_lost(scene: Scene) -> None:
    explore(scene, ["1", "0"])
    late = scene.new_worker(WorkerRole.PROCESS)
    ids = claim_rows(scene, worker=late)
    scene.lose(late)
    assert claim_rows(scene) == ids
    rollouts = scene.values("SELECT rollout_id FROM trinity.experience ORDER BY id")
    said = [StepVerdict(id, 1, events=[reward(of, 1.0)]) for id, of in zip(ids, rollouts, strict=True)]
    passed = [StepVerdict(id, 1) for id in ids]
    with scene.database.transaction() as tx:
        assert not processing.finish(tx, SCORE, scene.run.id, late, said, 3, Passed(CLEAN, passed))
    assert scene.rows(STATES) == [("raw", 2, 2)]
    assert scene.rows(PASSES) == [("clean", 1, "refused", 2), ("score", 1, "refused", 2)]
    assert scene.rows(EVENTS) == [(0, 0)]


def test_a_row_that_the_second_list_fails_for_good_is_dropped_by_it(scene: Scene) -> None:
    explore(scene, ["1", "0"])
    ids = claim_rows(scene)
    failed = [StepVerdict(id, 1, Outcome.FAILED, detail={"error": "no"}) for id in ids]
    with scene.database.transaction() as tx:
        before = Passed(CLEAN, [StepVerdict(id, 1) for id in ids])
        processing.finish(tx, SCORE, scene.run.id, scene.processor, failed, 1, before)
    assert scene.rows(STATES) == [("dropped", 2, 1)]
    assert scene.rows('SELECT stage, reason FROM trinity."drop"') == [("score", "score_failed")] * 2


def test_an_asynchronous_list_claims_rows_that_the_first_has_moved(scene: Scene, steps: Path) -> None:
    explore(scene, ["1", "0"])
    role = start(scene, f"{steps}:slow")
    while scene.rows(STATES) != [("ready", 2, 2)]:
        drain(role)
    assert scene.rows(PASSES) == [("clean", 1, "passed", 2), ("score", 2, "passed", 2)]
    role.release()


def test_processors_at_once_judge_each_row_once(scene: Scene, steps: Path) -> None:
    for _ in range(20):
        explore(scene, ["1", "0", "0.5"])
    together = Barrier(2)

    def serve(_: int) -> None:
        with closing(Database(scene.database.url)) as database:
            role = start(replace(scene, database=database), "exact_match")
            together.wait()
            drain(role)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(serve, range(2)))
    assert scene.rows(STATES) == [("ready", 60, 1)]
    assert scene.rows(PASSES) == [("clean", 1, "passed", 60), ("score", 1, "passed", 60)]
    assert scene.rows(EVENTS) == [(60, 60)]
