"""Attempts of several steps, and greedy ones: written, judged, compared, trained on, drawn again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import setup_of
from tests.support.recipes import recipe
from tests.support.replays import differences
from tests.support.rows import Scene, attempt, claim_rows, finish_rows, members, payload, rollout, with_step
from tests.support.steps import process
from trinity_db.errors import TrinityError
from trinity_db.schema.states import Outcome, WorkerRole
from trinity_db.store import batches, draws, groups, processing, rewards, samplers
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.service import Trainer

STEPS = """
SELECT m.ordinal, e.step, e.state::text, x.prompt, x.response, x.state, p.num_tokens
FROM trinity.experience e
JOIN trinity.rollout m ON m.id = e.rollout_id
JOIN trinity.experience_text x ON x.experience_id = e.id
JOIN trinity.payload p ON p.experience_id = e.id
ORDER BY m.id, e.step
"""
ITEMS = """
SELECT m.ordinal, e.step, i.reward, i.advantage, i.weight
FROM trinity.batch_item i
JOIN trinity.experience e ON e.id = i.experience_id
JOIN trinity.rollout m ON m.id = e.rollout_id
ORDER BY e.group_id, m.ordinal, e.step
"""
DROPS = 'SELECT stage, reason, count(*) FROM trinity."drop" GROUP BY stage, reason ORDER BY reason'


def explore(scene: Scene, made: list[groups.Rollout], greedy: bool = False) -> list[groups.ClaimedGroup]:
    """One group of two, with these members."""
    claimed = scene.claim(1, greedy=greedy)
    assert scene.write([replace(one, group=claimed[0]) for one in made]) == 0
    return claimed


def nowhere() -> groups.ClaimedGroup:
    return groups.ClaimedGroup(0, 1, {}, [])


def draw(scene: Scene, algorithm: AlgorithmConfig, size: int = 1) -> list[tuple[Any, ...]]:
    """Member, step, reward, advantage and weight of each row that is drawn for an algorithm's first step."""
    compared = create(algorithm)
    with scene.database.transaction() as tx:
        asked = batches.Draw(scene.run.id, scene.trainer, step=1, batch_size=size, seed=0)
        assert draws.draw_groups(tx, asked, None, compared.advantages, compares=compared.compares) is not None
    return scene.rows(ITEMS)


def test_the_steps_of_an_attempt_are_written_together_and_are_one_member_of_its_group(scene: Scene) -> None:
    made = [
        attempt(nowhere(), 0, ["go north", "take key\x00", "stop"], ["hall", None, "cell\x00"]),
        attempt(nowhere(), 1, ["stop"], ["hall"]),
    ]
    explore(scene, made)
    assert scene.rows(STEPS) == [
        (0, 0, "raw", "prompt 0", "go north", "hall", 4),
        (0, 1, "raw", "prompt 1", "take key", None, 5),
        (0, 2, "raw", "prompt 2", "stop", "cell", 6),
        (1, 0, "raw", "prompt 0", "stop", "hall", 4),
    ]
    assert scene.rows("SELECT state::text, expected, arrived FROM trinity.rollout_group") == [
        ("complete", 2, 2)
    ]
    shown = "SELECT member, step, greedy FROM trinity.experience_view ORDER BY member, step"
    assert scene.rows(shown) == [(0, 0, False), (0, 1, False), (0, 2, False), (1, 0, False)]


def test_steps_that_are_written_again_are_left_alone(scene: Scene) -> None:
    [group] = scene.claim(1)
    made = [attempt(group, 0, ["1", "2"], rewards=[0.5, None]), rollout(group, 1)]
    assert scene.write(made) == scene.write(made) == 0
    assert scene.values("SELECT step FROM trinity.experience ORDER BY rollout_id, step") == [0, 1, 0]
    assert scene.values("SELECT value FROM trinity.reward_event ORDER BY id") == [0.5, 0.0]
    assert len(scene.rows(STEPS)) == 3


