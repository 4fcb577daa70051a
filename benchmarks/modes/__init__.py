"""Compares modes on the same tasks: synchronous, one step off-policy and asynchronous.

Each run is `trinity-db run` as a person starts it: an explorer with the transformers engine, a processor and
a trainer as processes, on a store of its own. The modes differ in `max_staleness` and in the places of the
explorer alone, one batch of them for each that may be under way. Steps per hour, idle shares and curves leave
out the first steps, while roles load their libraries.

A benchmark that was killed goes on with the first run that it did not end; its outcomes are in
`build/benchmarks/modes.json` until the table is written.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.context import Context
from benchmarks.measure import Bar, Result, figure, ratio
from benchmarks.modes import curves
from benchmarks.modes.runs import Kept, Outcome, key_of, outcome_of, warm_start
from benchmarks.modes.workloads import (
    ASYNCHRONOUS,
    MODES,
    ONE_STEP,
    SYNCHRONOUS,
    UNCORRECTED,
    WAITING,
    WORKLOADS,
    Mode,
    Workload,
    combinations,
)
from benchmarks.peer import ROOT
from benchmarks.server import Server

MEASURE = "modes"
SEEDS, STEPS, QUICK_STEPS = 3, 40, 12
KEPT = ROOT / "build" / "benchmarks" / "modes.json"
PICTURES = ROOT / "docs" / "pictures"
TWICE = Bar(2)
AS_GOOD = Bar(0.95)

_Found = dict[Workload, dict[Mode, list[Outcome]]]


def run(context: Context) -> list[Result]:
    """All runs that are not kept from a benchmark that was killed, then the table and the curves."""
    kept = Kept(KEPT)
    found: _Found = {workload: {mode: [] for mode in MODES} for workload in WORKLOADS}
    with context.server() as server, tempfile.TemporaryDirectory(dir=context.scratch) as scratch:
        _run_all(context, server, Path(scratch), kept, found)
        results = [one for workload in WORKLOADS for one in _results(workload, found[workload])]
        if not context.quick:
            _draw(server.new_store(), found)
            kept.forget()
    return results


def _run_all(context: Context, server: Server, scratch: Path, kept: Kept, found: _Found) -> None:
    steps = QUICK_STEPS if context.quick else STEPS
    wanted = list(combinations(range(1 if context.quick else min(SEEDS, context.repetitions))))
    starts: dict[Workload, Path] = {}
    for number, (workload, seed, mode) in enumerate(wanted, 1):
        config = workload.run(mode, seed, steps)
        key = key_of(workload, config)
        outcome = kept.get(key)
        said = "kept from before"
        if outcome is None:
            if workload not in starts:
                context.say(f"{workload.name}: the warm start")
                starts[workload] = warm_start(server, workload, scratch)
            outcome = outcome_of(server, workload, config, starts[workload], scratch)
            kept.add(key, outcome)
            said = f"held-out reward {outcome.held_out:.3f}"
        found[workload][mode].append(outcome)
        context.say(
            f"{number} of {len(wanted)}: {workload.name}, {mode.name}, seed {seed}: "
            f"{outcome.steps_per_hour:,.0f} steps/h, {said}"
        )


def _results(workload: Workload, found: Mapping[Mode, Sequence[Outcome]]) -> list[Result]:
    """Bars first; then each number of each mode. Numbers of one seed are compared with the same seed's."""
    synchronous = found[SYNCHRONOUS]
    results = []
    for mode in (ONE_STEP, *ASYNCHRONOUS, UNCORRECTED):
        name = f"{workload.name}, {mode.name}"
        is_barred = mode in ASYNCHRONOUS
        fast = TWICE if is_barred and workload is WAITING else None
        good = AS_GOOD if is_barred else None
        for what, bar, ours, theirs in (
            ("steps/h", fast, _speeds(found[mode]), _speeds(synchronous)),
            ("held-out reward", good, _rewards(found[mode]), _rewards(synchronous)),
        ):
            results.append(
                ratio(MEASURE, f"{name}: {what}", ours, theirs, SYNCHRONOUS.name, bar, alternated=True)
            )
    for mode, outcomes in found.items():
        results += _figures(workload, mode, outcomes, _equal_seconds(found))
    return results


def _speeds(outcomes: Sequence[Outcome]) -> list[float]:
    return [one.steps_per_hour for one in outcomes]


def _rewards(outcomes: Sequence[Outcome]) -> list[float]:
    return [one.held_out for one in outcomes]


def _figures(
    workload: Workload, mode: Mode, outcomes: Sequence[Outcome], equal_seconds: Sequence[float]
) -> list[Result]:
    """The figures of one mode, with a seed for each repetition."""
    others = [one.others for one in outcomes]
    note = f"{workload.name}: other work kept {min(others):.1f} to {max(others):.1f} cores busy"
    after_time = [curves.latest(*one) for one in zip(outcomes, equal_seconds, strict=True)]
    measured = {
        "steps/h": _speeds(outcomes),
        "% trainer idle": [100 * one.trainer_idle for one in outcomes],
        "% explorer idle": [100 * one.explorer_idle for one in outcomes],
        "% of rows expired": [100 * one.expired for one in outcomes],
        "reward after equal time": after_time,
        "reward after equal steps": [curves.latest(one, one.seconds[-1]) for one in outcomes],
        "held-out reward": _rewards(outcomes),
    }
    return [
        figure(MEASURE, mode.name, workload.name, unit, values, note=note)
        for unit, values in measured.items()
    ]


def _equal_seconds(found: Mapping[Mode, Sequence[Outcome]]) -> list[float]:
    """For each seed the time in which its fastest mode took all steps."""
    return [min(one.seconds[-1] for one in of_seed) for of_seed in zip(*found.values(), strict=True)]


def _draw(url: str, found: _Found) -> None:
    for workload, modes in found.items():
        named = {mode.name: outcomes for mode, outcomes in modes.items()}
        place = workload.name.replace(" ", "-")
        curves.draw(url, named, PICTURES / f"modes-{place}-time.svg", PICTURES / f"modes-{place}-steps.svg")
