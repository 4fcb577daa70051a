"""Rows judged again: what follows what, which rows are due, and workers that share them or die."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import Scene, attempt, rollout
from tests.support.steps import load, process
from tests.support.waiting import wait_until
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.insight import status
from trinity_db.processors.jobs.rescore import Rescorer, Work
from trinity_db.processors.lists.due_steps import MAX_CLAIMS
from trinity_db.processors.service import FAILURES_IN_A_ROW
from trinity_db.schema.states import WorkerRole
from trinity_db.store import rescore, rewards
from trinity_db.store.rewards import Judgement

EVENTS = "SELECT source, name, value, weight FROM trinity.reward_event ORDER BY id"
REWARDS = "SELECT reward FROM trinity.experience ORDER BY id"
FAILURES = "SELECT error FROM trinity.processing WHERE processor = 'rescore' AND error > '' ORDER BY id"
LEASES = "SELECT group_id, worker_id IS NOT NULL, attempt FROM trinity.rescore ORDER BY group_id"
PROGRESS = "SELECT reward, reward_now FROM trinity.policy_progress WHERE run = 'run' ORDER BY version"

Judge = Callable[..., Rescorer]


@pytest.fixture
def judge(scene: Scene, tmp_path: Path) -> Iterator[Judge]:
    """Rescorers by a step in a file; `body` is what the function returns of the response as a number."""
    made: list[Rescorer] = []

    def make(
        body: str = "number", *more: Any, is_whole: bool = True, run: bool = True, **work: Any
    ) -> Rescorer:
        steps = load("score", own(tmp_path, body), *more)
        role = Rescorer(scene.database, scene.run, Work(steps, is_whole, **work))
        role.worker_id = scene.new_worker(WorkerRole.PROCESS)
        role.start()
        made.append(role)
        if run:
            finish(role)
        return role

    yield make
    for role in made:
        role.release()


def own(folder: Path, body: str, name: str = "own") -> str:
    (folder / f"{name}.py").write_text(
        f"def judged(response):\n    number = float(response)\n    return {body}\n"
    )
    return f"{folder}/{name}.py:judged"


def live(scene: Scene, folder: Path, body: str = "number", *more: Any) -> None:
    """New rows are judged for the first time."""
    process(scene, {"score": [own(folder, body), *more], "group": {"min_size": 1}})


def finish(role: Rescorer) -> None:
    wait_until(lambda: not role.work() and role.is_done(), "all is judged")


def values(scene: Scene, source: str = "rescore") -> list[tuple[float, float]]:
    return [(value, weight) for of, _, value, weight in scene.rows(EVENTS) if of == source]


def counts(role: Rescorer) -> dict[str, int]:
    return {name: value for name, value in vars(role.counted).items() if value and name != "failed_groups"}


def test_what_a_newer_step_says_follows_what_the_older_one_said(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    scene.explore(2, rewards=(1.0, 0.25))
    live(scene, tmp_path)
    before = scene.rows(EVENTS)
    role = judge("number * 2")
    assert counts(role) == {"groups": 2, "rows": 4, "changed": 4}
    assert scene.values(REWARDS) == [2.0, 0.5] * 2
    assert scene.rows(EVENTS)[: len(before)] == before, "nothing is rewritten"
    assert values(scene) == [(2.0, 1.0), (0.5, 1.0)] * 2
    assert scene.rows("SELECT DISTINCT reward_mean, reward_count FROM trinity.rollout_group") == [(1.25, 2)]
    assert scene.rows(LEASES) == []
    assert scene.values("SELECT max(processor_version) FROM trinity.reward_event") == [2]


def test_no_row_is_judged_twice_by_one_version_of_a_step(scene: Scene, judge: Judge, tmp_path: Path) -> None:
    scene.explore(2)
    live(scene, tmp_path)
    assert judge("number").total == 0, "the run's processors judged them by this version"
    judge("-number")
    scene.explore(1)
    live(scene, tmp_path, "-number")
    assert judge("-number").total == 0
    scene.rows("DELETE FROM trinity.processing RETURNING id")
    assert judge("-number").total == 0, "the statements tell it where the records are pruned"
    again = judge("number")
    assert (again.list_version, counts(again)["rows"]) == (1, 6), "the earlier version counts again"
    assert scene.values(REWARDS) == [1.0, 0.0] * 3


def test_only_the_step_that_changed_is_asked(scene: Scene, judge: Judge, tmp_path: Path) -> None:
    scene.explore(1)
    other = own(tmp_path, "0.5", "other")
    live(scene, tmp_path, "number", other)
    judge("number + 1", other)
    assert [name for source, name, *_ in scene.rows(EVENTS) if source == "rescore"] == [
        f"{tmp_path}/own.py:judged"
    ] * 2
    assert scene.values(REWARDS) == [2.5, 1.5]


def test_rows_whose_arrays_are_gone_are_judged_by_steps_that_read_none(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    scene.explore(1, rewards=(1.0, 0.25))
    (tmp_path / "long.py").write_text("def long(token_ids, *, by=1):\n    return by * len(token_ids)\n")
    live(scene, tmp_path, "number", f"{tmp_path}/long.py:long")
    scene.rows("DELETE FROM trinity.payload RETURNING experience_id")
    assert counts(judge("number + 1", f"{tmp_path}/long.py:long")) == {"groups": 1, "rows": 2, "changed": 2}
    role = judge("number + 1", {"name": f"{tmp_path}/long.py:long", "by": 2})
    assert counts(role) == {"failed": 2}
    assert all("has no arrays" in error for error in scene.values(FAILURES))


def test_what_a_step_says_no_more_counts_no_more(scene: Scene, judge: Judge, tmp_path: Path) -> None:
    scene.explore(1, rewards=(1.0,))
    live(scene, tmp_path, "{'right': number, 'short': 0.5}")
    assert scene.values(REWARDS) == [1.5]
    role = judge("{'right': 3 * number}")
    assert scene.values(REWARDS) == [3.0], "parts of two versions do not add up"
    name = f"{tmp_path}/own.py:judged"
    assert scene.rows(EVENTS)[2:] == [
        ("rescore", f"{name}/right", 3.0, 1.0),
        ("rescore", f"{name}/short", 0.5, 0.0),
    ]
    assert counts(role) == {"groups": 1, "rows": 1, "changed": 1}
    assert judge("{'right': 3 * number}").total == 0


def test_a_step_that_the_run_has_no_more_is_withdrawn_without_asking_any(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    scene.explore(1, rewards=(1.0,))
    other = own(tmp_path, "0.5", "other")
    live(scene, tmp_path, "number", other)
    judge("number", is_whole=False)
    assert scene.values(REWARDS) == [1.5], "asked alone, a step replaces itself alone"
    judge("number")
    assert scene.values(REWARDS) == [1.0]
    assert [(name, weight) for source, name, _, weight in scene.rows(EVENTS) if source == "rescore"] == [
        (other, 0.0)
    ]


def test_a_second_judge_stands_beside_the_reward(scene: Scene, judge: Judge, tmp_path: Path) -> None:
    scene.explore(1)
    live(scene, tmp_path)
    steps = load("score", {"name": own(tmp_path, "7", "other"), "weight": 0.0})
    other = Rescorer(scene.database, scene.run, Work(steps, is_whole=False))
    other.worker_id = scene.new_worker(WorkerRole.PROCESS)
    other.start()
    finish(other)
    assert counts(other) == {"groups": 1, "rows": 2}, "no reward changed"
    assert values(scene) == [(7.0, 0.0)] * 2
    assert scene.values(REWARDS) == [1.0, 0.0]
    assert judge("number").total == 0, "beside the reward it is in no one's way"


def test_what_people_said_stays(scene: Scene, judge: Judge, tmp_path: Path) -> None:
    scene.explore(1)
    live(scene, tmp_path)
    first, second = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    name = f"{tmp_path}/own.py:judged"
    with scene.database.transaction() as tx:
        rewards.judge(
            tx,
            [
                Judgement(first, 0.75, name, "human", "ann", 1.0),
                Judgement(second, 10.0, "human", "human", "ann", 1.0),
            ],
        )
    role = judge("number + 2")
    assert scene.values(REWARDS) == [0.75, 12.0]
    assert counts(role) == {"groups": 1, "rows": 2, "changed": 1, "kept": 1}
    assert len(values(scene)) == 1, "under a corrected name nothing is written"


def said_of_rewards(scene: Scene) -> list[tuple[float, float]]:
    """What `trinity-db status` says of each version."""
    return [(one["reward"], one["reward_now"]) for one in status.detail(scene.database, "run")["rewards"]]


def test_status_says_what_the_view_says_whatever_became_of_a_row(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    scene.explore(3)
    live(scene, tmp_path)
    scene.train(1, 1)
    scene.train(2, 1)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.batch_item SET reward = 8 WHERE batch_id = 1")
    judge("number + 4")
    scene.explore(1)
    live(scene, tmp_path)
    assert said_of_rewards(scene) == scene.rows(PROGRESS)
    assert said_of_rewards(scene)[0][0] == (2 * 8 + 3 * (1.0 + 0.0)) / 8
    scene.reopen(0)
    assert said_of_rewards(scene) == scene.rows(PROGRESS)
    assert said_of_rewards(scene)[0][0] == 0.5


def test_batches_and_published_curves_keep_the_rewards_of_training(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    scene.explore(2)
    live(scene, tmp_path)
    scene.train(1, 1)
    curve = scene.rows(PROGRESS)
    used = "SELECT reward, advantage FROM trinity.batch_item ORDER BY batch_id, ordinal"
    before = scene.rows(used)
    judge("number + 4")
    assert scene.rows(used) == before
    assert curve == [(0.5, 0.5)]
    assert scene.rows(PROGRESS) == [(0.5, 4.5)], "used or not, rows count as they were"
    assert said_of_rewards(scene) == [(0.5, 4.5)]
    assert scene.values("SELECT reward_now FROM trinity.reward_change_view ORDER BY 1") == [4.0, 5.0]
    scene.train(2, 1)
    assert scene.rows(PROGRESS) == [(2.5, 4.5)], "two rows were trained with the new rewards"
    judge("number + 8")
    assert scene.rows(PROGRESS) == [(2.5, 8.5)]


def test_the_group_of_a_row_that_fails_keeps_its_rewards_and_is_tried_again(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    scene.explore(1, rewards=(1.0, 3.0))
    scene.explore(1, rewards=(2.0, 4.0))
    live(scene, tmp_path)
    role = judge("number / (number - 1)")
    assert scene.values(REWARDS) == [1.0, 3.0, 2.0, pytest.approx(4 / 3)]
    assert counts(role) == {"groups": 1, "rows": 2, "changed": 1, "failed": 1}
    [error] = scene.values(FAILURES)
    assert "ZeroDivisionError" in error
    assert "own.py, line 3" in error
    assert scene.values("SELECT DISTINCT state::text FROM trinity.experience") == ["ready"]
    assert judge("number / (number - 1)").total == 2, "the whole group is asked again"
    assert len(scene.values(FAILURES)) == 2


def test_a_step_that_drops_a_row_drops_nothing_that_is_stored(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    scene.explore(1)
    live(scene, tmp_path)
    judge("__import__('trinity_db').processors.lists.step.Drop('bad')")
    assert scene.values(REWARDS) == [1.0, 0.0]
    assert (
        scene.values(FAILURES)
        == [f"{tmp_path}/own.py:judged wants to drop it (bad), and rescore drops no rows"] * 2
    )


def test_steps_that_fail_for_every_row_end_it(scene: Scene, judge: Judge, tmp_path: Path) -> None:
    [group] = scene.claim(1, group_size=FAILURES_IN_A_ROW)
    scene.write([rollout(group, member) for member in range(FAILURES_IN_A_ROW)])
    live(scene, tmp_path)
    with pytest.raises(
        TrinityError, match=f"{FAILURES_IN_A_ROW} rows failed in a row, the last with: .*TypeError"
    ):
        judge("number + 'a'")


def test_two_workers_share_the_groups_and_what_a_dead_one_held_is_judged_once(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    for _ in range(4):
        scene.explore(2)
    live(scene, tmp_path)
    first, second = (judge("number + 1", run=False, rate=4.0) for _ in range(2))
    held = first._claim()
    assert [len(group.due) for group in held] == [2, 2]
    second._rest = lambda rows, seconds: None  # type: ignore[method-assign]
    while second.work():
        pass
    assert not second.is_done(), "it waits for the groups that the first holds"
    assert len(values(scene)) == 12
    scene.lose(first.worker_id)
    finish(second)
    assert len(values(scene)) == 16
    first._judge(held)
    assert first.counted.refused == 2
    assert len(values(scene)) == 16, "what comes too late changes nothing"
    assert scene.rows(LEASES) == []


def test_a_group_that_kills_its_judge_is_claimed_alone_and_fails_in_the_end(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    scene.explore(3)
    live(scene, tmp_path)
    culprit, *_ = scene.values("SELECT id FROM trinity.rollout_group ORDER BY id")
    for number in range(MAX_CLAIMS):
        dying = judge("number + 1", run=False)
        with scene.database.transaction() as tx:
            assert rescore.claim(tx, dying._plan, dying.worker_id, [culprit], 1)
        scene.lose(dying.worker_id)
        assert scene.rows(LEASES) == [(culprit, False, number + 1)]
    role = judge("number + 1")
    assert counts(role) == {"groups": 2, "rows": 4, "changed": 4, "failed": 2}
    assert scene.values(FAILURES) == ["3 times in a row rescore ended before its verdict"] * 2
    assert scene.rows(LEASES) == []


def test_rows_that_are_judged_for_the_first_time_and_evaluations_are_left_alone(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    scene.evaluate(1)
    scene.explore(1)
    live(scene, tmp_path)
    scene.explore(1)
    scene.claim(1)
    assert judge("number + 1").total == 2
    assert scene.values("SELECT max(id) FROM trinity.rollout_group WHERE state = 'open'")


def test_each_step_of_a_rollout_has_its_own_statement(scene: Scene, judge: Judge, tmp_path: Path) -> None:
    [group] = scene.claim(1, group_size=1)
    scene.write([attempt(group, 0, ["1", "2"])])
    live(scene, tmp_path)
    judge("number * 10")
    assert scene.values(REWARDS) == [10.0, 20.0]
    assert scene.value("SELECT count(*) FROM trinity.reward_event WHERE experience_id IS NOT NULL") == 4


def test_a_judge_that_waits_is_asked_about_many_rows_at_once(
    scene: Scene, judge: Judge, tmp_path: Path
) -> None:
    for _ in range(4):
        scene.explore(2)
    live(scene, tmp_path)
    (tmp_path / "slow.py").write_text(
        "import asyncio\n\nactive = most = 0\n\nasync def judged(id, response):\n"
        "    global active, most\n    active += 1\n    most = max(most, active)\n"
        "    await asyncio.sleep(0.01)\n    active -= 1\n    return float(response) + 5\n"
    )
    slow: Mapping[str, Any] = {"name": f"{tmp_path}/slow.py:judged", "limits": {"in_flight": 4}}
    role = judge("number", slow)
    assert scene.values(REWARDS) == [7.0, 5.0] * 8
    assert role._work.steps[1].function.__globals__["most"] == 4
    assert counts(role) == {"groups": 8, "rows": 16, "changed": 16}


def test_a_selection_takes_whole_groups(scene: Scene, judge: Judge, tmp_path: Path) -> None:
    scene.explore(1)
    live(scene, tmp_path)
    scene.train(1, 1)
    scene.publish(1, step=1)
    scene.explore(1, rewards=(5.0, 6.0), version=1)
    live(scene, tmp_path)
    old, new = scene.values("SELECT id FROM trinity.rollout_group ORDER BY id")

    def select(**selection: Any) -> list[int]:
        with scene.database.transaction(read_only=True) as tx:
            return rescore.select(tx, scene.run.name, rescore.RescoreSelection(**selection))

    assert select(versions=[1]) == select(where="reward > 5.5") == [new]
    assert select(where="prompt LIKE 'p%' AND reward < 1") == [old]
    assert select(tasksets=["tasks"]) == [old, new]
    assert select(tasksets=["others"]) == select(versions=[0], where="reward > 5") == []
    assert judge("number + 1", among=[new]).total == 2
    for condition in ("rewrd > 1", "true); DELETE FROM trinity.run; SELECT (true", "reward > 'a'"):
        with pytest.raises(ConfigError, match=r"^--where "):
            select(where=condition)


def test_the_reward_is_the_sum_of_its_parts(scene: Scene, judge: Judge, tmp_path: Path) -> None:
    scene.explore(2)
    live(scene, tmp_path, "{'a': number, 'b': 2.0}", {"name": "position_match", "weight": 0.5})
    judge("{'a': 3.0, 'c': number}")
    parts = "SELECT sum(value * weight) FROM trinity.reward_part_view GROUP BY experience_id ORDER BY"
    assert scene.values(f"{parts} experience_id") == scene.values(REWARDS)
