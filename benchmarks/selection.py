"""What it brings to choose the groups that a trainer learns from: with each processing step, and without.

The tasks are those of the long-tailed lengths in `modes`, and only a response that is right in every digit
has a reward. So many groups have equal rewards, and no advantage. A run learns from every group, drops those
with equal rewards (as DAPO does), chooses tasks by difficulty, or does both; with the same steps and seeds.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.context import Context
from benchmarks.measure import Bar, Result, figure, ratio
from benchmarks.modes.curves import latest
from benchmarks.modes.runs import Outcome, outcome_of, warm_start
from benchmarks.modes.workloads import LENGTHS, ONE_STEP

MEASURE = "selection"
SEEDS, STEPS, QUICK_STEPS = 3, 200, 12
WORKLOAD = replace(LENGTHS, name="right in every digit", trained=512, epochs=8)
BETTER = Bar(1)  # a run without the step

EVERY_GROUP = "every group"
WAYS: Mapping[str, Mapping[str, Any]] = {
    EVERY_GROUP: {},
    "equal rewards dropped": {"processors": {"group": {"drop_equal_rewards": True}}},
    "tasks by difficulty": {"explorer": {"tasks": "difficulty"}},
    "both": {"processors": {"group": {"drop_equal_rewards": True}}, "explorer": {"tasks": "difficulty"}},
}


def run(context: Context) -> list[Result]:
    """Every way from the same warm start, the ways of one seed within the same minutes."""
    seeds = range(1 if context.quick else min(SEEDS, context.repetitions))
    found: dict[str, list[Outcome]] = {way: [] for way in WAYS}
    with context.server() as server, tempfile.TemporaryDirectory(dir=context.scratch) as scratch:
        start = warm_start(server, WORKLOAD, Path(scratch))
        for seed in seeds:
            for way in WAYS:
                config = configuration(way, seed, QUICK_STEPS if context.quick else STEPS)
                outcome = outcome_of(server, WORKLOAD, config, start, Path(scratch))
                context.say(f"seed {seed}, {way}: held-out reward {outcome.held_out:.3f}")
                found[way].append(outcome)
    return _results(found)


def configuration(way: str, seed: int, steps: int) -> dict[str, Any]:
    """The configuration of a run, but for the model that it starts from."""
    config = WORKLOAD.run(ONE_STEP, seed, steps)
    changes = WAYS[way]
    explorer = {**config["explorer"], **changes.get("explorer", {})}
    processors = {"score": ["exact_match"], **changes.get("processors", {})}
    return {**config, "explorer": explorer, "processors": processors}


def _results(found: Mapping[str, Sequence[Outcome]]) -> list[Result]:
    results = []
    without = [one.held_out for one in found[EVERY_GROUP]]
    for way, outcomes in found.items():
        if way != EVERY_GROUP:
            ours = [one.held_out for one in outcomes]
            results.append(
                ratio(MEASURE, f"{way}: held-out reward", ours, without, EVERY_GROUP, BETTER, alternated=True)
            )
    for way, outcomes in found.items():
        measured = {
            "held-out reward": [one.held_out for one in outcomes],
            "attempts": [float(one.attempts) for one in outcomes],
            "reward of the last steps": [latest(one, one.seconds[-1]) for one in outcomes],
        }
        results += [figure(MEASURE, way, WORKLOAD.name, unit, values) for unit, values in measured.items()]
    return results
