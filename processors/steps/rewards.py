"""Steps of `score`: from a response and its task to a number, by custom 1 for right and 0 for wrong.

Of an attempt that has several responses each is judged.
"""

import re
from collections.abc import Mapping
from typing import Any

from trinity_db.processors.step import step

# A number as people write it: sign, thousands separators, decimals; 1,234.50 and -3 and .5.
NUMBER = re.compile(r"-?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)")


@step()
def exact_match(response: str, task: Mapping[str, Any]) -> float:
    """1 if the response is the answer, surrounding white space aside."""
    return float(response.strip() == answer_of(task).strip())


@step()
def position_match(response: str, task: Mapping[str, Any]) -> float:
    """Share of the characters that stand where the answer has them; 1 only for the answer itself."""
    response, answer = response.strip(), answer_of(task).strip()
    hits = sum(given == wanted for given, wanted in zip(response, answer, strict=False))
    return hits / max(len(response), len(answer), 1)


@step()
def regex_match(response: str, task: Mapping[str, Any], *, pattern: str) -> float:
    """1 if the pattern is found and its first group, if it has one, is the answer.

    `{answer}` in the pattern stands for the task's answer.
    """
    found = re.search(pattern.replace("{answer}", re.escape(answer_of(task).strip())), response, re.DOTALL)
    if found is None or not found.groups():
        return float(found is not None)
    return float((found.group(1) or "").strip() == answer_of(task).strip())


@step()
def number_match(response: str, task: Mapping[str, Any], *, after: str = "####") -> float:
    """1 if the last number of the response equals the answer's.

    In both texts only what follows the last `after` counts, where it occurs (GSM8K's "#### 18").
    """
    given, wanted = final_number(response, after), final_number(answer_of(task), after)
    return float(given is not None and given == wanted)


@step()
def overlong_penalty(response_length: int, *, max_response_length: int, buffer_length: int) -> float:
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


def answer_of(task: Mapping[str, Any]) -> str:
    """The answer that a task was imported with.

    Raises:
        ValueError: it has none.
    """
    if "answer" not in task:
        raise ValueError(
            "the task has no 'answer'; import tasks with --map answer=COLUMN, under another --name"
        )
    return str(task["answer"])


def final_number(text: str, after: str) -> float | None:
    """The last number in the text behind the last `after`; None where there is none."""
    numbers = NUMBER.findall(text.rsplit(after, 1)[-1])
    return float(numbers[-1].replace(",", "")) if numbers else None
