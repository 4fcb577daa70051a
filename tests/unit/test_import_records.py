"""Records: what a row must hold to be one, and the key that its content gives it."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.columns import read, reason
from trinity_db.data.records.records import Kind, Task

USER = {"role": "user", "content": "What color is the sky?"}
BLUE = {"role": "assistant", "content": "It is blue."}
GREEN = {"role": "assistant", "content": "It is green."}
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
UNPAIRED = {"prompt": "a", "completion": "b"}

NO_MESSAGES = "'prompt' must hold messages with 'role' and 'content'"
NO_CONTENT = "'prompt' holds a message whose 'content' is not text"
NO_SHARED_PROMPT = "'prompt' is missing, and 'chosen' and 'rejected' begin differently"
NO_REPLY = "'response' must be text, or messages that begin with an assistant turn"
NO_END = "'response' must end with an assistant turn"
NUL = "holds a NUL character, which PostgreSQL text cannot"
SURROGATE = "holds half of a surrogate pair, which is not a character"
NOT_FINITE = "holds a number that is not finite"


@pytest.mark.parametrize(
    ("kind", "row", "expected"),
    [
        ("tasks", {}, "'prompt' is missing"),
        ("tasks", {"prompt": None}, "'prompt' is null"),
        ("tasks", {"prompt": ""}, "'prompt' is empty"),
        ("tasks", {"prompt": " \n"}, "'prompt' is empty"),
        ("tasks", {"prompt": 7}, "'prompt' must be text, not a number"),
        ("tasks", {"prompt": {"a": 1}}, "'prompt' must be text, not an object"),
        ("tasks", {"prompt": []}, "'prompt' is empty"),
        ("tasks", {"prompt": ["a"]}, NO_MESSAGES),
        ("tasks", {"prompt": [{"from": "human", "content": "a"}]}, NO_MESSAGES),
        ("tasks", {"prompt": [{"role": "user", "content": None}]}, NO_CONTENT),
        ("tasks", {"prompt": [{"role": "user", "content": [7]}]}, NO_CONTENT),
        ("tasks", {"prompt": [{"role": "user", "content": ""}]}, "'prompt' is empty"),
        ("tasks", {"messages": "a"}, "'messages' must be a list of messages, not text"),
        ("tasks", {"prompt": "a\x00b"}, NUL),
        ("tasks", {"prompt": "a", "\x00": 1}, NUL),
        ("tasks", {"prompt": "a", "b": [{"c": "\x00"}]}, NUL),
        ("tasks", {"prompt": "a\ud800"}, SURROGATE),
        ("tasks", {"prompt": "a", "level": math.nan}, NOT_FINITE),
        ("tasks", {"prompt": "a", "level": math.inf}, NOT_FINITE),
        ("tasks", {"prompt": "a" * 2**23}, "is longer than 8 MiB"),
        ("demonstrations", {"prompt": "a"}, "'response' is missing"),
        ("demonstrations", {"completion": "a"}, "'prompt' is missing"),
        ("demonstrations", {"prompt": "a", "completion": None}, "'response' is null"),
        ("demonstrations", {"prompt": "a", "completion": "  "}, "'response' is empty"),
        ("demonstrations", {"prompt": [USER], "completion": [USER]}, NO_REPLY),
        ("demonstrations", {"prompt": [USER], "completion": [BLUE, USER]}, NO_END),
        ("demonstrations", {"messages": None}, "'prompt' is missing"),
        ("demonstrations", {"messages": []}, "'messages' is empty"),
        ("demonstrations", {"messages": [BLUE]}, "'messages' holds a response without a prompt"),
        (
            "demonstrations",
            {"messages": [USER, BLUE, USER]},
            "'messages' does not end with the assistant's response",
        ),
        ("demonstrations", {"messages": [USER, BLUE | {"content": ""}]}, "'messages' is empty"),
        ("preferences", {"prompt": "a"}, "'chosen' is missing"),
        ("preferences", {"prompt": "a", "chosen": "b"}, "'rejected' is missing"),
        ("preferences", {"prompt": "a", "chosen": "b", "rejected": None}, "'rejected' is null"),
        ("preferences", {"prompt": "a", "chosen": "b", "rejected": ""}, "'rejected' is empty"),
        ("preferences", {"prompt": "a", "chosen": "b", "rejected": "b"}, "'chosen' equals 'rejected'"),
        ("preferences", {"chosen": "a b", "rejected": "a b"}, "'chosen' equals 'rejected'"),
        ("preferences", {"chosen": [USER, BLUE], "rejected": [USER, BLUE]}, "'chosen' equals 'rejected'"),
        ("preferences", {"prompt": "a", "chosen": 1, "rejected": "b"}, "'chosen' must be text, not a number"),
        (
            "preferences",
            {"prompt": "a", "chosen": [BLUE], "rejected": "b"},
            "'chosen' must be text, not a list",
        ),
        ("preferences", {"chosen": "b", "rejected": "c"}, NO_SHARED_PROMPT),
        ("preferences", {"chosen": " b", "rejected": " c"}, NO_SHARED_PROMPT),
        ("preferences", {"chosen": [BLUE], "rejected": [GREEN]}, NO_SHARED_PROMPT),
        ("preferences", {"chosen": [USER, BLUE], "rejected": [USER]}, "'rejected' is empty"),
        (
            "preferences",
            {"chosen": [USER, BLUE, USER], "rejected": [USER, GREEN]},
            "'chosen' must end with an assistant turn",
        ),
        ("preferences", PAIR | {"margin": "1"}, "'margin' must be a number, not text"),
        ("preferences", UNPAIRED, "'label' is missing"),
        ("preferences", UNPAIRED | {"label": "good"}, "'label' must be true or false, not text"),
        ("preferences", UNPAIRED | {"label": 2}, "'label' must be true or false, not another number"),
        (
            "trajectories",
            {"prompt": "a", "response": "b", "reward": "1"},
            "'reward' must be a number, not text",
        ),
        ("trajectories", {"prompt": "a", "response": "b", "reward": math.nan}, "'reward' is not finite"),
        ("trajectories", {"prompt": "a", "response": "b", "reward": math.inf}, "'reward' is not finite"),
        ("trajectories", {"prompt": "a", "response": "b", "reward": 10**400}, "'reward' is not finite"),
        ("trajectories", {"prompt": "a", "response": "b", "model": 7}, "'model' must be text, not a number"),
        ("trajectories", {"prompt": "a"}, "'response' is missing"),
    ],
)
def test_a_row_that_is_no_record_is_rejected_with_the_reason(
    kind: Kind, row: dict[str, Any], expected: str
) -> None:
    assert reason(kind, row) == expected


def test_reasons_name_the_columns_of_the_user() -> None:
    assert reason("tasks", {"question": None}, prompt="question") == "'question' is null"
    assert reason("tasks", {"prompt": "a"}, prompt="question") == "'question' is missing"
    assert reason("tasks", {"a": {"b": " "}}, prompt="a.b") == "'a.b' is empty"
    assert reason("tasks", {"a": "text"}, prompt="a.b") == "'a.b' is missing"
    row = {"prompt": "p", "x": "same", "y": "same"}
    assert reason("preferences", row, chosen="x", rejected="y") == "'x' equals 'y'"
    attempt = {"prompt": "p", "response": "r", "score": 1}
    assert reason("trajectories", attempt, reward="points") == "'points' is missing"


def test_a_nested_row_that_exhausts_the_stack_is_rejected() -> None:
    value: Any = "deep"
    for _ in range(100_000):
        value = [value]
    assert reason("tasks", {"prompt": "p", "x": value}) == "is nested too deeply"


def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    assert read("tasks", {"prompt": "write \\u0000"}) == Task({"prompt": "write \\u0000"})


def test_the_key_is_the_same_in_every_run() -> None:
    record = read("preferences", {"prompt": "p", "chosen": "a", "rejected": "b"})
    assert str(record.key) == "30761ed8-f201-a962-ce90-f325e67e30c4"


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text("xé"),
            lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
            max_leaves=10,
        ),
    )
)
def test_the_key_depends_on_the_content_alone(extra: dict[str, Any]) -> None:
    row = {"prompt": "p", "response": "r"} | extra
    turned = dict(reversed(json.loads(json.dumps(row)).items())) | {"none": None}
    assert read("demonstrations", row).key == read("demonstrations", turned).key
    assert read("demonstrations", row | {"response": "s"}).key != read("demonstrations", row).key


def test_records_of_different_kinds_have_different_keys() -> None:
    row = {"prompt": "p", "response": "r", "label": True}
    kinds: list[Kind] = ["tasks", "demonstrations", "preferences", "trajectories"]
    assert len({read(kind, row).key for kind in kinds}) == 4
