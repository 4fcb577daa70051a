"""What the benchmark of the modes runs, keeps and draws."""

from pathlib import Path

import pytest

from benchmarks import selection
from benchmarks.modes import curves
from benchmarks.modes.runs import Kept, Outcome, key_of
from benchmarks.modes.workloads import (
    LENGTHS,
    MODES,
    NUM_TASKS,
    SYNCHRONOUS,
    WAITING,
    WORKLOADS,
    Mode,
    Workload,
)
from trinity_db.configuration import RunConfig


def outcome(seconds: list[float], rewards: list[float]) -> Outcome:
    return Outcome(seconds, rewards, 0.1, 0.2, 0.0, 64, 0.5, 1.0)


def test_a_runs_rate_is_that_of_its_steps_after_the_warm_up() -> None:
    assert outcome([2.0, 4.0, 6.0, 8.0], [0.0] * 4).steps_per_hour == 1800


def test_a_point_of_a_curve_is_the_mean_of_the_steps_committed_by_then() -> None:
    one = outcome([float(step) for step in range(1, 21)], [float(step) for step in range(1, 21)])
    assert curves.at_time(one, 5) is None  # no window is full
    assert curves.at_time(one, 12.5) == 7.5  # of steps 3 to 12
    assert curves.at_time(one, 30) is None  # the run was over
    assert curves.latest(one, 12.5) == 7.5
    assert curves.latest(one, 3) == 2  # of the three that there are


def test_a_benchmark_that_was_killed_goes_on_with_what_it_kept(tmp_path: Path) -> None:
    first, config = Kept(tmp_path / "kept" / "modes.json"), WAITING.run(SYNCHRONOUS, seed=0, steps=5)
    first.add(key_of(WAITING, config), outcome([1.0], [0.5]))
    again = Kept(tmp_path / "kept" / "modes.json")
    assert again.get(key_of(WAITING, config)) == outcome([1.0], [0.5])
    assert again.get(key_of(WAITING, WAITING.run(SYNCHRONOUS, seed=1, steps=5))) is None
    assert again.get(key_of(LENGTHS, config)) is None
    again.forget()
    assert Kept(tmp_path / "kept" / "modes.json").get(key_of(WAITING, config)) is None


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.name)
@pytest.mark.parametrize("mode", MODES, ids=lambda one: one.name)
def test_the_modes_are_configurations_that_a_run_takes(workload: Workload, mode: Mode) -> None:
    model = {"path": "models/any"}
    config = RunConfig.model_validate({**workload.run(mode, seed=0, steps=5), "model": model})
    attempts = config.trainer.batch_size * config.explorer.group_size
    assert config.explorer.concurrency <= (mode.max_staleness + 1) * attempts  # all may be under way


def test_runs_that_choose_what_they_learn_from_differ_in_that_alone() -> None:
    model = {"path": "models/any"}
    ways = {way: selection.configuration(way, seed=0, steps=5) for way in selection.WAYS}
    configs = {way: RunConfig.model_validate({**one, "model": model}) for way, one in ways.items()}
    dropping = {way for way, one in configs.items() if one.processors.group.drop_equal_rewards}
    choosing = {way for way, one in configs.items() if one.explorer.tasks.name == "difficulty"}
    assert (dropping, choosing) == ({"equal rewards dropped", "both"}, {"tasks by difficulty", "both"})
    for config in ways.values():
        config["processors"].pop("group", None)
        config["explorer"].pop("tasks", None)
    assert all(config == ways[selection.EVERY_GROUP] for config in ways.values())


def test_tasks_of_the_modes_are_different_and_the_same_each_time() -> None:
    tasks = LENGTHS.tasks()
    assert tasks == LENGTHS.tasks()
    assert len({one["prompt"] for one in tasks}) == len(tasks) == NUM_TASKS
    lengths = sorted(len(one["prompt"]) for one in tasks)
    assert lengths[-1] > 4 * lengths[len(lengths) // 2]  # a long tail
