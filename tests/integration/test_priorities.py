"""Priorities that steps compute: each measure against a table by hand, what follows a change, and draws."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.replays import correct, differences, drawn
from tests.support.rows import Scene
from tests.support.steps import processors
from trinity_db.errors import ConfigError
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.store import failures, priorities
from trinity_db.store.rewards import MAX_REWARD
from trinity_db.store.samplers import Sampler

PRIORITIZED = Sampler("prioritized", alpha=1.0, beta=0.0)
GROUPS = "SELECT priority FROM trinity.rollout_group ORDER BY id"
DRAWN = (
    "SELECT min(e.group_id) FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
    " WHERE i.batch_id = %s"
)
ROWS = "SELECT priority FROM trinity.experience ORDER BY id"
SCORE: dict[str, Any] = {"clean": [], "score": []}


def compute(scene: Scene, *steps: Any, **more: Any) -> None:
    """Compute what is due."""
    role = processors(scene, {**SCORE, "priority": list(steps), **more}, drain=True)
    while role.work():
        pass
    assert role.is_done()


def explore(scene: Scene, *rewards: tuple[float, ...], version: int = 0) -> None:
    """Ready groups with these rewards, in a run whose priorities are computed."""
    with scene.database.transaction() as tx:
        computed = '{"priority": [{"name": "x"}]}'
        tx.execute("UPDATE trinity.run SET config = jsonb_set(config, '{processors}', %s)", [computed])
    for of_group in rewards:
        scene.make_ready(1, of_group, version)


def own(folder: Path, code: str) -> str:
    file = folder / "mine.py"
    file.write_text(code)
    return f"{file}:mine"


def test_the_spread_of_rewards(scene: Scene) -> None:
    explore(scene, (1.0, 0.0), (1.0, 1.0), (0.0, 0.5, 1.0))
    compute(scene, "reward_spread")
    by_hand = [math.sqrt(0.5), 0.01, 0.5]
    assert scene.values(GROUPS) == pytest.approx(by_hand)
    assert scene.values(ROWS) == pytest.approx([by_hand[0]] * 2 + [by_hand[1]] * 2 + [by_hand[2]] * 3)


def test_the_size_of_advantages(scene: Scene) -> None:
    explore(scene, (1.0, 0.0, 0.0, 0.0), (0.25, 0.75), (1.0, 1.0))
    compute(scene, "advantage_size")
    assert scene.values(ROWS) == pytest.approx([0.75, 0.25, 0.25, 0.25, 0.25, 0.25, 0.01, 0.01])
    assert scene.values(GROUPS) == pytest.approx([0.375, 0.25, 0.01])


def test_tasks_that_were_attempted_seldom_are_new(scene: Scene) -> None:
    explore(scene, *[(1.0, 0.0)] * 10)  # of 8 tasks in turn, so that two have a second group
    compute(scene, "novelty")
    assert scene.values(GROUPS) == pytest.approx([1.0] * 8 + [1 / math.sqrt(2)] * 2)


def test_rows_age_with_each_publication(scene: Scene) -> None:
    explore(scene, *[(1.0, 0.0)] * 3)
    for version in (1, 2):
        scene.train(step=version, size=1)
        scene.publish(version, step=version)
        if version == 1:
            explore(scene, (1.0, 0.0), version=1)
        compute(scene, {"name": "age", "half_life": 2})
    by_hand = {3: 0.5, 4: 0.5**0.5}  # the first two are trained
    found = scene.rows("SELECT version, priority FROM (SELECT row_number() OVER (ORDER BY id) AS version, *"
                       " FROM trinity.rollout_group) g WHERE state = 'ready'")  # fmt: skip
    assert dict(found) == pytest.approx(by_hand)
    computed = "SELECT priority FROM trinity.group_priority WHERE group_id = %s ORDER BY id"
    third = scene.values("SELECT id FROM trinity.rollout_group ORDER BY id")[2]
    assert scene.values(computed, third) == pytest.approx([0.5**0.5, 0.5]), "again at each publication"


def test_measures_are_multiplied_each_to_the_power_of_its_weight(scene: Scene, tmp_path: Path) -> None:
    mine = own(tmp_path, "def mine(response, *, shift):\n    return float(response) + shift\n")
    explore(scene, (1.0, 3.0))
    compute(scene, {"name": "advantage_size", "weight": 2}, {"name": mine, "shift": 1})
    assert scene.values(ROWS) == pytest.approx([1.0**2 * 2, 1.0**2 * 4])
    assert scene.values(GROUPS) == pytest.approx([3.0])


def test_a_reward_that_changes_makes_the_priority_due_again(scene: Scene) -> None:
    explore(scene, (1.0, 0.0), (1.0, 1.0))
    compute(scene, "advantage_size")
    assert scene.values(GROUPS) == pytest.approx([0.5, 0.01])
    correct(scene, scene.value("SELECT max(id) FROM trinity.rollout"), 5.0)
    with scene.database.transaction() as tx:
        assert priorities.count_due(tx, scene.run.id) == 1
    compute(scene, "advantage_size")
    assert scene.values(GROUPS) == pytest.approx([0.5, 2.0])
    assert scene.values("SELECT count(*) FROM trinity.group_priority") == [3], "what it was is kept"


def test_a_group_is_not_drawn_before_its_priority_is_known(scene: Scene) -> None:
    explore(scene, (1.0, 0.0), (1.0, 1.0))
    assert scene.values(GROUPS) == [0.0, 0.0]
    assert scene.draw(step=1, size=1, sampler=PRIORITIZED) is None
    compute(scene, "advantage_size")
    assert drawn(scene.draw(step=1, size=1, sampler=PRIORITIZED)).id


def test_draws_follow_the_measure_and_can_be_run_again_after_it_changed(scene: Scene) -> None:
    explore(scene, (4.0, 0.0), (1.0, 0.0), (1.0, 1.0))
    compute(scene, "advantage_size")
    shares: Counter[int] = Counter()
    for step in range(1, 201):
        batch = drawn(scene.draw(step, size=1, sampler=PRIORITIZED))
        shares[scene.value(DRAWN, batch.id)] += 1
        scene.reopen(version=0)
    first, second, third = (
        shares[id] / 200 for id in scene.values("SELECT id FROM trinity.rollout_group ORDER BY id")
    )
    total = 2.0 + 0.5 + 0.01
    assert first == pytest.approx(2.0 / total, abs=0.1)
    assert second == pytest.approx(0.5 / total, abs=0.1)
    assert third < 0.04
    drawn(scene.draw(201, size=2, sampler=PRIORITIZED))
    correct(scene, scene.value("SELECT max(id) FROM trinity.rollout"), 50.0)
    compute(scene, "advantage_size")
    assert scene.values(GROUPS)[-1] == pytest.approx(24.5)
    assert differences(scene) == []


def test_a_measure_that_fails_is_listed_and_no_zero(scene: Scene, tmp_path: Path) -> None:
    file = own(tmp_path, "def mine(response):\n    return 1 / (float(response) - 3)\n")
    explore(scene, (5.0, 5.0))
    compute(scene, file)
    assert scene.values(GROUPS) == [0.5]
    explore(scene, (3.0, 5.0))
    compute(scene, file, max_attempts=2)
    [listed] = scene.rows("SELECT stage, step, error, experience_id, obstacle FROM trinity.failure_view")
    assert listed[:2] == ("priority", file)
    assert "ZeroDivisionError" in listed[2]
    assert "mine.py" in listed[2]
    assert listed[3:] == (scene.values("SELECT id FROM trinity.experience ORDER BY id")[2], None)
    own(tmp_path, "def mine(response):\n    return float(response)\n")
    assert failures.retry(scene.database, scene.run).rows == 1
    compute(scene, file)
    assert scene.values(GROUPS) == [0.5, 4.0]
    assert scene.values("SELECT count(*) FROM trinity.failure_view") == [0]


def test_a_group_with_a_priority_keeps_it_when_a_measure_fails(scene: Scene, tmp_path: Path) -> None:
    file = own(tmp_path, "def mine(reward):\n    return 1 / (5 - reward)\n")
    explore(scene, (1.0, 3.0))
    compute(scene, file)
    before = scene.values(GROUPS)
    correct(scene, scene.value("SELECT max(id) FROM trinity.rollout"), 5.0)
    compute(scene, file, max_attempts=1)
    assert scene.values(GROUPS) == before == pytest.approx([(1 / 4 + 1 / 2) / 2])
    assert scene.values("SELECT stage FROM trinity.failure_view") == ["priority"]


def test_what_is_no_priority_fails(scene: Scene, tmp_path: Path) -> None:
    results = "[-1, float('nan'), 'much', None]"
    explore(scene, *[(float(number),) * 2 for number in range(4)])
    mine = own(tmp_path, f"def mine(response):\n    return {results}[int(float(response))]\n")
    compute(scene, mine, max_attempts=1)
    assert scene.values(GROUPS) == [0.0] * 4
    errors = scene.values("SELECT error FROM trinity.failure_view")
    assert len(errors) == 4
    assert all("returned" in error for error in errors)


def test_the_power_of_a_large_measure_is_the_largest_priority(scene: Scene, tmp_path: Path) -> None:
    explore(scene, (0.0, 5000.0))
    mine = own(tmp_path, "def mine(response):\n    return 5000.0\n")
    nothing = "def nothing(response):\n    return float(response != '0.0')\n"
    (tmp_path / "nothing.py").write_text(nothing)
    compute(scene, {"name": mine, "weight": 100}, f"{tmp_path}/nothing.py:nothing")
    assert sorted(scene.values(ROWS)) == [0.0, MAX_REWARD]


def test_a_processor_that_dies_loses_no_priority(scene: Scene) -> None:
    explore(scene, (1.0, 0.0), (1.0, 1.0))
    with scene.database.transaction() as tx:
        assert len(priorities.take(tx, scene.run.id, (), 10, seconds=30).due) == 2
        assert priorities.take(tx, scene.run.id, (), 10, seconds=30).due == ()
        tx.execute("UPDATE trinity.group_priority SET taken_at = now() - interval '31 seconds'")
    compute(scene, "advantage_size")
    assert scene.values(GROUPS) == pytest.approx([0.5, 0.01])


def test_a_later_answer_stands_even_if_an_earlier_one_comes_after_it(scene: Scene) -> None:
    explore(scene, (1.0, 0.0))
    with scene.database.transaction() as tx:
        slow = priorities.take(tx, scene.run.id, (), 10, seconds=30)
    correct(scene, scene.value("SELECT max(id) FROM trinity.rollout"), 5.0)
    role = processors(scene, {**SCORE, "priority": ["advantage_size"]}, drain=True)
    while role.work():
        pass
    assert not role.is_done(), "the other one is under way"
    rows = {row["id"]: 0.125 for row in slow.rows}
    with scene.database.transaction() as tx:
        found = priorities.ComputedPriorities({slow.due[0].group_id: rows}, [])
        priorities.finish(tx, scene.run.id, slow, found, 1, 3)
    assert scene.values(GROUPS) == pytest.approx([2.0])
    assert role.is_done()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"priority": ["reward_spread"], "group": {"priority": "reward_std"}}, "remove group.priority"),
        ({"priority": ["novelti"]}, "novelty"),
        ({"priority": [{"name": "age", "half_life": 0}]}, "half_life"),
        ({"priority": [{"name": "novelty", "weight": 0}]}, "greater than 0"),
    ],
)
def test_a_wrong_list_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProcessorsConfig.model_validate(config)


@pytest.mark.parametrize(
    ("processor", "code", "message"),
    [
        ("score", "def mine(group_mean):\n    return 1.0\n", "only steps of priority and synthesis read it"),
        ("priority", "def mine(logprobs):\n    return 1.0\n", "arrays are archived"),
        ("priority", "async def mine(response):\n    return 1.0\n", "use def"),
    ],
)
def test_a_step_that_reads_what_is_not_there_is_refused(
    scene: Scene, tmp_path: Path, processor: str, code: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        processors(scene, {**SCORE, processor: [own(tmp_path, code)]})
