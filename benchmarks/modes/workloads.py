"""The tasks on which modes are compared, and the configurations of a warm start and of a run.

Both workloads are the demo's: a model with random weights that imitates first learns to turn digits around.
With `lengths` the numbers, and with them the responses, have a long-tailed length. With `waiting` all numbers
have four digits, and an environment judges each response after a time that is long-tailed too. The time
belongs to the task, so that every mode waits for the same.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

from trinity_db.cli.demo import DIGITS, GRPO, WARMUP

GROUPS, GROUP_SIZE = 8, 8  # of a batch, and members
ATTEMPTS = GROUPS * GROUP_SIZE
NUM_TASKS, NUM_HELD_OUT = 4096, 256
TASKS, DEMONSTRATIONS, HELD_OUT = "modes-tasks", "modes-demonstrations", "modes-held-out"
JUDGE = Path(__file__).with_name("waiting_judge.py")


@dataclass(frozen=True)
class LongTail:
    """A log-normal number, cut at both ends."""

    median: float
    spread: float
    """Standard deviation of its logarithm."""
    least: float
    most: float

    def draw(self, chosen: random.Random) -> float:
        number = math.exp(NormalDist(math.log(self.median), self.spread).inv_cdf(1 - chosen.random()))
        return min(self.most, max(self.least, number))


@dataclass(frozen=True)
class Workload:
    """One kind of tasks."""

    name: str
    digits: LongTail
    wait: LongTail | None
    """Seconds until a response is judged; None: processors judge it at once."""
    context: int
    """Longest sequence in tokens."""
    trained: int = NUM_TASKS - NUM_HELD_OUT
    """Number of tasks that a run explores."""
    epochs: int = 2
    """Of the warm start."""

    def tasks(self) -> list[dict[str, Any]]:
        """Different numbers, the same at each call. The first NUM_HELD_OUT are never trained on, and their
        judge does not wait."""
        chosen = random.Random(0)
        numbers: dict[str, None] = {}
        while len(numbers) < NUM_TASKS:
            numbers["".join(chosen.choices(DIGITS, k=round(self.digits.draw(chosen))))] = None
        tasks: list[dict[str, Any]] = [{"prompt": one, "answer": one[::-1]} for one in numbers]
        if self.wait is not None:
            for number, task in enumerate(tasks):
                task["wait"] = 0.0 if number < NUM_HELD_OUT else self.wait.draw(chosen)
        return tasks

    def warm_start(self) -> dict[str, Any]:
        """The configuration of the run that imitates."""
        model = {**WARMUP["model"], "scratch": {**WARMUP["model"]["scratch"], "context": self.context}}
        trainer = {**WARMUP["trainer"], "epochs": self.epochs}
        return {
            **WARMUP,
            "name": "warm-start",
            "model": model,
            "data": [DEMONSTRATIONS],
            "trainer": trainer,
        }

    def run(self, mode: "Mode", seed: int, steps: int) -> dict[str, Any]:
        """The configuration of a run in a mode, but for the model that it starts from."""
        explorer: dict[str, Any] = {
            "group_size": GROUP_SIZE,
            "concurrency": mode.batches * ATTEMPTS,
            "max_new_tokens": round(self.digits.most) + 1,
        }
        if self.wait is not None:
            explorer["environment"] = {"name": f"{JUDGE}:WaitingJudge", "turns": 1}
        return {
            "name": "run",
            "seed": seed,
            "taskset": TASKS,
            "max_staleness": mode.max_staleness,
            "algorithm": dict(mode.algorithm),
            "explorer": explorer,
            # The last version alone: those before would take the explorer's time.
            "evaluation": {"taskset": HELD_OUT, "every": 10**6, "samples": 1},
            "processors": {"score": ["position_match"] if self.wait is None else []},
            "trainer": {
                **GRPO["trainer"],
                "steps": steps,
                "batch_size": GROUPS,
                "micro_batch_size": ATTEMPTS,
                "learning_rate": 1e-3,
            },
        }


LENGTHS = Workload("long-tailed lengths", LongTail(4, 0.7, 3, 40), None, context=96)
WAITING = Workload("environments that wait", LongTail(4, 1e-9, 4, 4), LongTail(2, 0.4, 0.5, 5), context=32)
WORKLOADS = (WAITING, LENGTHS)


@dataclass(frozen=True, eq=False)
class Mode:
    """How exploring and training follow one another."""

    name: str
    max_staleness: int
    batches: int
    """Batches whose attempts have a place in the explorer at a time."""
    algorithm: Mapping[str, Any] = field(default_factory=lambda: GRPO["algorithm"])


SYNCHRONOUS = Mode("synchronous", 0, 1)
ONE_STEP = Mode("one step off-policy", 1, 1)
ASYNCHRONOUS = tuple(Mode(f"staleness {limit}", limit, limit + 1) for limit in (1, 2, 4))
UNCORRECTED = Mode("staleness 4, not corrected", 4, 5, {"name": "grpo", "loss": "policy_gradient"})
"""Advantage times log-probability, as if no row were stale. In the others grpo's ratio is to the policy that
sampled the row, and clipped."""
MODES = (SYNCHRONOUS, ONE_STEP, *ASYNCHRONOUS, UNCORRECTED)


def combinations(seeds: range) -> Iterator[tuple[Workload, int, Mode]]:
    """All that is run; the modes of one workload and seed within the same minutes, in another order each."""
    for seed in seeds:
        turn = seed % len(MODES)
        for workload in WORKLOADS:
            for mode in MODES[turn:] + MODES[:turn]:
                yield workload, seed, mode
