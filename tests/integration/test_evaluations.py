"""Evaluations: what explorers do for them, what no draw and no pace sees of them, and what they say."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from statistics import mean, variance
from typing import Any

import numpy as np
import psycopg
import pytest

from tests.support.echo import Echo
from tests.support.explorers import Explorers
from tests.support.explorers import publish as publish_folder
from tests.support.rows import Scene, rollout
from trinity_db.cli.progress import outcome
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Task
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.engines.engine import Completion, NotLoadedYet, Request
from trinity_db.explorer.loop import backoff, evaluating
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import evaluations, policies, processing, pruning, rewards

NUM_TASKS = 8


def publish(scene: Scene, version: int, folder: Path) -> None:
    """A version whose files are there; with each other weights."""
    files = folder / f"version-{version}"
    files.mkdir(exist_ok=True)
    (files / "model.safetensors").write_bytes(b"weights %d" % version)
    publish_folder(scene, version, files)


def taskset(scene: Scene) -> int:
    found: int = scene.value("SELECT id FROM trinity.taskset")
    return found


def begin(scene: Scene, version: int = 0, samples: int = 2, temperature: float = 0.5) -> int:
    settings = evaluations.Settings(taskset(scene), samples, temperature, max_new_tokens=4)
    with scene.database.transaction() as tx:
        begun = evaluations.begin(tx, scene.run.id, version, settings)
    assert begun is not None
    return begun


def finish(scene: Scene) -> list[int]:
    with scene.database.transaction() as tx:
        return [row["id"] for row in evaluations.finish(tx, scene.run.id)]


def said(scene: Scene, *ids: int) -> list[dict[str, Any]]:
    with scene.database.transaction() as tx:
        return [dict(row) for row in evaluations.read(tx, ids)]


def claim(scene: Scene, evaluation: int, limit: int = 100, worker: int | None = None) -> list[Any]:
    with scene.database.transaction() as tx:
        return evaluations.claim(tx, worker or scene.explorer, evaluation, limit)


def attempt(
    scene: Scene, evaluation: int, rewarded: Callable[[int, int], float | None], version: int = 0
) -> None:
    """Write every attempt with the reward that task and member have; None: it failed."""
    written = []
    for number, group in enumerate(claim(scene, evaluation)):
        for member in group.members:
            reward = rewarded(number, member)
            error = "it failed" if reward is None else None
            written.append(rollout(group, member, str(reward), (version, version), error))
    scene.write(written)
    scene.judge(processing.SCORE)


async def answers(task: Mapping[str, Any], policy: Policy) -> float:
    await policy.sample([1, 2])
    return 1.0


def test_an_explorer_makes_the_attempts_of_an_evaluation_beside_those_for_training(
    scene: Scene, explorer: Explorers
) -> None:
    begin(scene, samples=3)
    engine = Echo()
    assert explorer(answers, engine).work()
    states = scene.rows("SELECT state, count(*) FROM trinity.rollout_group GROUP BY 1 ORDER BY 1")
    assert dict(states) == {"complete": 2, "evaluated": NUM_TASKS}
    asked = [(request.temperature, request.max_new_tokens) for request in engine.asked]
    assert asked.count((0.5, 4)) == 3 * NUM_TASKS
    assert asked.count((1.0, 256)) == 2 * 2


def test_no_statement_of_training_sees_an_evaluation(scene: Scene, explorer: Explorers) -> None:
    begin(scene)
    role = explorer(answers, groups=2)
    assert role.work()
    scene.process()
    counts = scene.rows(
        "SELECT (SELECT sum(issued) FROM trinity.task_stat), (SELECT sum(scored) FROM trinity.task_stat),"
        " (SELECT experiences FROM trinity.policy_progress), (SELECT count(*) FROM trinity.drop)"
    )
    assert counts == [(2, 4, 4, 0)]
    assert set(scene.values("SELECT state FROM trinity.experience WHERE held_out")) == {"evaluated"}
    assert scene.draw(1, 3) is None
    batch = scene.draw(1, 2)
    assert batch is not None
    drawn = scene.values(
        "SELECT e.held_out FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
    )
    assert drawn == [False] * 4


@pytest.mark.parametrize("state", ["raw", "scored", "ready", "leased", "trained", "expired"])
def test_the_database_refuses_to_train_on_a_row_of_an_evaluation(scene: Scene, state: str) -> None:
    attempt(scene, begin(scene), lambda task, member: 1.0)
    with pytest.raises(psycopg.errors.CheckViolation), scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = %s, worker_id = 1 WHERE held_out", [state])
    with pytest.raises(psycopg.errors.CheckViolation), scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout_group SET state = 'ready' WHERE evaluation_id IS NOT NULL")


def test_the_database_refuses_a_token_of_another_version(scene: Scene) -> None:
    [group, *_] = claim(scene, begin(scene))
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        scene.write([rollout(group, 0, "1", (0, 1))])


def test_an_attempt_with_a_token_of_another_version_is_a_failed_rollout(
    scene: Scene, explorer: Explorers
) -> None:
    class Ahead(Echo):
        async def generate(self, request: Request) -> Completion:
            said = await super().generate(request)
            return Completion(said.token_ids, said.logprobs, [7] * len(said.token_ids), "stop")

    begin(scene)
    assert explorer(answers, Ahead(), groups=1).work()
    errors = scene.values("SELECT DISTINCT error FROM trinity.rollout WHERE error IS NOT NULL")
    assert errors == ["the engine sampled with version 7 when evaluating version 0"]


class Moved(Echo):
    """A fleet whose servers other people have moved on to version 1, and back when they are asked for 0."""

    def __init__(self) -> None:
        super().__init__()
        self.has_moved = True

    async def generate(self, request: Request) -> Completion:
        answer = await super().generate(request)
        return replace(answer, versions=[int(self.has_moved)] * len(answer.versions))

    async def load(self, path: Path, version: int) -> None:
        self.loads = getattr(self, "loads", 0) + 1
        self.has_moved = self.loads < 3
        await super().load(path, version)


def test_attempts_for_which_a_fleet_has_gone_on_to_another_version_are_given_back_and_made_later(
    scene: Scene, explorer: Explorers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "PAUSE_SECONDS", (0.0, 0.0))
    evaluation = begin(scene)
    endpoint = {"name": "endpoint", "urls": ["http://127.0.0.1:1"], "load_weights": False}
    role = explorer(answers, Moved(), only=[evaluation], engine=endpoint)
    while not role.is_done():
        role.work()
    counts = "SELECT state::text, count(*) FROM trinity.rollout GROUP BY 1"
    found = dict(scene.rows(counts))
    assert (found["finished"], "failed" in found) == (2 * NUM_TASKS, False)
    assert scene.value("SELECT DISTINCT finish_reason FROM trinity.rollout WHERE state = 'refused'") == (
        "given back: the engine sampled with version 1 when evaluating version 0"
    )


def test_attempts_of_an_older_version_are_made_by_it_and_training_goes_on_by_the_newest(
    scene: Scene, explorer: Explorers, tmp_path: Path
) -> None:
    begin(scene)
    publish(scene, 1, tmp_path)
    assert explorer(answers, groups=2).work()
    versions = scene.rows(
        "SELECT evaluation_id IS NOT NULL, version_min, version_max, count(*) FROM trinity.rollout_group"
        " GROUP BY 1, 2, 3 ORDER BY 1"
    )
    assert versions == [(False, 1, 1, 2), (True, 0, 0, NUM_TASKS)]


def test_evaluation_and_training_take_turns_where_both_have_work(
    scene: Scene, explorer: Explorers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither waits for the end of the other one's work."""
    monkeypatch.setattr(evaluating, "TURN_SECONDS", 0.0)
    loaded: list[int] = []

    class Loads(Echo):
        async def load(self, path: Path, version: int) -> None:
            loaded.append(version)
            await super().load(path, version)

    begin(scene)
    publish(scene, 1, tmp_path)
    assert explorer(answers, Loads(), groups=8, concurrency=4).work()
    assert loaded.count(0) > 1
    assert loaded.count(1) > 1
    versions = scene.values("SELECT DISTINCT version_max FROM trinity.rollout_group WHERE evaluation_id > 0")
    assert versions == [0]


