"""Dead letters: what is listed, what comes back to the processors, and what a run does with it then."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import WAIT_SECONDS, Scene, centered, in_a_thread, rollout, wait_until_blocked
from tests.support.steps import processors
from trinity_db.postgres.connection import Database
from trinity_db.store import batches, draws, failures
from trinity_db.store.failures import Retried

STATES = "SELECT state::text FROM trinity.experience ORDER BY id"
GROUPS = "SELECT state::text FROM trinity.rollout_group ORDER BY id"
TASKS = "SELECT task_id, scored, solved, alpha, beta FROM trinity.task_stat WHERE scored > 0 ORDER BY task_id"
DRAWN = """
SELECT DISTINCT e.group_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id
WHERE i.batch_id = %s
"""
TOO_LATE = "its group became ready without it"


class Judge:
    """A step in a file, which can be broken and mended."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "judge.py"
        self.mend()

    def mend(self) -> None:
        self.file.write_text("def judge(response):\n    return float(response.strip('x'))\n")

    def break_for(self, letter: str) -> None:
        self.file.write_text(
            f"def judge(response):\n    return float(response.strip('x')) / ('{letter}' not in response)\n"
        )


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return Judge(tmp_path)


def process(scene: Scene, judge: Judge, min_size: int = 2, **more: object) -> None:
    """All that processors do by the judge as it is now, in a process that starts now."""
    config = {"score": [f"{judge.file}:judge"], "max_attempts": 1, "group": {"min_size": min_size, **more}}
    role = processors(scene, config)
    while role.work():
        pass


def explore(scene: Scene, *responses: str) -> int:
    [group] = scene.claim(1, group_size=len(responses))
    scene.write([rollout(group, member, response) for member, response in enumerate(responses)])
    return group.id


def retry(scene: Scene) -> Retried:
    return failures.retry(scene.database, scene.run)


def test_groups_that_a_broken_judge_dropped_are_whole_again_once_it_is_mended(
    scene: Scene, judge: Judge
) -> None:
    judge.break_for("x")
    explore(scene, "1", "0x", "0x")
    explore(scene, "1x", "1x")
    process(scene, judge)
    assert scene.values(GROUPS) == ["dropped", "dropped"]
    judge.mend()
    assert retry(scene) == Retried(rows=4, groups=2, left={})
    assert scene.values(STATES) == ["scored", *["clean"] * 4]
    assert scene.values(GROUPS) == ["complete", "complete"]
    assert scene.rows('SELECT * FROM trinity."drop"') == []
    process(scene, judge)
    assert scene.values(STATES) == ["ready"] * 5
    assert scene.values("SELECT reward FROM trinity.experience ORDER BY id") == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert retry(scene) == Retried(rows=0, groups=0, left={})


def test_tasks_are_counted_as_if_no_judge_had_failed(scene: Scene, judge: Judge) -> None:
    judge.break_for("x")
    explore(scene, "1", "0x", "1x")
    explore(scene, "0", "0", "0")
    process(scene, judge, drop_equal_rewards=True)
    judge.mend()
    retry(scene)
    process(scene, judge, drop_equal_rewards=True)
    assert scene.values(GROUPS) == ["ready", "dropped"]
    assert [row[1:] for row in scene.rows(TASKS)] == [(3, 2, 3, 2), (3, 0, 1, 4)]


def test_a_group_that_is_ready_keeps_its_baseline(scene: Scene, judge: Judge) -> None:
    judge.break_for("x")
    explore(scene, "1", "0", "1x")
    process(scene, judge)
    before = scene.rows("SELECT state, reward_count, reward_mean FROM trinity.rollout_group")
    assert before == [("ready", 2, 0.5)]
    judge.mend()
    assert retry(scene) == Retried(rows=0, groups=0, left={TOO_LATE: 1})
    assert scene.values(STATES) == ["ready", "ready", "dropped"]
    assert scene.rows("SELECT state, reward_count, reward_mean FROM trinity.rollout_group") == before


def test_a_group_behind_which_the_draws_have_gone_on_is_drawn_too(scene: Scene, judge: Judge) -> None:
    judge.break_for("x")
    first = explore(scene, "1x", "0x")
    second = explore(scene, "1", "0")
    process(scene, judge)
    batch = scene.draw(step=1, size=1)
    assert batch is not None
    scene.commit(batch)
    explore(scene, "1", "0")
    process(scene, judge)
    batch = scene.draw(step=2, size=1)
    assert batch is not None
    scene.commit(batch)
    floor = "SELECT floor FROM trinity.floor_of(%s)"
    assert scene.value(floor, scene.run.id) > second
    judge.mend()
    retry(scene)
    assert scene.value(floor, scene.run.id) == first
    process(scene, judge)
    assert scene.draw(step=3, size=1) is not None
    assert scene.values(GROUPS) == ["leased", "trained", "trained"]


