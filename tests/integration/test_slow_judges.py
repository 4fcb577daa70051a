"""Processors with asynchronous steps: leases while a judge thinks, and processors that end meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import Scene, rollout
from tests.support.steps import processors
from tests.support.waiting import wait_until
from trinity_db.processors.service import Processors
from trinity_db.store import runs, workers

JUDGE = """
import asyncio
from pathlib import Path
from trinity_db.processors.lists.step import Answer

asked = []

async def gated(id, response):
    asked.append(id)
    while not (Path(__file__).parent / f"gate{response}").exists():
        await asyncio.sleep(0.01)
    return Answer(float(response), {"words": "well done"})
"""
HELD = "SELECT count(*) FROM trinity.experience WHERE worker_id = %s"
STATES = "SELECT state::text, count(*) FROM trinity.experience GROUP BY 1 ORDER BY 1"
OUTCOMES = (
    "SELECT outcome::text, count(*) FROM trinity.processing WHERE processor = 'score' GROUP BY 1 ORDER BY 1"
)
EVENTS = "SELECT value, detail FROM trinity.reward_event ORDER BY value"

Start = Callable[[], Processors]


@pytest.fixture
def start(scene: Scene, tmp_path: Path) -> Iterator[Start]:
    """Starts processors, each a worker of its own, that ask two rows at a time."""
    (tmp_path / "judge.py").write_text(JUDGE)
    config = {
        "score": ["exact_match", {"name": f"{tmp_path}/judge.py:gated", "limits": {"in_flight": 2}}],
        "group": {"min_size": 1},
    }
    started: list[Processors] = []

    def make() -> Processors:
        role = processors(scene, config, drain=True)
        role.worker_id = scene.new_worker(role.role)
        started.append(role)
        return role

    yield make
    for role in started:
        role._stages[1].flow.close()  # type: ignore[union-attr]


def explore(scene: Scene, *responses: str) -> None:
    [group] = scene.claim(1, group_size=len(responses))
    scene.write([rollout(group, member, response) for member, response in enumerate(responses)])


def work(role: Processors) -> None:
    while role.work():
        pass


def settled(scene: Scene, *roles: Processors) -> bool:
    for role in roles:
        work(role)
    return bool(scene.rows(STATES) == [("ready", 5)])


def asked(role: Processors) -> list[int]:
    flow: Any = role._stages[1].flow
    found: list[int] = flow._steps[0].function.__globals__["asked"]
    return found


def test_rows_that_a_judge_thinks_about_are_leased_once_and_hold_up_no_other(
    scene: Scene, start: Start, tmp_path: Path
) -> None:
    explore(scene, "1", "2", "3", "3", "3")
    first, second = start(), start()
    work(first)
    work(second)
    assert [scene.value(HELD, role.worker_id) for role in (first, second)] == [2, 2]
    assert scene.rows(STATES) == [("clean", 5)]
    (tmp_path / "gate2").touch()
    wait_until(lambda: first.work() or ("scored", 1) in scene.rows(STATES), "the second row is judged")
    assert not first.is_done()
    for gate in ("gate1", "gate3"):
        (tmp_path / gate).touch()
    wait_until(lambda: settled(scene, first, second), "all rows are ready")
    assert len(asked(first) + asked(second)) == len(set(asked(first) + asked(second))) == 5
    assert scene.rows(OUTCOMES) == [("passed", 5)]
    judged = [row for row in scene.rows(EVENTS) if row[1] is not None]
    assert [value for value, _ in judged] == [1.0, 2.0, 3.0, 3.0, 3.0]
    assert all(detail == {"words": "well done"} for _, detail in judged)
    assert first.is_done()


def test_the_rows_of_a_processor_that_dies_are_judged_by_another_and_its_own_verdicts_are_refused(
    scene: Scene, start: Start, tmp_path: Path
) -> None:
    explore(scene, "1", "1", "1", "1", "1")
    first, second = start(), start()
    work(first)
    wait_until(lambda: len(asked(first)) == 2, "the first asks")
    scene.lose(first.worker_id)
    (tmp_path / "gate1").touch()
    wait_until(lambda: settled(scene, second), "the second judges all")
    assert len(asked(second)) == 5
    wait_until(lambda: first.work() or ("refused", 2) in scene.rows(OUTCOMES), "the first comes too late")
    assert scene.rows(OUTCOMES) == [("passed", 5), ("refused", 2)]
    assert len(scene.rows(EVENTS)) == 10, "one of each of the two steps"


def test_what_is_in_flight_stays_leased_when_a_lost_claim_is_given_back(
    scene: Scene, start: Start, tmp_path: Path
) -> None:
    explore(scene, "1", "1", "1", "1", "1")
    role = start()
    work(role)
    assert len(role.held().experiences) == 2
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.experience SET worker_id = %s, attempt = attempt + 1 WHERE worker_id IS NULL",
            [role.worker_id],
        )
    with scene.database.transaction() as tx:
        assert workers.release_own(tx, role.worker_id, role.held()).experiences == 3
    (tmp_path / "gate1").touch()
    wait_until(lambda: settled(scene, role), "all rows are ready")
    assert scene.rows(OUTCOMES) == [("passed", 5)]


def test_a_stop_keeps_the_verdicts_that_are_there(scene: Scene, start: Start, tmp_path: Path) -> None:
    explore(scene, "1", "2", "3", "3", "3")
    role = start()
    work(role)
    (tmp_path / "gate1").touch()
    flow: Any = role._stages[1].flow
    wait_until(lambda: not flow._done.empty(), "a verdict is there")
    role.stop()
    role.release()
    role.release()
    assert scene.rows(STATES) == [("clean", 4), ("scored", 1)]
    assert role.held().experiences == []


def test_rows_that_a_judge_thinks_about_when_the_run_ends_are_archived(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))
    (tmp_path / "judge.py").write_text(JUDGE)
    judge = {"name": f"{tmp_path}/judge.py:gated", "limits": {"in_flight": 2}}
    role = processors(scene, {"score": [judge], "archive": {}})
    other = processors(scene, {"score": [judge], "archive": {}})
    other.worker_id = scene.new_worker(other.role)
    explore(scene, "1", "2")
    work(role)
    with scene.database.transaction() as tx:
        runs.finish(tx, scene.run.id)
        workers.stop(tx, scene.explorer)
    assert not role.is_done()
    assert not other.is_done(), "it would be the archiver, and these rows are with the first"
    for gate in ("gate1", "gate2"):
        (tmp_path / gate).touch()
    wait_until(lambda: role.work() or scene.rows(STATES) != [("clean", 2)], "both are judged")
    work(role)
    assert role.is_done()
    assert scene.value("SELECT count(archive_row) FROM trinity.payload") == 2
    role._stages[1].flow.close()  # type: ignore[union-attr]
