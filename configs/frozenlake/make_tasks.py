"""Writes tasks.jsonl and demonstrations.jsonl: python configs/frozenlake/make_tasks.py FOLDER

A task is the seed of a lake. The demonstrations are single moves of a walker that heads for the goal and
ignores holes: mostly right and down, sometimes back.
"""

import json
import random
import sys
from pathlib import Path

from frozen_lake import FrozenLake

NUM_TASKS = 4000
NUM_DEMONSTRATIONS = 2000
STEPS = "RRRRDDDDLU"  # equally likely


def demonstration(number):
    """Return the walker's observation somewhere on its way, and its next move."""
    lake = FrozenLake()
    seen, _ = lake.reset(seed=NUM_TASKS + number, options={})  # not a lake of the tasks
    for _ in range(random.randrange(6)):
        seen, *_ = lake.step(random.choice(STEPS))
    return {"prompt": seen, "completion": random.choice(STEPS)}


random.seed(0)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
with open(folder / "tasks.jsonl", "w") as file:
    for seed in range(NUM_TASKS):
        file.write(json.dumps({"prompt": f"lake {seed}", "seed": seed}) + "\n")
with open(folder / "demonstrations.jsonl", "w") as file:
    for number in range(NUM_DEMONSTRATIONS):
        file.write(json.dumps(demonstration(number)) + "\n")