def test_the_same_evaluation_samples_by_the_same_seeds(scene: Scene, explorer: Explorers) -> None:
    """Seeds follow from task and member: not from groups, whose numbers differ, and not from their order."""
    engines = [Echo(), Echo()]
    for engine, temperature in zip(engines, (0.5, 0.25), strict=True):
        begin(scene, temperature=temperature)
        assert explorer(answers, engine, groups=1).work()
    first, second = (
        {request.seed for request in engine.asked if request.max_new_tokens == 4} for engine in engines
    )
    assert len(first) == 2 * NUM_TASKS
    assert first == second


def test_an_evaluation_is_begun_once_and_goes_on_where_it_was(scene: Scene, explorer: Explorers) -> None:
    evaluation = begin(scene)
    assert begin(scene) == evaluation
    lost = scene.new_worker(WorkerRole.EXPLORE)
    group, other = claim(scene, evaluation, limit=2, worker=lost)
    scene.write([rollout(group, member, "1") for member in group.members], worker=lost)
    assert scene.lose(lost).groups == 1
    role = explorer(answers, only=[evaluation])
    assert not role.is_done()
    assert role.work()
    assert role.is_done()
    assert scene.rows("SELECT id, attempt FROM trinity.rollout_group WHERE attempt <> 1") == [(other.id, 2)]
    assert scene.values("SELECT count(*) FROM trinity.rollout") == [2 * NUM_TASKS]
    assert scene.values("SELECT count(*) FROM trinity.rollout_group WHERE evaluation_id IS NULL") == [0]


