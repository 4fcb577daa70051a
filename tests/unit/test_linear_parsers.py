"""Parsers of what a model writes: their time grows with the length of the text, not with its square."""

import ast
import importlib
import json
import random
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import trinity_db
from trinity_db.explorer.attempt import tools
from trinity_db.explorer.environments.adapters.reasoning_task import last_tagged
from trinity_db.io.interruptible_json import parse_json
from trinity_db.processors.answers import final, letters
from trinity_db.processors.children import blocks
from trinity_db.processors.jobs.words import PIECE, normalized, words
from trinity_db.processors.steps import clean, rewards

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
LITERALS += ("``` x ", "```a` ", "```\n", " ", "\n", "a ", "\u0315\u0300", "\uff9e\u0300")
BEGINNINGS = ("", "```", "<tool_call><function=f>", '<tool_call>{"name":')
TASK = {"answer": "1"}


class Whole:
    """A tokenizer whose tokens are one text."""

    chat_template = None
    eos_token_id = None
    all_special_tokens = ()
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        self.decode = lambda token_ids, **options: text


def called(text: str) -> Any:
    return tools.parse([], "", Whole(text), [{}])


PARSERS: dict[str, Callable[[str], Any]] = {
    "code": lambda text: [*blocks._blocks(text)],
    "tools": called,
    "exact_match": lambda text: rewards.exact_match(text, TASK),
    "final": final.final,
    "stated": lambda text: list(final.stated(text)),
    "stated_letters": letters.stated_letters,
    "position_match": lambda text: rewards.position_match(text, TASK),
    "number_match": lambda text: rewards.number_match(text, TASK),
    "not_empty": clean.not_empty,
    "in_script": lambda text: clean.in_script(text, scripts=["latin"]),
    "words": lambda text: sum(1 for _ in words(text)),
    "last_tagged": lambda text: last_tagged(text, "think"),
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


PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def test_parameters_are_those_of_the_pattern_that_defines_them() -> None:
    chance = random.Random(7)
    for _ in range(20_000):
        text = "".join(
            chance.choices(["<parameter=", ">", "k", "\n", "</parameter>", "<"], k=chance.randrange(14))
        )
        assert [*tools._parameters(text)] == PARAMETER.findall(text), text


def test_a_long_text_is_normalized_as_python_does() -> None:
    chance = random.Random(7)
    letters = "aé\u0301\u0327 \n漢각\u11a8\u1100カ\uff9e\ufdfa①ｶ.\u0e33"
    for _ in range(300):
        text = "".join(chance.choices(letters, k=chance.randrange(3 * PIECE)))
        assert normalized(text) == unicodedata.normalize("NFKC", text), text


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


SOURCES = ("processors", "explorer", "data", "page", "insight", "people", "sandbox")
"""Packages whose patterns may see a response, a prompt or a request."""
SHORT, LONG = 1 << 12, 1 << 15
ANYTHING = ("a", "a ", "1", "1 ", " ", "\n", "{", "(", '"', ",")
ANCHORED = {
    "tools._FUNCTION": "fullmatch",
    "final._JOINT": "fullmatch",
    "latex._DELIMITED": "fullmatch",
    "letters._BEFORE": "match",
    "letters._LABEL": "fullmatch",
    "letters._LOOSE": "match",
    "letters._ONLY_LETTERS": "fullmatch",
    "mathematics._LEADING_WORDS": "match",
    "mathematics._SET": "fullmatch",
    "numbers._JOINT": "fullmatch",
    "numbers._OR": "fullmatch",
    "words._NAME": "fullmatch",
    "words._WORDS": "fullmatch",
}
"""Patterns that must match a whole text, and are also tried on texts whose last character does not fit."""
NOT_TEXTS = {"origin.NAME", "origin.LOOPBACK", "start.PLAIN", "final._END", "final._MONEY"}
"""Patterns of host names in an option, and of values that are cut to a length."""
INLINE = {
    "processors/lists/lists.py": "names of steps",
    "processors/judging/endpoint.py": "a name in the configuration",
    "explorer/engines/settings.py": "a name in the configuration",
    "processors/steps/rewards.py": "the user's own pattern",
    "explorer/environments/adapters/gymnasium_text.py": "names of actions, which do not repeat",
    "data/rejects.py": "the name of a run",
    "data/copies/importer.py": "the name of a run",
    "insight/checks/tables.py": "the name of an index",
    "page/examples.py": "a file of the package",
}
"""Files that use a pattern without a name, and what it sees."""


def calls_of_re() -> Iterator[tuple[Path, str]]:
    """Each call of a function of `re` in SOURCES: the file and the function's name."""
    root = Path(trinity_db.__file__).parent
    for file in sorted(file for name in SOURCES for file in (root / name).resolve().rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
                yield file.relative_to(root if file.is_relative_to(root) else root.parent), node.func.attr  # type: ignore[attr-defined]


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    """The compiled patterns of SOURCES by the names of their module and variable."""
    found = dict[str, re.Pattern[str]]()
    for file in dict.fromkeys(file for file, function in calls_of_re() if function == "compile"):
        module = importlib.import_module(".".join(("trinity_db", *file.with_suffix("").parts)))
        for name, value in vars(module).items():
            for number, one in enumerate(within(value)):
                key = f"{file.stem}.{name}"
                found[key if value is one else f"{key}[{number}]"] = one
    return {name: one for name, one in found.items() if name not in NOT_TEXTS}


def within(value: Any) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from within(one)


def literals(parsed: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    """The literal texts in a pattern, each run of characters separately."""
    run = ""
    for kind, argument in parsed:
        if kind is codes.LITERAL:
            run += chr(argument)
            continue
        if run:
            yield run
            run = ""
        if kind is codes.BRANCH:
            for branch in argument[1]:
                yield from literals(branch)
        elif kind is codes.IN:
            yield from (chr(value) for member, value in argument[:1] if member is codes.LITERAL)
        elif isinstance(argument, tuple) and isinstance(argument[-1], _parser.SubPattern):
            yield from literals(argument[-1])
    if run:
        yield run


def worst_texts(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Beginnings and repetitions of what the pattern names, alone and with other characters."""
    own = [*dict.fromkeys(literals(_parser.parse(pattern.pattern, pattern.flags)))]
    repeated = [
        *own,
        "".join(own),
        *ANYTHING,
        *(f"{one}{more}" for one in own[:3] for more in ("a", "1", " ")),
    ]
    for beginning in ("", *own[:2]):
        yield from ((beginning, one) for one in dict.fromkeys(repeated) if one)


def test_each_pattern_has_a_name_by_which_it_is_found() -> None:
    assert {
        str(file) for file, function in calls_of_re() if function not in ("compile", "escape")
    } == INLINE.keys()
    assert len(patterns()) > 25


@pytest.mark.parametrize("name", patterns())
def test_time_of_a_pattern_grows_with_the_length_of_the_text(name: str) -> None:
    pattern = patterns()[name]
    apply = getattr(pattern, ANCHORED.get(name, "findall"))
    for beginning, one in worst_texts(pattern):
        for end in ("", "~") if name in ANCHORED else ("",):
            short, long = (beginning + one * (size // len(one)) + end for size in (SHORT, LONG))
            limit = 3 * LONG / SHORT * max(seconds(apply, short), 0.004)
            assert seconds(apply, long) < limit, (beginning, one, end)
