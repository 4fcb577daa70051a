"""Steps that judge stored rows again, asked without the leases of a rescore."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from psycopg.rows import DictRow

from tests.support.rows import Scene
from tests.support.steps import load
from trinity_db.postgres.connection import Database
from trinity_db.processors.config import ArchiveConfig
from trinity_db.processors.jobs.archive import Archiver
from trinity_db.processors.lists import limits
from trinity_db.processors.lists.due_steps import DueSteps
from trinity_db.processors.lists.step import Step
from trinity_db.store import payloads
from trinity_db.store.processing import StepVerdict
from trinity_db.store.rescore import RescoreClaim

STEPS = """
import asyncio, time

begun, loops = [], set()

async def slow(id):
    begun.append(time.monotonic())
    loops.add(asyncio.get_running_loop())
    return 1.0

def quick(response):
    return 2.0

def counted(token_ids):
    return float(len(token_ids))
"""


def steps_of(folder: Path, *named: Any) -> list[Step]:
    (folder / "own.py").write_text(STEPS)
    return load("score", *(one | {"name": f"{folder}/own.py:{one['name']}"} for one in named))


def verdicts(scene: Scene, steps: Sequence[Step], due: Mapping[int, tuple[str, ...]]) -> list[StepVerdict]:
    """On rows with these due steps, in the order of their ids."""
    at_work = DueSteps(scene.database, steps, lambda: False)
    try:
        found = list(chain.from_iterable(at_work.verdicts([RescoreClaim(1, 1, due)])))
    finally:
        at_work.close()
    return sorted((verdict for _, verdict in found), key=lambda one: one.id)


def rows(scene: Scene) -> list[int]:
    return scene.values("SELECT id FROM trinity.experience ORDER BY id")


def test_rows_with_other_due_steps_share_an_asynchronous_step_and_its_rates(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MINUTE", 0.3)
    scene.explore(3)
    slow_step = {"name": "slow", "limits": {"requests_per_minute": 2}}
    quick, slow = steps = steps_of(tmp_path, {"name": "quick"}, slow_step)
    both, one, other = (quick.name, slow.name), (slow.name,), (quick.name,)
    due = dict(zip(rows(scene), (both, one, other, one, both, ()), strict=True))
    found = verdicts(scene, steps, due)
    assert [tuple(event.name for event in verdict.events) for verdict in found] == list(due.values())
    module = slow.function.__globals__
    assert len(module["loops"]) == 1, "what a step keeps, such as a session, belongs to one event loop"
    assert len(module["begun"]) == 4
    assert module["begun"][2] - module["begun"][0] >= 0.3, "the rate holds for all rows together"


def test_a_step_for_several_rows_at_once_gets_those_alone_that_are_due(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(
        "from trinity_db.processors.lists.step import step\n\nasked = []\n\n@step(batch=2)\ndef many(id):\n"
        "    asked.append(list(id))\n    return list(enumerate([1.0] * len(id)))\n"
    )
    steps = [*load("score", f"{tmp_path}/many.py:many"), *steps_of(tmp_path, {"name": "quick"})]
    many, quick = (step.name for step in steps)
    scene.explore(3)
    ids = rows(scene)
    due = {id: (quick,) if place % 2 else (many, quick) for place, id in enumerate(ids)}
    found = verdicts(scene, steps, due)
    assert [tuple(event.name for event in one.events) for one in found] == list(due.values())
    assert steps[0].function.__globals__["asked"] == [[ids[0], ids[2]], [ids[4]]]


def test_archived_arrays_are_read_at_once_and_a_pruned_row_fails_alone(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))
    scene.make_ready(2)
    scene.train(1, 2)
    assert Archiver(scene.database, scene.run, ArchiveConfig(min_rows=1), lambda: False).finish(
        scene.processor
    )
    asked: list[list[int]] = []
    packed = payloads.packed

    def watched(database: Database, ids: Sequence[int]) -> list[DictRow]:
        asked.append(list(ids))
        return packed(database, ids)

    monkeypatch.setattr(payloads, "packed", watched)
    steps = steps_of(tmp_path, {"name": "counted"})
    ids = rows(scene)
    due = dict.fromkeys(ids, (steps[0].name,))
    lengths = scene.values("SELECT num_tokens FROM trinity.payload ORDER BY experience_id")
    found = verdicts(scene, steps, due)
    assert [event.value for one in found for event in one.events] == lengths
    assert asked == [ids]
    scene.rows(
        "UPDATE trinity.payload SET pruned_at = now(), archive_row = NULL"
        f" WHERE experience_id = {ids[1]} RETURNING 1"
    )
    found = verdicts(scene, steps, due)
    assert "were pruned" in str(found[1].error)
    assert [event.value for one in found for event in one.events] == [lengths[0], *lengths[2:]]
