"""Reward functions: from a response and its task to a number.

A function takes the response's text and the task's payload, and returns a finite number, by
custom 1 for right and 0 for wrong. Options from the configuration arrive as keyword arguments; so do,
where a function has parameters of that name, `response_length` in tokens, and of an attempt that has
several responses the place of this one and of the last, `step` and `last_step`, from 0 on. Each is judged.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from trinity_db import functions
from trinity_db.errors import ConfigError

RewardFunction = Callable[[Mapping[str, Any]], Any]
"""Reads `response`, `task` and what is in MEASURED of a row. A user's own function may return anything."""

MEASURED = {"response_length", "step", "last_step"}

# A number as people write it: sign, thousands separators, decimals; 1,234.50 and -3 and .5.
NUMBER = re.compile(r"-?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)")


def exact_match(response: str, task: Mapping[str, Any]) -> float:
    """1 if the response is the answer, surrounding white space aside."""
    return float(response.strip() == _answer(task).strip())


def position_match(response: str, task: Mapping[str, Any]) -> float:
    """Share of the characters that stand where the answer has them; 1 only for the answer itself."""
    response, answer = response.strip(), _answer(task).strip()
    hits = sum(given == wanted for given, wanted in zip(response, answer, strict=False))
    return hits / max(len(response), len(answer), 1)


def regex_match(response: str, task: Mapping[str, Any], pattern: str) -> float:
    """1 if the pattern is found and its first group, if it has one, is the answer.

    `{answer}` in the pattern stands for the task's answer.
    """
    found = re.search(pattern.replace("{answer}", re.escape(_answer(task).strip())), response, re.DOTALL)
    if found is None or not found.groups():
        return float(found is not None)
    return float((found.group(1) or "").strip() == _answer(task).strip())


def number_match(response: str, task: Mapping[str, Any], after: str = "####") -> float:
    """1 if the last number of the response equals the answer's.

    In both texts only what follows the last `after` counts, where it occurs (GSM8K's "#### 18").
    """
    given, wanted = final_number(response, after), final_number(_answer(task), after)
    return float(given is not None and given == wanted)


def overlong_penalty(
    response: str,
    task: Mapping[str, Any],
    *,
    response_length: int,
    max_response_length: int,
    buffer_length: int,
) -> float:
    """0 while `buffer_length` tokens are left to the longest response, from there falling evenly to -1.

    A function of the length alone, added to one that says what is right; its weight is the size of the
    penalty. It stays at -1 beyond the longest response, as in the paper, Trinity-RFT and OpenRLHF; verl and
    AReaL let it fall on, which makes no difference where explorers stop there.

    Source: soft overlong punishment of DAPO, arXiv 2503.14476 section 3.4.
    """
    if not 0 < buffer_length <= max_response_length:
        raise ValueError(f"buffer_length {buffer_length} is not between 1 and {max_response_length} tokens")
    left = max_response_length - response_length
    return min(max(left / buffer_length - 1.0, -1.0), 0.0)


def _answer(task: Mapping[str, Any]) -> str:
    if "answer" not in task:
        raise ValueError(
            "the task has no 'answer'; import tasks with --map answer=COLUMN, under another --name"
        )
    return str(task["answer"])


def final_number(text: str, after: str) -> float | None:
    """The last number in the text behind the last `after`; None where there is none."""
    numbers = NUMBER.findall(text.rsplit(after, 1)[-1])
    return float(numbers[-1].replace(",", "")) if numbers else None


FUNCTIONS: dict[str, Callable[..., float]] = {
    function.__name__: function
    for function in (exact_match, position_match, regex_match, number_match, overlong_penalty)
}


FOREIGN = {
    "TRL": {"completions"},
    "verl": {"solution_str", "ground_truth"},
}
"""Parameters by which a function that was written for another trainer is known."""


def load(name: str, options: Mapping[str, Any]) -> RewardFunction:
    """The function of that name, or the one that `path/to/file.py:name` names, with its options.

    Raises:
        ConfigError: there is no such function, it does not take these options, or it is written for another
            trainer.
    """
    function = functions.find(name, "reward function", FUNCTIONS)
    parameters = inspect.signature(function).parameters.keys()
    for trainer, known in FOREIGN.items():
        if known <= parameters:
            raise ConfigError(
                f"Reward function '{name}' has a signature of {trainer}'s. Here it judges one response and "
                "returns one number: def reward(response, task, **options) -> float, where task has the "
                "columns of the imported task, as task['answer']."
            )
    measured = MEASURED & parameters
    how = "(response, task, **options)"
    trial = {**options, **dict.fromkeys(measured)}
    functions.check_call(function, f"Reward function '{name}'", how, ("", {}), trial)

    def reward(row: Mapping[str, Any]) -> float:
        return function(row["response"], row["task"], **{**options, **{key: row[key] for key in measured}})

    return reward