def test_an_evaluation_that_is_said_again_takes_in_tasks_that_were_imported_since(scene: Scene) -> None:
    evaluation = begin(scene)
    attempt(scene, evaluation, lambda task, member: 1.0)
    assert finish(scene) == [evaluation]
    assert begin(scene) == evaluation
    assert claim(scene, evaluation) == [], "no task is new"
    assert said(scene, evaluation)[0]["finished_at"] is not None
    open_writer(scene.database, "tasks", "tasks")([Task({"prompt": "a new one"})])
    assert begin(scene) == begin(scene) == evaluation
    [group] = claim(scene, evaluation)
    assert group.task == {"prompt": "a new one"}
    assert said(scene, evaluation)[0]["finished_at"] is None


def test_an_evaluation_ends_when_its_version_is_withdrawn(scene: Scene, tmp_path: Path) -> None:
    for version in (1, 2):
        publish(scene, version, tmp_path)
    kept, withdrawn = begin(scene, version=1), begin(scene, version=2)
    scene.reopen(1)
    ended = {
        row["id"]: (row["error"], row["finished_at"] is not None) for row in said(scene, kept, withdrawn)
    }
    assert ended == {kept: (None, False), withdrawn: ("its version was withdrawn", True)}


def test_what_says_how_much_was_explored_counts_no_evaluation(scene: Scene) -> None:
    scene.explore(1)
    attempt(scene, begin(scene), lambda task, member: 1.0)
    values = {"run_id": scene.run.id, "batches": 8, "window_seconds": 1, "versions": 8, "rows": None}
    with scene.database.transaction() as tx:
        [summary] = tx.execute(query("run_summary"), values)
    assert summary["rollouts"] == 2
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout SET finished_at = now() + interval '1 hour'")
        [status] = tx.execute(query("status_detail"), values)
    assert status["rates"]["rollouts_per_second"] == 2


