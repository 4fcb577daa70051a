"""The processors: a reward function that fails for some rows or for all, and a run over imported ones."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rows import Scene, demonstration, import_records, rollout
from trinity_db.errors import TrinityError
from trinity_db.processors import service
from trinity_db.processors.config import ArchiveConfig, ProcessorsConfig, RewardConfig, ScoreConfig
from trinity_db.processors.service import Processors
from trinity_db.store import runs

FAILURES_IN_A_ROW = 4
STATES = "SELECT state::text, count(*) FROM trinity.experience GROUP BY 1 ORDER BY 1"
ARCHIVED = "SELECT count(archive_row), count(*) FROM trinity.payload"

Start = Callable[[], Processors]


@pytest.fixture
def start(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts processors whose function cannot score what is no number; four such rows in a row end them."""
    monkeypatch.setattr(service, "FAILURES_IN_A_ROW", FAILURES_IN_A_ROW)
    (tmp_path / "mine.py").write_text("def number(response, task):\n    return float(response)\n")
    score = ScoreConfig(functions=[RewardConfig(function=f"{tmp_path}/mine.py:number")])

    def start() -> Processors:
        processors = Processors(scene.database, scene.run, ProcessorsConfig(score=score), drain=True)
        processors.worker_id = scene.processor
        return processors

    return start


def explore(scene: Scene, *responses: str) -> None:
    """A group with these responses."""
    [group] = scene.claim(1, group_size=len(responses))
    scene.write([rollout(group, member, response) for member, response in enumerate(responses)])


def drain(processors: Processors) -> None:
    while processors.work():
        pass


def test_processors_that_can_score_no_row_end_with_the_error_and_its_place(
    scene: Scene, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    explore(scene, *["one"] * FAILURES_IN_A_ROW)
    place = re.escape(f"({tmp_path}/mine.py, line 2, in number)")
    error = f"^score: 4 rows failed in a row, the last with: .*:number raised ValueError: .* 'one' {place}$"
    with pytest.raises(TrinityError, match=error):
        drain(start())
    assert scene.rows(STATES) == [("clean", FAILURES_IN_A_ROW)]
    assert scene.values("SELECT outcome::text FROM trinity.processing ORDER BY id") == [
        *["passed"] * FAILURES_IN_A_ROW,
        *["failed"] * FAILURES_IN_A_ROW,
    ]
    errors = scene.values("SELECT error FROM trinity.processing WHERE outcome = 'failed'")
    assert all(re.search(place, said) for said in [*errors, caplog.text]), "also in the record and in the log"


def test_rows_that_are_tried_again_side_by_side_are_not_failures_in_a_row(scene: Scene, start: Start) -> None:
    for _ in range(2):
        explore(scene, "one", "two", "3.0")
    drain(start())
    # Those that are left are too few for a group.
    assert scene.rows('SELECT reason, count(*) FROM trinity."drop" WHERE experience_id > 0 GROUP BY 1') == [
        ("score_failed", 4),
        ("group_too_small", 2),
    ]


def test_a_function_that_fails_from_some_row_on_ends_the_processors_too(scene: Scene, start: Start) -> None:
    processors = start()
    explore(scene, "1.0", "0.0")
    drain(processors)
    explore(scene, *["one"] * FAILURES_IN_A_ROW)
    with pytest.raises(TrinityError, match=r"^score: 4 rows failed in a row"):
        drain(processors)
    assert scene.rows(STATES) == [("clean", FAILURES_IN_A_ROW), ("ready", 2)]


def test_processors_of_a_run_over_imported_rows_archive_them_and_end_with_it(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))
    import_records(scene.database, "set", [demonstration(number) for number in range(4)])
    run = Scene.open(scene.database, "imitation", data=["set"])
    run.encode()
    config = ProcessorsConfig(archive=ArchiveConfig(min_rows=2))
    processors = Processors(run.database, run.run, config)
    processors.worker_id = run.processor
    run.commit(run.draw_rows(step=1, size=3))
    drain(processors)
    assert run.rows(ARCHIVED) == [(3, 4)]
    assert not processors.is_done()
    with run.database.transaction() as tx:
        runs.finish(tx, run.run.id)
    assert processors.is_done()
    assert run.rows(ARCHIVED) == [(4, 4)]
