"""Each conversion and each refusal of an import, and that the form of a conversation changes no record."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.columns import read, reason
from trinity_db.data.records import forms
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.forms import CONVERTED, REFUSED, Conversion, Refusal
from trinity_db.data.records.records import Kind

ASK = {"role": "user", "content": "2+2?"}
FOUR = {"role": "assistant", "content": "4"}
FIVE = {"role": "assistant", "content": "5"}
CALL = {"name": "add", "arguments": "{}"}


def talk(*turns: Any, **more: Any) -> tuple[Kind, dict[str, Any]]:
    return "demonstrations", {"messages": [ASK, *turns], **more}


def calls(*names: str, **more: Any) -> dict[str, Any]:
    made = [{"id": name, "type": "function", "function": CALL} for name in names]
    return {"role": "assistant", "content": "", "tool_calls": made} | more


def result(name: str | None) -> dict[str, Any]:
    return {"role": "tool", "content": "r"} | ({} if name is None else {"tool_call_id": name})


MET: dict[Conversion, tuple[Kind, dict[str, Any]]] = {
    forms.SHAREGPT: talk({"from": "gpt", "value": "4"}),
    forms.ALPACA: ("demonstrations", {"instruction": "a", "output": "b"}),
    forms.SYSTEM: ("tasks", {"system": "s", "prompt": "a"}),
    forms.HISTORY: ("tasks", {"history": [["a", "b"]], "prompt": "a"}),
    forms.FUNCTIONS: talk(FOUR, functions=[CALL]),
    forms.FUNCTION_CALL: talk({"role": "assistant", "function_call": CALL}),
    forms.CALL_TURNS: talk({"role": "tool_call", "content": json.dumps(CALL)}),
    forms.ROLE_NAMES: talk({"role": "Assistant", "content": "4"}),
    forms.JSON_TEXT: ("tasks", {"prompt": json.dumps([ASK])}),
    forms.ONE_MESSAGE: ("preferences", {"prompt": "a", "chosen": FOUR, "rejected": FIVE}),
    forms.PARTS: talk({"role": "assistant", "content": ["4"]}),
    forms.NULL_CONTENT: talk(calls("a", content=None)),
    forms.NO_ARGUMENTS: talk({"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}),
    forms.RESULT_ORDER: talk(calls("a", "b"), result("b"), result("a"), FOUR),
    forms.MASK: talk(FIVE | {"train": False}, ASK, FOUR),
    forms.CUT_OFF: talk(FOUR, ASK, FIVE | {"weight": 0}),
    forms.REPEATED: talk(FOUR, prompt="2+2?"),
    forms.SHARED: ("preferences", {"chosen": [ASK, FOUR], "rejected": [ASK, FIVE]}),
    forms.LAST_TURN: ("tasks", {"messages": [ASK, FOUR]}),
}

UNMET: dict[Refusal, tuple[Kind, dict[str, Any]]] = {
    forms.TWO_COLUMNS: ("tasks", {"prompt": "a", "instruction": "b"}),
    forms.TWO_PROMPTS: talk(FOUR, prompt="other"),
    forms.TREE: ("demonstrations", {"text": "2+2?", "role": "prompter", "parent_id": None}),
    forms.NOT_MESSAGES: talk({"content": "4"}),
    forms.NO_CONTENT: talk({"role": "assistant", "content": None}),
    forms.BROKEN_JSON: ("tasks", {"prompt": str([ASK])}),
    forms.NO_CALL: talk({"role": "function_call", "content": "add()"}),
    forms.TWO_CALLS: talk(calls("a", function_call=CALL)),
    forms.BAD_CALL: talk({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}),
    forms.BAD_ARGUMENTS: talk({"role": "assistant", "function_call": CALL | {"arguments": '{"a": NaN}'}}),
    forms.NO_RESULT: talk(calls("a", "b"), result("a"), FOUR),
    forms.LOST_RESULT: talk(calls("a"), result("b"), FOUR),
    forms.UNCLEAR_RESULT: talk(calls("a", "b"), result("a"), result(None), FOUR),
    forms.BAD_MASK: talk(FIVE | {"weight": 0.5}, ASK, FOUR),
    forms.OTHER_TRAINED: talk(FIVE, ASK | {"weight": 1}, FOUR),
    forms.PART_TRAINED: talk(FOUR | {"train_detail": []}),
    forms.OTHER_ARGUMENTS: talk({"role": "assistant", "tool_calls": [{"name": "add", "args": {"a": 1}}]}),
    forms.UNEQUAL_CALLS: talk(
        *({"role": "tool_call", "content": json.dumps(CALL), "train": train} for train in (1, 0)), FOUR
    ),
    forms.TWO_THOUGHTS: talk(FOUR | {"thinking": "a", "reasoning_content": "b"}),
    forms.PLAIN_TOOLS: ("demonstrations", {"prompt": "a", "completion": "b", "tools": json.dumps([CALL])}),
    forms.NOT_TEXT: ("tasks", {"instruction": "a", "input": ["b"]}),
    forms.BAD_HISTORY: ("tasks", {"prompt": "a", "history": ["b"]}),
}  # fmt: skip


def test_the_tables_are_complete() -> None:
    assert set(MET) == set(CONVERTED)
    assert {*UNMET, forms.NOT_READ} == set(REFUSED)  # which needs a mapping


@pytest.mark.parametrize("form", MET, ids=lambda form: form.name)
def test_each_conversion_is_counted(form: Conversion) -> None:
    kind, row = MET[form]
    columns = Columns(kind)
    [record] = columns.read(row)
    assert columns.account.jsonable()["converted"][form.name] == 1, record
    assert f"converted in 1: {form.name}: " in "\n".join(columns.account.lines())


@pytest.mark.parametrize("refusal", UNMET, ids=lambda refusal: refusal.reason)
def test_each_refusal_has_its_reason(refusal: Refusal) -> None:
    start, _, end = refusal.reason.partition("'{}'")
    found = reason(*UNMET[refusal])
    assert found.startswith(start + "'")
    assert found.endswith(end.rpartition("'{}'")[2])


@pytest.mark.parametrize(
    ("kind", "row", "mapping"),
    [
        (*talk(FOUR, context="c"), {"input": "context"}),
        ("demonstrations", {"prompt": [ASK], "completion": "b", "context": "c"}, {"input": "context"}),
        ("demonstrations", {"prompt": "a", "completion": "b", "used": ["t"]}, {"tools": "used"}),
        ("preferences", {"prompt": "a", "chosen": "b", "rejected": "c", "good": True}, {"label": "good"}),
    ],
)
def test_a_mapped_column_is_read_or_refused(kind: Kind, row: dict[str, Any], mapping: dict[str, str]) -> None:
    [column] = mapping.values()
    assert reason(kind, row, **mapping) == f"'{column}' is mapped, and the row is read without it"
    assert not hasattr(read(kind, row | {column: None}, **mapping), "reason")


def test_an_empty_list_contradicts_no_other_column() -> None:
    tool = {"type": "function", "function": CALL}
    for columns in ({"tools": [], "functions": [CALL]}, {"tools": [tool], "functions": []}):
        assert read(*talk(FOUR, **columns)).task.payload["tools"] == [tool]
    assert "tools" not in read(*talk(FOUR, tools=[], functions=[])).task.payload


def test_arguments_are_looked_for_in_one_key_alone() -> None:
    for call in (
        {"name": "add", "parameters": {"a": 1}},
        {"function": {"name": "add"}, "arguments": {"a": 1}},
        {"function": {"name": "add", "arguments": None, "input": {"a": 1}}},
    ):
        assert "a tool call without 'arguments', but with '" in reason(
            *talk({"role": "assistant", "tool_calls": [call]})
        )
    for written in ('{"a": 1, "a": 2}', '{"a": 1e999}'):
        calling = {"role": "assistant", "tool_calls": [{"name": "add", "arguments": written}]}
        assert reason(*talk(calling)).endswith("whose 'arguments' are not a JSON object")


def test_a_thought_of_a_later_call_is_not_lost() -> None:
    first, second = ({"from": "function_call", "value": json.dumps(CALL)} for _ in range(2))
    assert "different masks or thoughts" in reason(*talk(first, second | {"thinking": "t"}))
    assert read(*talk(first | {"thinking": "t"}, second)).response[0]["thinking"] == "t"


def test_equal_thoughts_and_null_types_and_tools_are_read() -> None:
    record = read(
        "demonstrations",
        {
            "messages": [{"role": "user", "content": [{"type": None, "text": "2+2?"}]}, FOUR],
            "prompt": [ASK],
            "completion": [FOUR],
            "tools": "null",
        },
    )
    assert (record.task.payload, record.response) == ({"messages": [ASK]}, "4")
    thoughts = {"reasoning": "t", "reasoning_content": "t"}
    assert read(*talk(FOUR | thoughts)).response[0] == FOUR | thoughts
    assert read(*talk(FOUR | {"thought": "t"})).response == [FOUR | {"thought": "t"}]


def test_what_is_in_our_form_is_left_as_it_is() -> None:
    columns = Columns("demonstrations")
    odd = {"role": "critic", "content": "Hm.", "name": "x", "score": 0.5}
    messages = [ASK, odd, calls("a", "b"), result("a"), result("b"), FOUR | {"reasoning_content": "t"}]
    [record] = columns.read({"messages": messages, "id": None})
    assert record.task.messages[1] == odd  # type: ignore[union-attr]
    assert columns.account.lines() == ["read: messages", "kept, not read: id"]


def test_names_order_results_without_ids_and_calls_in_texts_have_no_order() -> None:
    made = calls("a", "b")
    made["tool_calls"] = [{"name": "add", "arguments": "{}"}, {"name": "mul", "arguments": "{}"}]
    by_name = [
        {"role": "tool", "name": "mul", "content": "6"},
        {"role": "tool", "name": "add", "content": "5"},
    ]
    record = read("demonstrations", {"messages": [ASK, made, *by_name, FOUR]})
    assert record.task.messages[2:] == by_name[::-1]
    written = {"role": "assistant", "content": "<tool_call>add()</tool_call>"}
    record = read("demonstrations", {"messages": [ASK, written, *by_name, FOUR]})
    assert record.task.messages[2:] == by_name
    wrong = [by_name[0], by_name[0]]
    assert reason("demonstrations", {"messages": [ASK, made, *wrong, FOUR]}) == (
        "'messages' holds results whose ids or names do not match the calls"
    )


# The form of a conversation changes no record.

WORDS = st.text('ab\n{["é', min_size=1, max_size=8).filter(str.strip)
TURNS = st.lists(st.tuples(WORDS, WORDS, st.booleans(), WORDS), min_size=1, max_size=3)


def openai(turns: list[tuple[str, str, bool, str]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for asked, said, is_called, answer in turns:
        messages.append({"role": "user", "content": asked})
        if is_called:
            call = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"x": said})}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "content": said})
        messages.append({"role": "assistant", "content": answer})
    return messages


def older(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" in message:
        return {"role": "assistant", "content": None, "function_call": message["tool_calls"][0]["function"]}
    return message | ({"role": "function"} if message["role"] == "tool" else {})


def sharegpt(message: dict[str, Any]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt", "tool": "observation"}
    if "tool_calls" in message:
        return {"from": "function_call", "value": json.dumps(message["tool_calls"])}
    return {"from": names[message["role"]], "value": message["content"]}


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    half = len(message["content"]) // 2
    parts = [message["content"][:half], {"type": "text", "text": message["content"][half:], "x": None}]
    return message | {"content": parts, "refusal": None}


@settings(max_examples=40, deadline=None)  # other processes may keep this one waiting
@given(TURNS)
def test_the_form_of_a_conversation_changes_no_record(turns: list[tuple[str, str, bool, str]]) -> None:
    messages = openai(turns)
    record = read("demonstrations", {"messages": messages})
    rows: list[dict[str, Any]] = [
        {"messages": json.dumps(messages)},
        {"messages": [older(one) for one in messages]},
        {"messages": [in_parts(one) for one in messages]},
        {"conversations": [sharegpt(one) for one in messages]},
        {"conversations": json.dumps([sharegpt(one) for one in messages])},
    ]
    for row in rows:
        assert read("demonstrations", row) == record
    last = messages[-1]
    if all("tool_calls" not in one for one in messages):
        pairs = list(zip(messages[::2], messages[1::2], strict=True))
        history = [[asked["content"], said["content"]] for asked, said in pairs[:-1]]
        row = {"history": history, "instruction": messages[-2]["content"], "output": last["content"]}
        asked = read("trajectories", row).task.messages
        assert asked == messages[:-1]