def test_it_is_drawn_too_after_the_trainer_gave_its_last_batch_back(scene: Scene, judge: Judge) -> None:
    judge.break_for("x")
    first = explore(scene, "1x", "0x")
    for step in (1, 2, 3):
        explore(scene, "1", "0")
        process(scene, judge)
        batch = scene.draw(step=step, size=1)
        assert batch is not None
        if step < 3:
            scene.commit(batch)
    judge.mend()
    retry(scene)
    process(scene, judge)
    for number, is_first in (
        (3, True),
        (4, False),
    ):  # the draw of a step gives back what was drawn for it before
        batch = scene.draw(step=number, size=1)
        assert batch is not None
        assert (scene.values(DRAWN, batch.id) == [first]) == is_first
        scene.commit(batch)


def test_a_group_of_which_a_member_was_pruned_stays_dropped(scene: Scene, judge: Judge) -> None:
    judge.break_for("x")
    explore(scene, "1x", "0")
    process(scene, judge)
    good = "SELECT experience_id FROM trinity.experience_text WHERE response = '0'"
    with scene.database.transaction() as tx:
        tx.execute(
            f"UPDATE trinity.payload SET data = NULL, pruned_at = now() WHERE experience_id IN ({good})"
        )
    assert retry(scene) == Retried(0, 0, {"arrays of its group are pruned": 1})


def test_a_judge_that_is_still_broken_has_one_attempt_more(scene: Scene, judge: Judge) -> None:
    judge.break_for("x")
    explore(scene, "1x", "0x")
    process(scene, judge)
    retry(scene)
    process(scene, judge)
    assert scene.values(STATES) == ["dropped"] * 2
    attempts = (
        "SELECT attempt FROM trinity.processing WHERE processor = 'score' ORDER BY experience_id, attempt"
    )
    assert scene.values(attempts) == [1, 2, 1, 2]
    assert (
        scene.rows(
            "SELECT run, stage, error LIKE '%%ZeroDivisionError%%', obstacle FROM trinity.failure_view"
        )
        == [("run", "score", True, None)] * 2
    )


def test_a_row_whose_arrays_left_postgres_stays_dropped(scene: Scene, judge: Judge) -> None:
    judge.break_for("x")
    explore(scene, "1x", "0x")
    process(scene, judge)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.payload SET data = NULL, pruned_at = now()")
    assert retry(scene) == Retried(0, 0, {"its arrays are archived or pruned": 2})


def test_rows_come_back_when_no_draw_is_on_its_way(scene: Scene, judge: Judge) -> None:
    judge.break_for("x")
    first = explore(scene, "1x", "0x")
    explore(scene, "1", "0")
    process(scene, judge)
    with scene.database.transaction() as tx:
        draw = batches.Draw(scene.run.id, scene.trainer, step=1, batch_size=1, seed=scene.run.seed)
        drawn = draws.draw_groups(tx, draw, None, centered)
        given = in_a_thread(scene.database, lambda: retry(scene))
        wait_until_blocked(scene.database, given)
    assert drawn is not None
    assert given.result(WAIT_SECONDS).rows == 2
    scene.commit(drawn)
    judge.mend()
    process(scene, judge)
    assert scene.value("SELECT floor FROM trinity.floor_of(%s)", scene.run.id) == first
    assert scene.draw(step=2, size=1) is not None


def test_the_command_lists_them_gives_them_back_and_says_so(
    scene: Scene,
    judge: Judge,
    shared_database: Database,
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", shared_database.url)
    assert command_line("failed", "run").stdout == "No row of run 'run' has failed permanently.\n"
    judge.break_for("x")
    explore(scene, "1x", "0x")
    explore(scene, "1", "0", "0x")
    process(scene, judge)
    listed = command_line("failed", "run").stdout
    assert "float division by zero" in listed
    assert TOO_LATE in listed
    found = json.loads(command_line("failed", "run", "--json", "--last", "2").stdout)
    assert [one["obstacle"] for one in found] == [TOO_LATE, None]
    assert command_line("failed", "run", "--retry").stdout.splitlines() == [
        "Queued again: 2 rows of 1 groups; the processors of run 'run' judge them again.",
        f"Rows that stay dropped: 1; {TOO_LATE}.",
    ]
    again = json.loads(command_line("failed", "run", "--retry", "--json").stdout)
    assert again == {"run": "run", "rows": 0, "groups": 0, "left": {TOO_LATE: 1}}
    assert "There is no run 'rum'" in str(command_line("failed", "rum").code)