def test_an_evaluation_ends_when_its_last_attempt_is_judged_and_its_numbers_are_metrics(scene: Scene) -> None:
    evaluation = begin(scene)
    claimed = claim(scene, evaluation)
    scene.write([rollout(group, member, "1") for group in claimed for member in group.members])
    assert finish(scene) == []
    with scene.database.transaction() as tx:
        assert evaluations.are_open(tx, scene.run.id)
    scene.judge(processing.SCORE)
    assert finish(scene) == [evaluation]
    assert finish(scene) == []
    with scene.database.transaction() as tx:
        assert not evaluations.are_open(tx, scene.run.id)
    metrics = dict(scene.rows("SELECT name, value FROM trinity.metric WHERE name LIKE 'eval/%'"))
    assert metrics == {
        "eval/tasks/mean@2": 1,
        "eval/tasks/best@2": 1,
        "eval/tasks/pass@1": 1,
        "eval/tasks/pass@2": 1,
        "eval/tasks/failed": 0,
    }


def test_an_evaluation_whose_version_cannot_be_loaded_is_given_up_and_can_be_resumed(
    scene: Scene, explorer: Explorers, tmp_path: Path
) -> None:
    publish(scene, 1, tmp_path)
    evaluation = begin(scene, version=1)
    publish(scene, 2, tmp_path)
    (tmp_path / "version-1" / "model.safetensors").write_bytes(b"damaged")
    role = explorer(answers, only=[evaluation])
    role.work()
    assert role.is_done()
    [row] = said(scene, evaluation)
    assert "its files are not those that were published" in row["error"]
    publish(scene, 1, tmp_path)
    assert begin(scene, version=1) == evaluation
    assert role.work()
    assert scene.values("SELECT DISTINCT version_min FROM trinity.rollout") == [1]


