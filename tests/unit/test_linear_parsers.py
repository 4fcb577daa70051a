"""Parsers of what a model writes: their time grows with the length of the text, not with its square."""

import json
import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from trinity_db.explorer import tools
from trinity_db.interruptible_json import parse_json
from trinity_db.processors.steps import clean, code, rewards
from trinity_db.processors.words import words

SMALL, LARGE = 1 << 15, 1 << 18
MOST = 3 * LARGE / SMALL  # a quadratic parser takes 64 times as long
LITERALS: tuple[str, ...] = (
    "`",
    "```",
    "<tool_call>",
    "<tool_call><function=f>",
    "<parameter=",
    "<parameter=a>",
    "<function=",
    "</function>",
    "<think>",
    "</think>",
    "\\boxed{",
    "(",
    "{",
    "[",
    "1",
    "1,234",
    "-1.",
    ".",
    "####",
    "a",
    "é",
    "\\",
)
LITERALS += ("``` x ", "```a` ", "```\n", " ", "\n", "a ")
BEGINNINGS = ("", "```", "<tool_call><function=f>", '<tool_call>{"name":')
TASK = {"answer": "1"}


class Whole:
    """A tokenizer whose tokens are one text."""

    def __init__(self, text: str) -> None:
        self.decode = lambda token_ids, **options: text


def called(text: str) -> Any:
    return tools.parse([], "", Whole(text), [{}])


PARSERS: dict[str, Callable[[str], Any]] = {
    "code": code._code,
    "tools": called,
    "exact_match": lambda text: rewards.exact_match(text, TASK),
    "position_match": lambda text: rewards.position_match(text, TASK),
    "number_match": lambda text: rewards.number_match(text, TASK),
    "not_empty": clean.not_empty,
    "in_script": lambda text: clean.in_script(text, scripts=["latin"]),
    "words": lambda text: sum(1 for _ in words(text)),
}


def seconds(parse: Callable[[str], Any], text: str) -> float:
    begun = time.process_time()
    parse(text)
    return time.process_time() - begun


@pytest.mark.parametrize("name", PARSERS)
def test_time_grows_with_the_length_of_the_worst_text(name: str) -> None:
    parse = PARSERS[name]
    for beginning in BEGINNINGS:
        for literal in LITERALS:
            small, large = (beginning + literal * (size // len(literal)) for size in (SMALL, LARGE))
            # Twenty milliseconds hide what a small text costs whatever it is, as imports and garbage.
            assert seconds(parse, large) < MOST * max(seconds(parse, small), 0.02), (beginning, literal)


def test_each_reward_of_a_text_is_tried() -> None:
    names = {name for name, one in vars(rewards).items() if type(one) is type(rewards.exact_match)}
    texts = {name for name in names if "response" in getattr(rewards, name).__code__.co_varnames}
    assert texts - {"regex_match"} <= PARSERS.keys()  # its pattern is the user's own


BLOCK = re.compile(r"```[^`\n]*```|```[ \t]*([^\s`]*)[^`\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def test_blocks_and_parameters_are_those_of_the_patterns_that_define_them() -> None:
    chance = random.Random(7)
    for _ in range(20_000):
        text = "".join(chance.choices(["`", "```", "\n", "py", " ", "x"], k=chance.randrange(14)))
        found = [(one[1].lower(), one[2]) for one in BLOCK.finditer(text) if one[2] is not None]
        assert [*code._blocks(text)] == found, text
        text = "".join(
            chance.choices(["<parameter=", ">", "k", "\n", "</parameter>", "<"], k=chance.randrange(14))
        )
        assert [*tools._parameters(text)] == PARAMETER.findall(text), text


def test_long_json_is_read_as_short_json_is() -> None:
    value: Any = {
        "text": "a\u00e9\U0001f600\n" * 5_000,
        "numbers": [1, -2.5, 1e30, None, True],
        "deep": [[{"a": {}}]],
    }
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value
    for wrong in (b"[" * 100_000, b"\xff" * 20_000, b'{"a": ' + b" " * 20_000, b"1 " * 20_000):
        with pytest.raises((ValueError, RecursionError)):
            parse_json(wrong)
