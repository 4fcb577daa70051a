"""The processors: a reward function that fails for some rows or for all, and a run over imported ones."""

import hashlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.rows import Scene, at_once, demonstration, import_records, reward, rollout
from tests.support.steps import processors
from trinity_db.errors import TrinityError
from trinity_db.processors import service
from trinity_db.processors.lists import changed_files
from trinity_db.processors.service import Processors
from trinity_db.store import processing, rewards, runs, workers

FAILURES_IN_A_ROW = 4
STATES = "SELECT state::text, count(*) FROM trinity.experience GROUP BY 1 ORDER BY 1"
ARCHIVED = "SELECT count(archive_row), count(*) FROM trinity.payload"

Start = Callable[[], Processors]


@pytest.fixture
def start(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts processors whose function cannot score what is no number; four such rows in a row end them."""
    monkeypatch.setattr(service, "FAILURES_IN_A_ROW", FAILURES_IN_A_ROW)
    (tmp_path / "mine.py").write_text("def number(response, task):\n    return float(response)\n")
    return lambda: processors(scene, {"score": [f"{tmp_path}/mine.py:number"]}, drain=True)


def explore(scene: Scene, *responses: str) -> None:
    """A group with these responses."""
    [group] = scene.claim(1, group_size=len(responses))
    scene.write([rollout(group, member, response) for member, response in enumerate(responses)])


def drain(role: Processors) -> None:
    while role.work():
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
    role = start()
    explore(scene, "1.0", "0.0")
    drain(role)
    explore(scene, *["one"] * FAILURES_IN_A_ROW)
    with pytest.raises(TrinityError, match=r"^score: 4 rows failed in a row"):
        drain(role)
    assert scene.rows(STATES) == [("clean", FAILURES_IN_A_ROW), ("ready", 2)]


def test_processors_of_a_run_over_imported_rows_archive_them_and_end_with_it(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))
    import_records(scene.database, "set", [demonstration(number) for number in range(4)])
    run = Scene.open(scene.database, "imitation", data=["set"])
    run.encode()
    role = processors(run, {"archive": {"min_rows": 2}})
    run.commit(run.draw_rows(step=1, size=3))
    drain(role)
    assert run.rows(ARCHIVED) == [(3, 4)]
    assert not role.is_done()
    with run.database.transaction() as tx:
        runs.finish(tx, run.run.id)
        workers.stop(tx, run.explorer)
    assert role.is_done()
    assert run.rows(ARCHIVED) == [(4, 4)]


def test_rows_that_an_explorer_writes_while_the_run_ends_are_judged_and_archived(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))
    role = processors(scene, {"archive": {}})
    explore(scene, "1.0", "2.0")
    drain(role)
    with scene.database.transaction() as tx:
        runs.finish(tx, scene.run.id)
    assert not role.is_done(), "an explorer may write more"
    explore(scene, "3.0", "4.0")  # after the last round of the processors
    with scene.database.transaction() as tx:
        workers.stop(tx, scene.explorer)
    assert not role.is_done()
    drain(role)
    assert role.is_done()
    assert scene.rows(ARCHIVED) == [(4, 4)]


PROCESSING = "SELECT processor, processor_version, outcome::text, step FROM trinity.processing ORDER BY id"
LISTS = "SELECT processor, version, steps FROM trinity.step_list ORDER BY processor, version"


def test_a_row_is_recorded_with_the_step_that_dropped_or_failed_it(scene: Scene, tmp_path: Path) -> None:
    name = f"{tmp_path}/mine.py:number"
    (tmp_path / "mine.py").write_text("def number(response):\n    return float(response)\n")
    explore(scene, "1.0", " ", "one")
    config = {"clean": ["not_empty"], "score": [name], "max_attempts": 1, "group": {"min_size": 1}}
    drain(processors(scene, config))
    assert sorted(scene.rows(PROCESSING), key=lambda row: row[0]) == [
        *[("clean", 1, outcome, step) for outcome, step in (("dropped", "not_empty"), ("passed", None))],
        ("clean", 1, "passed", None),
        *[("score", 1, outcome, step) for outcome, step in (("passed", None), ("failed", name))],
    ]
    assert scene.rows('SELECT stage, step, reason FROM trinity."drop" ORDER BY id') == [
        ("clean", "not_empty", "empty"),
        ("score", name, "score_failed"),
    ]
    assert scene.rows("SELECT stage, step, reason, rows FROM trinity.drop_view ORDER BY stage") == [
        ("clean", "not_empty", "empty", 1),
        ("score", name, "score_failed", 1),
    ]


def test_a_list_that_changes_in_options_or_code_is_a_version_of_its_own(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    code = "def short(response, *, limit):\n    return float(len(response) <= limit)\n"
    marked = "from trinity_db.processors.lists.step import step\n@step(version=2)\n" + code

    def pass_one(limit: int) -> int:
        """The version under which a row is scored by now."""
        role = processors(scene, {"score": [{"name": f"{path}:short", "weight": 2, "limit": limit}]})
        explore(scene, "a")
        drain(role)
        version: int = scene.value(
            "SELECT processor_version FROM trinity.processing ORDER BY id DESC LIMIT 1"
        )
        return version

    path.write_text(code)
    versions = [pass_one(1), pass_one(1), pass_one(2)]
    path.write_text(marked)
    versions += [pass_one(2), pass_one(1)]
    path.write_text(code)
    assert [*versions, pass_one(2)] == [1, 1, 2, 3, 4, 2]
    digest = hashlib.sha256(code.encode()).hexdigest()
    [clean, first, *_] = scene.rows(LISTS)
    assert clean[:2] == ("clean", 1)
    assert [step["name"] for step in clean[2]] == ["finite_logprobs"]
    assert first == (
        *("score", 1),
        [{"name": f"{path}:short", "version": 1, "digest": digest, "weight": 2.0, "options": {"limit": 1}}],
    )


MAKERS = """
SELECT v.value, v.processor_version, s->>'digest' FROM trinity.reward_event v
JOIN trinity.step_list l ON l.run_id = v.run_id AND l.processor = v.source AND l.version = v.processor_version
CROSS JOIN jsonb_array_elements(l.steps) s
WHERE s->>'name' = v.name ORDER BY v.id
"""


def test_a_reward_names_the_code_that_made_it_and_a_file_that_changes_meanwhile_is_noticed(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(changed_files, "LOOK_SECONDS", 0.0)
    path = tmp_path / "mine.py"
    texts = [f"def mine(response):\n    return {number}.0\n" for number in (1, 2)]
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    config = {"score": [f"{path}:mine"]}
    path.write_text(texts[0])
    role = processors(scene, config)
    explore(scene, "a")
    drain(role)
    assert "continues with" not in caplog.text
    path.write_text(texts[1])
    explore(scene, "b")
    drain(role)
    assert caplog.text.count("mine.py changed; this process continues with the loaded content") == 1
    explore(scene, "c")
    drain(processors(scene, config))
    assert scene.rows(MAKERS) == [(1.0, 1, digests[0]), (1.0, 1, digests[0]), (2.0, 2, digests[1])]
    path.unlink()
    drain(role)
    assert "mine.py is gone; this process continues with" in caplog.text
    about = scene.value("SELECT min(id) FROM trinity.rollout")
    with scene.database.transaction() as tx:
        rewards.record(tx, scene.run.id, "human", [reward(about, 0.5, "human")])
    assert scene.values("SELECT processor_version FROM trinity.reward_event WHERE source = 'human'") == [None]


def test_processors_that_start_at_once_agree_on_the_version(scene: Scene) -> None:
    names = ("one", "two", "one", "two")
    steps = [[{"name": name}] for name in names]
    record = partial(processing.record_steps, run_id=scene.run.id, processor="clean")
    found = at_once(scene.database, [partial(record, steps=one) for one in steps])
    versions = dict(zip(names, found, strict=True))
    assert found == [versions[name] for name in names]
    assert sorted(versions.values()) == [1, 2]


def test_a_clean_step_that_can_judge_no_row_ends_the_processors(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FAILURES_IN_A_ROW", FAILURES_IN_A_ROW)
    (tmp_path / "mine.py").write_text("def broken(response):\n    return 1 / 0\n")
    explore(scene, *["one"] * FAILURES_IN_A_ROW)
    with pytest.raises(TrinityError, match=r"^clean: 4 rows failed in a row, .*:broken raised ZeroDivision"):
        drain(processors(scene, {"clean": [f"{tmp_path}/mine.py:broken"]}))