@pytest.mark.parametrize("seconds", [600.0, 0.0])
def test_an_evaluation_waits_for_other_people_to_load_its_version(
    scene: Scene, explorer: Explorers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(evaluating, "NOT_LOADED_SECONDS", seconds)

    class Late(Echo):
        """A fleet that gets version 1 after the explorer has asked for it twice."""

        def __init__(self) -> None:
            super().__init__()
            self.asked_for = 0

        async def load(self, path: Path, version: int) -> None:
            self.asked_for += 1
            if self.asked_for < 3:
                raise NotLoadedYet("no server has it yet")
            await super().load(path, version)

    publish(scene, 1, tmp_path)
    evaluation = begin(scene, version=1)
    role = explorer(answers, Late(), only=[evaluation])
    while not role.is_done():
        role.work()
    assert said(scene, evaluation)[0]["error"] == (None if seconds else "no server has it yet")
    assert scene.value("SELECT count(*) FROM trinity.rollout") == (2 * NUM_TASKS if seconds else 0)


def test_a_checkpoint_stays_until_its_evaluation_has_ended(scene: Scene, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        publish(scene, version, tmp_path)
    evaluation = begin(scene, version=1)

    def prune() -> list[int]:
        with scene.database.transaction() as tx:
            return [version for version, _ in policies.prune(tx, scene.run.id, keep=1).deleted]

    assert prune() == [2]
    attempt(scene, evaluation, lambda task, member: 1.0, version=1)
    assert finish(scene) == [evaluation]
    assert prune() == [1]
    settings = evaluations.Settings(taskset(scene), 9, 1.0, max_new_tokens=4)
    with scene.database.transaction() as tx:
        assert evaluations.begin(tx, scene.run.id, 1, settings) is None


@pytest.mark.parametrize(
    ("version", "is_last", "begun"), [(0, False, 1), (3, False, 0), (4, False, 1), (5, True, 1)]
)
def test_the_configuration_says_which_versions_are_evaluated(
    scene: Scene, tmp_path: Path, version: int, is_last: bool, begun: int
) -> None:
    of = {"taskset": ["tasks"], "every": 4, "samples": 3, "temperature": None, "max_new_tokens": None}
    explorer = {"temperature": 0.7, "max_new_tokens": 9}
    other = scene.beside("other", {"evaluation": of, "explorer": explorer, "seed": 5})
    publish(other, version, tmp_path)
    with scene.database.transaction() as tx:
        evaluations.begin_due(tx, other.run.id, version, is_last)
        evaluations.begin_due(tx, other.run.id, version, is_last)
    rows = scene.rows("SELECT version, samples, temperature, max_new_tokens, seed FROM trinity.evaluation")
    assert rows == [(version, 3, 0.7, 9, 5)] * begun


def test_publishing_a_version_begins_its_evaluation(scene: Scene) -> None:
    of = {"taskset": ["tasks"], "every": 1, "samples": 2, "temperature": 0.0, "max_new_tokens": 4}
    other = scene.beside("other", {"evaluation": of})
    other.publish(0, step=0)
    assert scene.rows("SELECT version, temperature FROM trinity.evaluation") == [(0, 0.0)]


def brute_force(rewarded: list[list[float]], k: int, of: Callable[[tuple[float, ...]], float]) -> float:
    """The mean over tasks of what every subset of k attempts says."""
    return mean(mean(of(chosen) for chosen in combinations(task, k)) for task in rewarded if len(task) >= k)


REWARDS: list[list[float]] = [
    [0, 0, 0, 0],
    [1, 0, 0, 2],
    [1, 1, 1, 1],
    [0, 0.5, 1, 0],
    [3, 0, 0],
    [0],
    [1, -1, 0.25, 0],
    [0, 1],
]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_best_and_pass_at_k_are_means_over_all_subsets_of_k_judged_attempts(scene: Scene, k: int) -> None:
    evaluation = begin(scene, samples=4)
    attempt(scene, evaluation, lambda task, member: dict(enumerate(map(float, REWARDS[task]))).get(member))
    [row] = scene.rows(
        "SELECT tasks, mean, tasks_at_k, best, pass FROM trinity.evaluation_at(%s, %s)", evaluation, k
    )
    assert row[0] == 8
    assert row[1] == pytest.approx(mean(mean(task) for task in REWARDS))
    assert row[2] == sum(len(task) >= k for task in REWARDS)
    assert row[3] == pytest.approx(brute_force(REWARDS, k, max))
    assert row[4] == pytest.approx(brute_force(REWARDS, k, lambda chosen: max(chosen) >= 1))
    [whole] = said(scene, evaluation)
    assert (whole["judged"], whole["failed"], whole["waiting"]) == (26, 6, 0)


def test_the_chance_of_many_attempts_is_exact(scene: Scene) -> None:
    for samples, solved, k in ((5000, 3, 1), (5000, 2500, 100), (10_000, 10_000, 1), (200, 0, 64)):
        [[found]] = scene.rows("SELECT trinity.pass_at(%s, %s, %s)", samples, solved, k)
        exact = 1 - math.comb(samples - solved, k) / math.comb(samples, k)
        assert found == pytest.approx(exact, rel=1e-12, abs=1e-15)
    assert scene.values("SELECT trinity.pass_at(3, 1, 4)") == [None]


def test_intervals_are_those_of_means_over_tasks(scene: Scene) -> None:
    evaluation = begin(scene, samples=2)
    solved = [2, 1, 0, 2, 2, 0, 1, 0]
    attempt(scene, evaluation, lambda task, member: float(member < solved[task]))
    [row] = said(scene, evaluation)
    shares = [number / 2 for number in solved]
    center = mean(shares)
    trials = center * (1 - center) / (variance(shares) / NUM_TASKS)
    assert trials > NUM_TASKS
    check_wilson(row, "mean", center, trials)
    check_wilson(row, "pass_1", center, NUM_TASKS)


@pytest.mark.parametrize("solved", [0, 1, 4, 8])
def test_intervals_of_mean_and_pass_are_equal_for_one_reward_of_0_or_1_a_task(
    scene: Scene, solved: int
) -> None:
    evaluation = begin(scene, samples=1)
    attempt(scene, evaluation, lambda task, member: float(task < solved))
    [row] = said(scene, evaluation)
    check_wilson(row, "mean", solved / NUM_TASKS, NUM_TASKS)
    for limit in ("low", "high"):
        assert row[f"mean_{limit}"] == pytest.approx(row[f"pass_1_{limit}"], abs=1e-12)


@pytest.mark.parametrize(
    ("values", "lowest", "highest"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 1], 0, 1),
        ([1, 1, 1, 1, 1, 1, 1, 0.5], 0, 1),
        ([-2, -2, -2, -2, -2, -2, -2, 3], -2, 3),
        ([0.5] * 8, 0, 1),
        ([-1] * 8, -1, 1),
        ([2] * 8, 0, 2),
    ],
)
def test_intervals_of_rewards_stay_within_their_range(
    scene: Scene, tmp_path: Path, values: list[float], lowest: float, highest: float
) -> None:
    publish(scene, 1, tmp_path)
    evaluation, worst = begin(scene, samples=2), begin(scene, version=1, samples=2)
    attempt(scene, evaluation, lambda task, member: values[task])
    attempt(scene, worst, lambda task, member: lowest if task else highest, version=1)
    query = "SELECT mean_low, mean, mean_high, best_low, best, best_high FROM trinity.evaluation_at(%s, 2)"
    [found] = scene.rows(query, evaluation)
    for low, center, high in (found[:3], found[3:]):
        assert center == pytest.approx(mean(values))
        assert lowest - 1e-9 <= low <= center + 1e-9
        assert center - 1e-9 <= high <= highest + 1e-9
        assert high - low > 0.2 * (highest - lowest), "eight tasks do not tell more"
    with scene.database.transaction() as tx:
        difference = evaluations.compare(tx, worst, evaluation)
    width = highest - lowest
    low, center, high = (difference["mean_low"], difference["mean"], difference["mean_high"])
    assert low is not None
    assert center is not None
    assert high is not None
    assert -width <= low <= center <= high <= width


