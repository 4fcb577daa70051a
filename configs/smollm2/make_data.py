"""Write tasks, demonstrations and pairs: python configs/smollm2/make_data.py FOLDER [GSM8K]

FOLDER gets sums of two digits (addition*.jsonl) and word problems of two steps (words*.jsonl). GSM8K, a
folder with example_model_solutions.jsonl, adds pairs of a correct and a wrong solution (pairs.jsonl).
"""

import json
import random
import sys
from pathlib import Path

NUM_DEMONSTRATIONS = 96  # enough for the form of a solution; GRPO teaches the rest
NUM_WORD_PROBLEMS = 400
NUM_HELD_OUT = 20
# Each problem: its text, and the two operations on the three numbers a, b and c.
PROBLEMS = [
    ("{name} buys {a} boxes of {b} {things} and gives {c} {things} away. How many are left?", "*-"),
    ("{name} has {a} {things}, finds {b} more and loses {c}. How many {things} are left?", "+-"),
    ("{name} picks {a} {things} in the morning and {b} at noon, {c} days long. How many in all?", "+*"),
    ("{name} had {a} {things}, sold {b}, and then bought {c}. How many {things} are there now?", "-+"),
]
NAMES = ("Mia", "Omar", "Lena", "Ravi", "Ada", "Tom")
THINGS = ("apples", "marbles", "books", "shells", "stamps", "pens")
COMPUTE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def additions():
    """Return all sums of two digits in random order."""
    rows = [
        {"prompt": f"What is {a} plus {b}? Answer with the number only.", "answer": str(a + b)}
        for a in range(10)
        for b in range(10)
    ]
    random.shuffle(rows)
    return rows


def word_problem():
    """Return a question, its solution (two lines and a last line with the answer), and the answer."""
    text, (first, second) = random.choice(PROBLEMS)
    a, b, c = random.randint(3, 12), random.randint(2, 9), random.randint(2, 5)
    middle = COMPUTE[first](a, b)
    answer = COMPUTE[second](middle, c)
    if middle < 0 or answer < 0:
        return word_problem()
    question = text.format(name=random.choice(NAMES), things=random.choice(THINGS), a=a, b=b, c=c)
    solution = f"{a} {first} {b} = {middle}\n{middle} {second} {c} = {answer}\n#### {answer}"
    return {"prompt": question, "answer": str(answer), "solution": solution}


def different_problems(count):
    problems = {}
    while len(problems) < count:
        problem = word_problem()
        problems[problem["prompt"]] = problem
    return list(problems.values())


def demonstration(problem):
    """Return a conversation of one question and its solution."""
    return {"messages": [user(problem["prompt"]), assistant(problem["solution"])]}


def pairs(path):
    """Yield pairs of a correct and a wrong solution, of questions on which the four models disagree."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        solutions = [value for value in row.values() if isinstance(value, dict)]
        correct = [value["solution"] for value in solutions if value["is_correct"]]
        wrong = [value["solution"] for value in solutions if not value["is_correct"]]
        for chosen, rejected in zip(correct, wrong, strict=False):
            yield {
                "prompt": [user(row["question"])],
                "chosen": [assistant(chosen)],
                "rejected": [assistant(rejected)],
            }


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def write(name, rows):
    with open(folder / f"{name}.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


random.seed(0)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
sums = additions()
write("addition", sums[NUM_HELD_OUT:])
write("addition-test", sums[:NUM_HELD_OUT])
problems = different_problems(NUM_DEMONSTRATIONS + NUM_WORD_PROBLEMS + NUM_HELD_OUT)
write("words-demonstrations", map(demonstration, problems[:NUM_DEMONSTRATIONS]))
write("words", problems[NUM_DEMONSTRATIONS:-NUM_HELD_OUT])
write("words-test", problems[-NUM_HELD_OUT:])
if len(sys.argv) > 2:
    write("pairs", pairs(Path(sys.argv[2]) / "example_model_solutions.jsonl"))
