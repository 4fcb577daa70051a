"""Which tasks come next: passes over tasksets that grow and shrink, shares, difficulty, a user's SELECT."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.support.rows import UNLIMITED, Scene, rolled_back, task
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Task
from trinity_db.errors import TrinityError
from trinity_db.store import groups, runs
from trinity_db.store.selection import TaskSelection
from trinity_db.store.user_query import OwnSelect


def shuffled(scene: Scene) -> TaskSelection:
    return replace(scene.selection, walk="shuffled")


def issue(scene: Scene, limit: int, selection: TaskSelection) -> list[str]:
    """The prompts of the next groups."""
    return [group.task["prompt"] for group in scene.claim(limit, selection=selection)]


def prompts(numbers: range) -> list[str]:
    return [f"task {number}" for number in numbers]


def test_a_claim_goes_on_in_the_next_pass_where_this_one_ends(scene: Scene) -> None:
    issued = issue(scene, 20, shuffled(scene))
    assert sorted(issued[:8]) == sorted(issued[8:16]) == prompts(range(8))
    assert issued[:8] != issued[8:16]
    assert scene.rows("SELECT issued, number, first, size, position FROM trinity.task_pass")[0][:4] == (
        20,
        2,
        0,
        8,
    )
    assert sorted(scene.values("SELECT issued FROM trinity.task_stat")) == [2] * 4 + [3] * 4


def test_a_claim_that_is_undone_moves_no_place(scene: Scene) -> None:
    first = issue(scene, 3, shuffled(scene))
    with rolled_back(scene.database) as tx:
        plan = groups.GroupPlan(UNLIMITED, shuffled(scene), 2)
        groups.claim(tx, scene.run.id, scene.explorer, plan, version=0, limit=3)
    assert sorted(first + issue(scene, 5, shuffled(scene))) == prompts(range(8))


def test_tasks_that_are_imported_during_a_pass_come_at_its_end(scene: Scene) -> None:
    begun = issue(scene, 3, shuffled(scene))
    open_writer(scene.database, "tasks", "tasks")([task(number) for number in range(4, 13)])
    rest = issue(scene, 5, shuffled(scene))
    assert sorted(begun + rest) == prompts(range(8))
    assert set(issue(scene, 5, shuffled(scene))) == set(prompts(range(8, 13)))
    assert scene.value("SELECT number FROM trinity.task_pass") == 0
    assert set(issue(scene, 13, shuffled(scene))) == set(prompts(range(13)))


@pytest.mark.parametrize("walk", ["shuffled", "sequential", "easy_to_hard"])
def test_tasks_that_are_deleted_are_skipped(scene: Scene, walk: str) -> None:
    with scene.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.task WHERE ordinal IN (0, 3, 7)")
    issued = issue(scene, 10, TaskSelection(scene.selection.weights, 0, walk))  # type: ignore[arg-type]
    assert sorted(issued[:5]) == sorted(issued[5:]) == ["task 1", "task 2", "task 4", "task 5", "task 6"]


def test_without_tasks_no_group_starts(scene: Scene) -> None:
    with scene.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.task")
    assert issue(scene, 3, shuffled(scene)) == []


def test_another_order_begins_another_pass(scene: Scene) -> None:
    issue(scene, 3, shuffled(scene))
    assert issue(scene, 8, scene.selection) == prompts(range(8))
    assert scene.rows("SELECT walk, number, issued FROM trinity.task_pass") == [("sequential", 1, 11)]


def test_easy_tasks_come_first_and_those_that_say_no_level_last(scene: Scene) -> None:
    hard = {"one": 3, "two": 0.5, "three": "level 4", "four": 3, "five": -1}
    records = [Task({"prompt": name, "level": value}) for name, value in hard.items()]
    open_writer(scene.database, "tasks", "levels")(records)
    with scene.database.transaction() as tx:
        levels = TaskSelection({runs.find_taskset(tx, "levels"): 1.0}, 0, "easy_to_hard")
    issued = [prompt for limit in (2, 1, 4) for prompt in issue(scene, limit, levels)]
    assert issued == ["five", "two", "one", "four", "three", "five", "two"]


def test_tasksets_have_their_shares_and_each_its_own_pass(scene: Scene) -> None:
    open_writer(scene.database, "tasks", "others")([Task({"prompt": f"other {n}"}) for n in range(3)])
    with scene.database.transaction() as tx:
        both = replace(
            shuffled(scene), weights={**scene.selection.weights, runs.find_taskset(tx, "others"): 0.25}
        )
    issued = [prompt for limit in (1, 9, 10, 20) for prompt in issue(scene, limit, both)]
    assert Counter(prompt.split()[0] for prompt in issued) == {"task": 32, "other": 8}
    assert Counter(Counter(prompt for prompt in issued if "task" in prompt).values()) == {4: 8}
    with scene.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.task_stat")
        tx.execute("DELETE FROM trinity.rollout_group")
        tx.execute("DELETE FROM trinity.task WHERE payload ->> 'prompt' LIKE 'other%'")
    assert Counter(prompt.split()[0] for prompt in issue(scene, 8, both)) == {"task": 8}


def test_tasks_near_the_target_come_more_often_and_none_never(scene: Scene) -> None:
    counts = {0: (0, 200), 1: (100, 100), 2: (200, 0)}  # solved and not: hard, right, easy
    for ordinal, (solved, missed) in counts.items():
        scene.rows(
            "INSERT INTO trinity.task_stat (run_id, task_id, scored, solved, alpha, beta)"
            " SELECT %s, id, %s, %s, %s, %s FROM trinity.task WHERE ordinal = %s RETURNING 1",
            scene.run.id, solved + missed, solved, solved + 1, missed + 1, ordinal,
        )  # fmt: skip
    issued = Counter(issue(scene, 1200, replace(shuffled(scene), target=0.5)))
    passes = scene.value("SELECT number FROM trinity.task_pass")
    for ordinal in (1, 3, 4, 5, 6, 7):
        assert issued[f"task {ordinal}"] in (passes, passes + 1), (
            "what fits, and what is not known, each time"
        )
    for ordinal in (0, 2):
        assert 0 < issued[f"task {ordinal}"] < passes / 5


def own(scene: Scene, text: str, seconds: float = 5.0) -> TaskSelection:
    return replace(scene.selection, own=OwnSelect(text, seconds, "explorer.tasks"))


def test_a_select_of_the_users_says_which_tasks_come(scene: Scene) -> None:
    newest = "SELECT id FROM trinity.task WHERE taskset_id = ANY(%(taskset_ids)s) ORDER BY ordinal DESC;"
    assert issue(scene, 3, own(scene, newest)) == ["task 7", "task 6", "task 5"]
    least = (
        "SELECT t.id FROM trinity.task t"
        " LEFT JOIN trinity.task_stat s ON s.task_id = t.id AND s.run_id = %(run_id)s"
        " WHERE payload ->> 'prompt' LIKE 'task%%' ORDER BY coalesce(s.issued, 0), t.id -- those issued least"
    )
    assert issue(scene, 3, own(scene, least)) == ["task 0", "task 1", "task 2"]
    twice = "SELECT id FROM trinity.task, generate_series(1, 2) WHERE ordinal = 4"
    assert issue(scene, 5, own(scene, twice)) == ["task 4", "task 4"], "a group for each row"
    assert issue(scene, 5, own(scene, "SELECT 1 WHERE false")) == []
    assert scene.value("SELECT issued FROM trinity.task_pass") == 8
    assert scene.value("SELECT sum(issued) FROM trinity.task_stat") == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT name FROM tasks", "the SELECT fails: relation \"tasks\" does not exist"),
        ("SELECT key FROM trinity.task", "must return ids of tasks, one whole number per row, and returns"),
        ("SELECT id, id FROM trinity.task", "must return ids of tasks"),
        ("SELECT true", "must return ids of tasks"),
        ("WITH d AS (DELETE FROM task RETURNING id) SELECT id FROM d", "the SELECT fails: WITH clause"),
        ("SELECT 1) AS c; DELETE FROM task; SELECT 1 FROM (SELECT 1", "cannot insert multiple commands"),
        ("SELECT set_config('transaction_read_only', 'off', false)", "cannot set transaction read-write"),
        ("SELECT 1 WHERE repeat('x', 2000000000) = ''", "the SELECT fails: requested length too large"),
        ("SELECT -5", "returns -5, which is not a task of the run's taskset"),
        ("SELECT id FROM trinity.task WHERE key LIKE '%x'", "write %% for a percent sign"),
        ("DELETE FROM trinity.task RETURNING id", "the SELECT fails: syntax error"),
        ("SELECT setval('trinity.task_id_seq', 1)", "cannot execute setval"),
        ("SELECT id FROM trinity.task, pg_sleep(9)", "took longer than 0.05 s"),
    ],
)  # fmt: skip
def test_a_select_that_does_something_else_is_refused(scene: Scene, text: str, message: str) -> None:
    with pytest.raises(TrinityError) as caught:
        issue(scene, 2, own(scene, text, seconds=0.05))
    assert "explorer.tasks: " in str(caught.value)
    assert message in str(caught.value)
    assert issue(scene, 1, scene.selection) == ["task 0"]
