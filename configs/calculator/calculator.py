"""A policy that may call a calculator: the tool, and the workflow that makes one attempt at a task."""

import re

TURNS = 3  # two calls and the answer
CALL = re.compile(r"\[(\d+)([+*])(\d+)\]")


def calculate(call):
    """Return the four digits of the display after a call like [12*34]; E if the call is malformed."""
    match = CALL.fullmatch(call)
    if match is None:
        return "E"
    first, second = int(match[1]), int(match[3])
    result = first + second if match[2] == "+" else first * second
    return f"{result:04}" if result < 10_000 else "E"


async def attempt(task, policy):
    """Let the policy call the calculator or answer; only the answer is judged.

    The conversation is one sequence, in which only the tokens of the policy's turns are trained.
    """
    ids = policy.tokenizer.encode(task["prompt"])
    for _ in range(TURNS):
        sampled = (await policy.sample(ids, stop="]")).token_ids
        text = policy.tokenizer.decode(sampled, skip_special_tokens=True)
        if not text.startswith("["):
            return float(text == task["answer"])
        ids += sampled + policy.tokenizer.encode(f"{calculate(text)}=")
    return 0.0
