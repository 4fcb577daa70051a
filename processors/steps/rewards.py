"""Steps of `score` that compare a response with its task; usually 1 for correct and 0 for wrong.

If an attempt has several responses, each is scored. A task may have several right answers, as a list or under
a key such as `target`; a response that equals one of them is correct. A row fails if its task has no answer,
or one that the step cannot compare. If a response contains thoughts, the text after the last one is compared;
a response that ends within a thought is compared as an empty one.
"""

import re
from collections.abc import Mapping
from typing import Any

from trinity_db.models.chat.thoughts import after_thoughts
from trinity_db.processors.answers.accepted import accepted
from trinity_db.processors.answers.numbers import accepted_numbers, final_number
from trinity_db.processors.lists.step import step


@step(version=3)
def exact_match(response: str, task: Mapping[str, Any], prompt: str = "") -> float:
    """Scores 1 if the response equals the answer, ignoring surrounding white space and thoughts."""
    answer_text = after_thoughts(response, prompt).strip()
    return float(answer_text in [answer.strip() for answer in accepted(task)])


@step(version=3)
def position_match(response: str, task: Mapping[str, Any], prompt: str = "") -> float:
    """Scores the share of characters that match the answer at the same position; 1 only for the exact
    answer. Thoughts are ignored."""
    answer_text = after_thoughts(response, prompt).strip()
    return max(_matching_share(answer_text, answer.strip()) for answer in accepted(task))


@step(version=2)
def regex_match(response: str, task: Mapping[str, Any], *, pattern: str) -> float:
    """Scores 1 if the pattern matches and its first group, if any, equals the answer.

    `{answer}` in the pattern is replaced with the task's answer. The pattern is searched in the whole
    response, including thoughts, and its first match counts.
    """
    answers = [answer.strip() for answer in accepted(task)]
    any_answer = f"(?:{'|'.join(map(re.escape, answers))})"
    match = re.search(pattern.replace("{answer}", any_answer), response, re.DOTALL)
    if match is None or not match.groups():
        return float(match is not None)
    return float((match[1] or "").strip() in answers)


@step(version=3)
def number_match(response: str, task: Mapping[str, Any], prompt: str = "", *, after: str = "####") -> float:
    """Scores 1 if the last number of the response equals the answer's.

    If `after` occurs in the response or the answer, the line after its last occurrence counts (GSM8K's
    "#### 18"). Whole numbers of any length, decimals, fractions such as 3/4 or 3 1/2, and 2e5 or 2*10^5 are
    compared exactly; units and percent signs are ignored. A response that ends with two alternatives, such as
    "4 or 5" or "#### 4, 5", scores 0. A row whose answer has no number, or several different ones, fails.
    """
    number = final_number(after_thoughts(response, prompt), after)
    return float(number in accepted_numbers(accepted(task), after))


@step()
def overlong_penalty(response_length: int, *, max_response_length: int, buffer_length: int) -> float:
    """Scores 0 up to `buffer_length` tokens below the maximum length, falling linearly to -1 at the maximum.

    It depends only on the length; combine it with a step that scores correctness. Its weight sets the
    penalty's size. Beyond the maximum length it stays at -1, like in the paper, Trinity-RFT and OpenRLHF; in
    verl and AReaL it keeps falling, which makes no difference if explorers stop at the maximum.

    Source: soft overlong punishment of DAPO, arXiv 2503.14476 section 3.4.
    """
    if not 0 < buffer_length <= max_response_length:
        raise ValueError(f"buffer_length {buffer_length} is not between 1 and {max_response_length} tokens")
    remaining = max_response_length - response_length
    return min(max(remaining / buffer_length - 1.0, -1.0), 0.0)


def _matching_share(text: str, answer: str) -> float:
    hits = sum(character == expected for character, expected in zip(text, answer, strict=False))
    return hits / max(len(text), len(answer), 1)