def test_steps_that_come_too_late_are_kept_and_dropped(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.lose(scene.explorer)
    assert scene.write([attempt(group, 0, ["1", "2"], rewards=[1.0, 1.0])]) == 1
    assert scene.values("SELECT state::text FROM trinity.experience") == ["dropped"] * 2
    assert scene.rows(DROPS) == [("explore", "late", 2)]


def test_a_group_is_as_old_as_the_oldest_of_its_steps(scene: Scene) -> None:
    [group] = scene.claim(1)
    older = attempt(group, 0, ["1", "2"], version=5)
    steps = [older.steps[0], replace(older.steps[1], payload=payload((3, 6)))]
    scene.write([replace(older, steps=steps), rollout(group, 1, versions=(4, 4))])
    assert scene.values("SELECT version_min FROM trinity.rollout_group") == [3]
    versions = "SELECT version_min, version_max FROM trinity.rollout ORDER BY ordinal"
    assert scene.rows(versions) == [(3, 6), (4, 4)]
    versions = "SELECT version_min, version_max FROM trinity.experience ORDER BY rollout_id, step"
    assert scene.rows(versions) == [(5, 5), (3, 6), (4, 4)]


def test_what_a_workflow_says_a_step_earned_is_its_reward_and_what_functions_say_is_added(
    scene: Scene,
) -> None:
    [group] = scene.claim(1)
    scene.write(
        [attempt(group, 0, ["1", "2"], rewards=[0.5, None]), attempt(group, 1, ["4"], rewards=[-1.0])]
    )
    rewards_of_steps = "SELECT reward FROM trinity.experience ORDER BY rollout_id, step"
    assert scene.values(rewards_of_steps) == [0.5, 0.0, -1.0]
    assert scene.rows("SELECT DISTINCT source, name FROM trinity.reward_event") == [("explore", "workflow")]
    scene.process()
    assert scene.values(rewards_of_steps) == [1.5, 2.0, 3.0]
    # Of the group what its attempts earned in all counts: 3.5 and 3.
    assert scene.rows("SELECT reward_count, reward_mean, reward_variance FROM trinity.rollout_group") == [
        (2, 3.25, 0.125)
    ]


def test_rewards_by_name_are_events_of_these_names_and_add_up_also_when_they_are_written_again(
    scene: Scene,
) -> None:
    [group] = scene.claim(1)
    made = [
        attempt(group, 0, ["1", "2"], rewards=[{"right": 1.0, "short": -0.25}, None]),
        attempt(group, 1, ["4"], rewards=[{"right": 2.0}]),
    ]
    scene.write(made)
    scene.write(made)
    assert scene.values("SELECT reward FROM trinity.experience ORDER BY rollout_id, step") == [0.75, 0.0, 2.0]
    events = (
        "SELECT v.source, v.name, v.value FROM trinity.reward_event v"
        " JOIN trinity.experience e ON e.id = v.experience_id ORDER BY e.rollout_id, e.step, v.name"
    )
    assert scene.rows(events) == [
        ("explore", "right", 1.0),
        ("explore", "short", -0.25),
        ("explore", "right", 0.0),
        ("explore", "short", 0.0),
        ("explore", "right", 2.0),
    ]
    # What is said later under one of the names takes its place, and the sum follows.
    [first, *_] = scene.values("SELECT id FROM trinity.experience ORDER BY rollout_id, step")
    with scene.database.transaction() as tx:
        rewards.judge(tx, [rewards.Judgement(first, 3.0, "short", "human", None, 1.0)])
    scene.write(made)
    assert scene.values("SELECT reward FROM trinity.experience ORDER BY rollout_id, step") == [4.0, 0.0, 2.0]


REWARD = """
def place(response, task, *, step: int, last_step: int) -> float:
    return 10 * step + last_step
"""


def test_each_step_is_judged_by_itself_and_a_function_may_ask_which_it_is(
    scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(REWARD)
    [group] = scene.claim(1)
    scene.write([attempt(group, 0, ["1", "2"]), rollout(group, 1)])
    scene.judge(processing.CLEAN)
    process(scene, {"score": [f"{tmp_path}/mine.py:place"]})
    assert scene.values("SELECT reward FROM trinity.experience ORDER BY rollout_id, step") == [1.0, 11.0, 0.0]
    assert scene.values("SELECT rollout_id IS NULL FROM trinity.reward_event ORDER BY value") == [
        False,
        True,
        True,
    ]


def test_what_people_say_of_a_step_is_said_of_no_other(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.write([attempt(group, 0, ["1", "2"]), rollout(group, 1)])
    scene.process()
    first, second, other = scene.values("SELECT id FROM trinity.experience ORDER BY rollout_id, step")
    with scene.database.transaction() as tx:
        judged = [rewards.Judgement(id, 7.0, "taste", "human", None, 1.0) for id in (second, other)]
        rewards.judge(tx, judged)
    assert scene.values("SELECT reward FROM trinity.experience ORDER BY rollout_id, step") == [1.0, 9.0, 8.0]
    about = "SELECT experience_id FROM trinity.reward_event WHERE name = 'taste' ORDER BY id"
    assert scene.values(about) == [second, None]
    assert first < second
    # The attempts earned 10 and 8.
    assert scene.rows("SELECT reward_mean, reward_variance FROM trinity.rollout_group") == [(9.0, 2.0)]


def test_an_attempt_that_loses_a_step_is_lost_and_groups_count_attempts(scene: Scene) -> None:
    [group] = scene.claim(1, group_size=3)
    scene.write([attempt(group, member, ["1", "2"]) for member in group.members])
    [lost, *others] = claim_rows(scene)
    finish_rows(scene, [processing.StepVerdict(lost, 1, Outcome.DROPPED, "long")])
    finish_rows(scene, [processing.StepVerdict(id, 1) for id in others])
    scene.judge(processing.SCORE)
    assert scene.settle(min_group_size=3) == 1
    assert scene.rows(DROPS) == [
        ("group", "group_too_small", 5),
        ("clean", "long", 1),
        ("group", "partial_attempt", 1),
    ]
    # (Four members that were left, and the group.)
    assert scene.values("SELECT state::text FROM trinity.rollout_group") == ["dropped"]


def test_no_source_has_to_judge_what_is_left_of_attempts_that_lost_a_step(scene: Scene) -> None:
    asked = scene.beside("asked", {"requires_reward": "human"})
    small, large = asked.claim(2, group_size=4)
    asked.write([attempt(group, n, ["1", "2", "3"]) for group in (small, large) for n in group.members])
    lost = asked.values(
        "SELECT e.id FROM trinity.experience e JOIN trinity.rollout m ON m.id = e.rollout_id"
        " WHERE e.step = 0 AND (m.group_id = %s OR m.ordinal = 0) AND m.ordinal < 3",
        small.id,
    )
    assert len(lost) == 4
    verdicts = {id: processing.StepVerdict(id, 1, Outcome.DROPPED, "long") for id in lost}
    finish_rows(asked, [verdicts.get(id, processing.StepVerdict(id, 1)) for id in claim_rows(asked)])
    asked.judge(processing.SCORE)
    states = "SELECT state::text FROM trinity.rollout_group ORDER BY id"
    assert asked.settle(requires_reward="human") == 1
    assert asked.values(states) == ["dropped", "complete"]
    awaited = asked.values("SELECT experience_id FROM trinity.awaited_reward_view WHERE run = 'asked'")
    assert len(awaited) == 9, "the steps of the three attempts that are whole"
    with asked.database.transaction() as tx:
        rewards.judge(tx, [rewards.Judgement(id, 1.0, "human", "human", None, 1.0) for id in awaited])
    assert asked.settle(requires_reward="human") == 1
    assert asked.values(states) == ["dropped", "ready"]


def test_rewards_are_equal_where_attempts_earned_the_same(scene: Scene) -> None:
    [same, other] = scene.claim(2)
    scene.write([attempt(same, 0, ["0", "1"]), attempt(same, 1, ["0.5", "0", "0.5"])])
    scene.write([attempt(other, 0, ["0", "1"]), attempt(other, 1, ["0", "0"])])
    scene.judge(processing.CLEAN)
    scene.judge(processing.SCORE)
    assert scene.settle(drop_equal_rewards=True) == 2
    states = "SELECT state::text, reward_variance FROM trinity.rollout_group ORDER BY id"
    assert scene.rows(states) == [("dropped", 0.0), ("ready", 0.5)]


def test_chances_that_follow_from_what_attempts_earned_are_found_again(scene: Scene) -> None:
    with scene.database.transaction() as tx:
        priority = '{"processors": {"group": {"priority": "reward_std"}}}'
        tx.execute("UPDATE trinity.run SET config = config || %s::jsonb", [priority])
    for number, group in enumerate(scene.claim(3)):
        scene.write([attempt(group, 0, ["0", "1", str(number)]), attempt(group, 1, ["1", "1"])])
    scene.process()
    priorities = scene.values("SELECT priority FROM trinity.rollout_group ORDER BY id")
    assert priorities == [np.sqrt(0.5), 0.01, np.sqrt(0.5)]
    assert scene.draw(step=1, size=2, sampler=samplers.Sampler("prioritized", alpha=1.0, beta=0.5))
    assert differences(scene) == []


def test_the_first_steps_of_attempts_are_paired_and_no_later_ones(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.write([attempt(group, 0, ["1", "9"]), attempt(group, 1, ["0", "5"])])
    scene.process()
    assert scene.pair() == 1
    pairs = (
        "SELECT a.step, b.step, p.margin FROM trinity.preference p"
        " JOIN trinity.experience a ON a.id = p.chosen_id JOIN trinity.experience b ON b.id = p.rejected_id"
    )
    assert scene.rows(pairs) == [(0, 0, 1.0)]


def test_multi_step_grpo_gives_all_steps_the_advantage_of_the_last_reward(scene: Scene) -> None:
    [group] = scene.claim(1)
    scene.write([attempt(group, 0, ["9", "3", "1"]), attempt(group, 1, ["9", "0"])])
    scene.process()
    unit = 0.5 / (np.sqrt(0.5) + 1e-6)
    assert draw(scene, recipe("multi_step_grpo")) == [
        *[(0, step, reward, pytest.approx(unit), 1.0) for step, reward in enumerate((9.0, 3.0, 1.0))],
        *[(1, step, reward, pytest.approx(-unit), 1.0) for step, reward in enumerate((9.0, 0.0))],
    ]
    assert differences(scene) == []


@pytest.mark.parametrize("states", [(("a", "b"), ("c", "b")), ((None, "b"), (None, "b"))])
def test_gigpo_compares_what_was_done_in_equal_states_and_a_prompt_is_one(
    scene: Scene, states: Sequence[Sequence[str | None]]
) -> None:
    # Another group in the same states changes nothing.
    first, second = scene.claim(2)
    for group in (first, second):
        scene.write([attempt(group, member, ["0", str(member)], states[member]) for member in group.members])
    scene.process()
    same_start = states[0][0] is None  # both prompts are "prompt 0"
    found = draw(scene, recipe("gigpo", gamma=0.5, omega=2.0), size=2)
    # Attempts earned 0 and 1: -0.5 and 0.5. Returns at the start: 0 and 0.5; then 0 and 1.
    expected = [
        *[(0, 0, 0.0, -0.5 - 2.0 * 0.25 * same_start, 1.0), (0, 1, 0.0, -0.5 - 2.0 * 0.5, 1.0)],
        *[(1, 0, 0.0, 0.5 + 2.0 * 0.25 * same_start, 1.0), (1, 1, 1.0, 0.5 + 2.0 * 0.5, 1.0)],
    ]
    assert found == [*expected, *expected]
    assert differences(scene) == []


def test_gigpo_counts_the_reward_that_sequences_share_once(scene: Scene) -> None:
    [group] = scene.claim(1)
    several = attempt(group, 0, ["1", "1"])
    shared = [replace(step, shares_reward=True) for step in several.steps]
    scene.write([replace(several, steps=shared), rollout(group, 1, "1")])
    scene.process()
    assert [(reward, advantage) for _, _, reward, advantage, _ in draw(scene, recipe("gigpo"))] == [
        (1.0, 0.0)
    ] * 3
    assert differences(scene) == []


def test_a_greedy_member_comes_last_is_marked_and_weighs_nothing(scene: Scene) -> None:
    made = [rollout(nowhere(), member, response) for member, response in enumerate(("1", "0", "0.75"))]
    [group] = explore(scene, made, greedy=True)
    assert (group.members, group.greedy) == ([0, 1, 2], 2)
    assert scene.values("SELECT greedy FROM trinity.rollout ORDER BY ordinal") == [False, False, True]
    scene.process()
    assert draw(scene, recipe("remax")) == [
        (0, 0, 1.0, 0.25, 1.0),
        (1, 0, 0.0, -0.75, 1.0),
        (2, 0, 0.75, 0.0, 0.0),
    ]
    assert differences(scene) == []


def test_a_group_that_was_given_up_still_knows_its_greedy_member(scene: Scene) -> None:
    [group] = scene.claim(1, greedy=True)
    scene.write([rollout(group, 0)])
    scene.lose(scene.explorer)
    [again] = scene.claim(1, worker=scene.new_worker(WorkerRole.EXPLORE), greedy=True)
    assert (again.members, again.greedy) == ([1, 2], 2)


def test_a_group_whose_greedy_member_failed_is_compared_with_its_others(scene: Scene) -> None:
    [group] = scene.claim(1, greedy=True)
    scene.write([rollout(group, 0, "1"), rollout(group, 1, "0"), rollout(group, 2, error="out of memory")])
    scene.process()
    assert draw(scene, recipe("remax")) == [(0, 0, 1.0, 1.0, 1.0), (1, 0, 0.0, -1.0, 1.0)]


def test_an_advantage_of_the_users_own_reads_what_it_names(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def mine(rewards, steps, greedy, rollouts): return rewards * (1.0 - greedy) + 100.0 * steps"
    )
    algorithm = recipe("policy_gradient", advantage=f"{file}:mine")
    assert create(algorithm).compares == {"steps", "greedy", "rollouts"}
    [group] = scene.claim(1, greedy=True, group_size=1)
    scene.write([attempt(group, 0, ["1", "2"]), rollout(group, 1, "5")])
    scene.process()
    found = [(advantage, weight) for *_, advantage, weight in draw(scene, algorithm)]
    assert found == [(1.0, 1.0), (102.0, 1.0), (0.0, 0.0)]


def test_rows_without_a_reward_are_not_drawn(scene: Scene) -> None:
    scene.write(members(scene.claim(1)[0]))
    scene.process()
    with scene.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.reward_event")
        tx.execute("UPDATE trinity.experience SET reward = NULL")
    with pytest.raises(TrinityError, match=r"Experience \d+ has no advantage, since it or another"):
        draw(scene, recipe("grpo"))


class Bench:
    """A run of its own that learns from the groups it is given, one a step."""

    def __init__(
        self, scene: Scene, checkpoints: Path, algorithm: AlgorithmConfig, name: str = "live"
    ) -> None:
        self.scene = scene.beside(name)
        setup = setup_of(
            TrainerConfig(steps=1, batch_size=1, learning_rate=0.1),
            algorithm,
            checkpoints,
        )
        self.trainer = Trainer(self.scene.database, self.scene.run, setup)
        self.trainer.worker_id = self.scene.trainer
        self.trainer.start()

    def train(self) -> dict[str, float]:
        """One step; its metrics."""
        self.scene.process()
        assert self.trainer.work()
        metrics = "SELECT name, value FROM trinity.metric WHERE run_id = %s AND step = 1"
        return dict(self.scene.rows(metrics, self.scene.run.id))


@pytest.mark.parametrize("kl", [None, "k1"], ids=["", "with a divergence in the reward"])
@pytest.mark.parametrize("name", ["multi_step_grpo", "gigpo", "remax"])
def test_a_trainer_learns_from_attempts(scene: Scene, tmp_path: Path, name: str, kl: str | None) -> None:
    algorithm = recipe(name, **({"kl": kl} if kl else {}))
    bench = Bench(scene, tmp_path, algorithm)
    [group] = bench.scene.claim(1, greedy=name == "remax")
    bench.scene.write([attempt(group, member, ["0", str(member)], ["x", "y"]) for member in group.members])
    metrics = bench.train()
    assert metrics["grad_norm"] > 0
    assert ("kl" in metrics) == (kl is not None)
    assert bench.scene.values("SELECT state::text FROM trinity.rollout_group") == ["trained"]
    assert differences(bench.scene) == []


def test_what_is_only_compared_with_counts_in_no_mean(scene: Scene, tmp_path: Path) -> None:
    found = []
    for length in (1, 40):
        bench = Bench(scene, tmp_path / str(length), recipe("remax"), f"greedy {length}")
        [group] = bench.scene.claim(1, greedy=True)
        greedy = with_step(rollout(group, 2, "0.5"), payload=payload((0,) * length))
        bench.scene.write([rollout(group, 0, "1"), rollout(group, 1, "0"), greedy])
        metrics = bench.train()
        found.append({name: metrics[name] for name in ("loss", "entropy", "ratio_mean", "grad_norm")})
    assert found[0] == pytest.approx(found[1])
    assert found[0]["grad_norm"] > 0
