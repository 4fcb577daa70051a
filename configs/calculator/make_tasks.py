"""Writes tasks.jsonl and demonstrations.jsonl: python configs/calculator/make_tasks.py FOLDER

A demonstration is one turn. Half of the demonstrated attempts guess an answer, like a model that was never
trained to use tools; the others call the calculator twice and copy the answer.
"""

import json
import random
import sys
from pathlib import Path

from calculator import calculate

NUM_TASKS = 4000
NUM_DEMONSTRATED = 2000
GUESSED = 0.5  # share of the demonstrated attempts


def attempt(task):
    """Return the turns of one attempt: the text read so far, and the policy's next text."""
    question, answer = task["prompt"], task["answer"]
    if random.random() < GUESSED:
        return [(question, f"{random.randint(100, 9900):04}")]
    product, sign, third = question.rstrip("=").partition("+")
    first = f"[{product}]"
    begun = f"{question}{first}{calculate(first)}="
    second = f"[{calculate(first)}{sign}{third}]"
    return [(question, first), (begun, second), (f"{begun}{second}{answer}=", answer)]


random.seed(0)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
tasks = {}
while len(tasks) < NUM_TASKS:
    a, b, c = (random.randint(11, 99) for _ in range(3))
    if a * b + c < 10_000:
        tasks[a, b, c] = {"prompt": f"{a}*{b}+{c}=", "answer": f"{a * b + c:04}"}
with open(folder / "tasks.jsonl", "w") as file:
    file.writelines(json.dumps(task) + "\n" for task in tasks.values())
with open(folder / "demonstrations.jsonl", "w") as file:
    for task in list(tasks.values())[:NUM_DEMONSTRATED]:
        for prompt, completion in attempt(task):
            file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")