def check_wilson(row: Mapping[str, Any], name: str, center: float, trials: float) -> None:
    """Wilson's limits are where the distance from the estimate is 1.96 deviations of the limit itself."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    assert 0 <= low <= center <= high <= 1
    for limit in (low, high):
        assert abs(center - limit) == pytest.approx(
            1.959964 * math.sqrt(limit * (1 - limit) / trials), abs=1e-9
        )


def test_an_interval_is_that_of_resampled_tasks(scene: Scene) -> None:
    """With tasks enough, it is what a bootstrap over them says."""
    rng = np.random.default_rng(7)
    rewards = rng.beta(2, 5, 200)
    found = scene.rows(
        "SELECT m.low, m.high FROM trinity.mean_interval(%s, %s, %s, 0, 1) m",
        float(rewards.mean()), float(rewards.var(ddof=1)), len(rewards),
    )  # fmt: skip
    resampled = rng.choice(rewards, (20_000, len(rewards))).mean(axis=1)
    expected = np.quantile(resampled, [0.025, 0.975]).tolist()
    assert list(found[0]) == pytest.approx(expected, abs=0.002)
    # The variance of equal rewards of 0.1 may be a rounding error.
    equal, rounded = (
        scene.rows("SELECT m.low, m.high FROM trinity.mean_interval(0.1, %s, 8, 0, 1) m", variance)
        for variance in (0.0, 3e-34)
    )
    assert rounded == equal


def test_a_difference_is_over_the_tasks_that_both_evaluations_have(scene: Scene, tmp_path: Path) -> None:
    publish(scene, 1, tmp_path)
    before, after = begin(scene, samples=1), begin(scene, version=1, samples=1)
    attempt(scene, before, lambda task, member: None if task == 0 else float(task > 4))
    attempt(scene, after, lambda task, member: float(task > 2), version=1)
    with scene.database.transaction() as tx:
        row = dict(evaluations.compare(tx, before, after))
    differences = [0, 0, 1, 1, 0, 0, 0]
    center = mean(differences)
    error = 1.959964 * math.sqrt(sum((one - center) ** 2 for one in differences) / 6 / 7)
    assert (row["tasks"], row["tasks_at_k"]) == (7, 7)
    for name in ("mean", "pass"):
        limits = (row[name], row[f"{name}_low"], row[f"{name}_high"])
        assert limits == pytest.approx((center, center - error, center + error))


def test_a_late_reward_changes_what_an_evaluation_says(scene: Scene) -> None:
    evaluation = begin(scene, samples=1)
    attempt(scene, evaluation, lambda task, member: 0.0)
    assert finish(scene) == [evaluation]
    [row] = scene.rows("SELECT min(id) FROM trinity.experience")
    with scene.database.transaction() as tx:
        event = rewards.RewardEvent(None, "human", 1.0, experience_id=row[0])
        rewards.record(tx, scene.run.id, "human", [event])
    [now] = said(scene, evaluation)
    assert now["pass_1"] == pytest.approx(1 / NUM_TASKS)


def test_a_row_that_cannot_be_judged_is_no_zero(scene: Scene) -> None:
    evaluation = begin(scene, samples=1)
    attempt(scene, evaluation, lambda task, member: 1.0)
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.experience SET state = 'dropped'"
            " WHERE id = (SELECT min(id) FROM trinity.experience)"
        )
    [row] = said(scene, evaluation)
    assert (row["mean"], row["judged"], row["failed"]) == (1.0, NUM_TASKS - 1, 1)


def test_what_was_evaluated_is_not_among_the_attempts_that_an_export_gives(scene: Scene) -> None:
    scene.make_ready(1)
    scene.evaluate(1)
    event = rewards.RewardEvent(
        None, "label", 1.0, experience_id=scene.value("SELECT max(id) FROM trinity.experience")
    )
    with scene.database.transaction() as tx:
        rewards.record(tx, scene.run.id, "human", [event])
        exported = {
            name: tx.execute(query(name), {"name": "run"}).fetchall()
            for name in ("export_trajectories", "export_verdicts")
        }
    assert {name: len(rows) for name, rows in exported.items()} == {
        "export_trajectories": 2,
        "export_verdicts": 0,
    }


def test_arrays_of_evaluated_rows_are_pruned_and_what_they_earned_stays(scene: Scene) -> None:
    evaluation = scene.evaluate(NUM_TASKS)
    before = said(scene, evaluation)
    with scene.database.transaction() as tx:
        limits = pruning.limits(tx, scene.run, timedelta(0), None)
    assert pruning.prune(scene.database, scene.run, pruning.PAYLOADS, limits, dry_run=False).rows == 16
    assert said(scene, evaluation) == before


def test_the_outcome_of_a_run_has_the_evaluations_of_its_first_and_its_last_version(
    scene: Scene, tmp_path: Path
) -> None:
    rewards_of_versions = {0: 0.0, 1: 0.5, 2: 1.0}
    for version, reward in rewards_of_versions.items():
        if version:
            publish(scene, version, tmp_path)
        attempt(scene, begin(scene, version), lambda *_, reward=reward: reward, version)
        finish(scene)
    evaluation, *_ = outcome(scene.database, scene.run)
    expected = (
        "evaluation on tasks: mean@2 0.000 [0.000, 0.324] (version 0) → 1.000 [0.676, 1.000] (version 2)"
    )
    assert evaluation == expected
