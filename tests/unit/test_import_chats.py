"""What an import makes of conversations with tools, responses of several turns, and documents."""

import json
from typing import Any

import pytest

from tests.support.columns import read, reason
from trinity_db.data.records.records import Demonstration, Kind, Preference, Task, Trajectory, Unpaired

USER = {"role": "user", "content": "What color is the sky?"}
BLUE = {"role": "assistant", "content": "It is blue."}
GREEN = {"role": "assistant", "content": "It is green."}
RESULT = {"role": "tool", "name": "look", "content": "blue"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def call(arguments: Any = None, **function: Any) -> dict[str, Any]:
    made = {"name": "look", "arguments": {"at": "sky"} if arguments is None else arguments} | function
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": made}]}


CALL = call()
AS_TEXT = call('{"at": null}')


@pytest.mark.parametrize("asked", [CALL, AS_TEXT])
@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL])])
def test_tools_and_calls_are_kept_in_the_form_they_have(asked: Any, tools: Any) -> None:
    record = read("demonstrations", {"messages": [USER, asked, RESULT, BLUE], "tools": tools, "id": 1})
    payload = {"messages": [USER, asked | {"weight": 1}, RESULT], "tools": [TOOL]}
    assert record == Demonstration(Task(payload), "It is blue.", {"id": 1})


def test_a_response_is_as_many_messages_as_it_has() -> None:
    rounds = [CALL, RESULT, BLUE]
    row = {"prompt": [USER], "tools": [TOOL]}
    task = Task({"messages": [USER], "tools": [TOOL]})
    assert read("demonstrations", row | {"completion": rounds}) == Demonstration(task, rounds, {})
    assert read("demonstrations", row | {"messages": [USER, CALL]}).response == [CALL]
    assert read("trajectories", row | {"response": rounds}) == Trajectory(task, rounds, None, None, {})
    verdict = read("preferences", row | {"completion": rounds, "label": True})
    assert verdict == Unpaired(task, rounds, True, {})


def test_a_thought_beside_the_text_of_the_last_turn_is_kept() -> None:
    thinks = BLUE | {"reasoning_content": "hm"}
    assert read("demonstrations", {"messages": [USER, thinks]}).response == [thinks]
    beside: list[dict[str, Any]] = [{"tool_calls": []}, {"reasoning_content": ""}, {"id": 7}]
    for nothing in beside:
        assert read("demonstrations", {"messages": [USER, BLUE | nothing]}).response == "It is blue."


def test_messages_answer_a_plain_prompt_as_a_user_asks_it() -> None:
    record = read("demonstrations", {"prompt": "Why?", "completion": [CALL, RESULT, BLUE]})
    assert record.task == Task({"messages": [{"role": "user", "content": "Why?"}]})


@pytest.mark.parametrize(
    ("chosen", "rejected", "shared"),
    [
        # As TRL's extract_prompt: the prompt is what both begin with.
        ([USER, CALL, RESULT, BLUE], [USER, CALL, RESULT, GREEN], 3),
        ([USER, CALL, RESULT, BLUE], [USER, GREEN], 1),
        # But it ends where both answer.
        ([USER, CALL, RESULT, BLUE], [USER, CALL, RESULT | {"content": "red"}, BLUE], 1),
        ([USER, BLUE, USER, BLUE], [USER, BLUE], 1),
    ],
)
@pytest.mark.parametrize("given", [{}, {"prompt": [USER]}, {"prompt": USER["content"]}])
def test_the_prompt_of_a_pair_is_what_both_share(
    chosen: list[Any], rejected: list[Any], shared: int, given: dict[str, Any]
) -> None:
    row = {"chosen": chosen, "rejected": rejected, "tools": [TOOL]} | given
    record = read("preferences", row)
    sides = [
        "It is blue." if side == [BLUE] else "It is green." if side == [GREEN] else side
        for side in (chosen[shared:], rejected[shared:])
    ]
    task = Task({"messages": chosen[:shared], "tools": [TOOL]})
    assert record == Preference(task, sides[0], sides[1], None, {})


def test_a_text_without_a_prompt_is_a_document() -> None:
    row = {"text": "The sky is blue.", "url": "a"}
    assert read("demonstrations", row) == Demonstration(Task({"prompt": ""}), row["text"], {"url": "a"})
    assert read("demonstrations", {"body": "b"}, text="body").response == "b"
    # Beside a prompt the column is one like any other.
    assert read("demonstrations", {"prompt": "p", "completion": "c", "text": "t"}).extra == {"text": "t"}
    assert reason("demonstrations", {"text": " "}) == "'text' is empty"


def test_tasks_offer_tools_and_keep_a_column_of_that_name_which_is_none() -> None:
    payload = {"messages": [USER], "tools": [TOOL]}
    assert read("tasks", {"prompt": [USER], "tools": json.dumps([TOOL])}) == Task(payload)
    assert read("tasks", {"prompt": [USER], "functions": [TOOL]}, tools="functions") == Task(payload)
    other = read("tasks", {"prompt": [USER], "tools": ["python"]})
    assert other == Task({"messages": [USER], "tools": ["python"]})
    assert other.tools is None


def test_people_read_what_was_called() -> None:
    messages = [USER, call({"at": "sky", "é": 1}), RESULT, AS_TEXT]
    assert Task({"messages": messages}).prompt == (
        'What color is the sky?\n\nlook({"at": "sky", "é": 1})\n\nblue\n\nlook({"at": null})'
    )


NO_OBJECT = "'messages' holds a tool call whose 'arguments' are not a JSON object"


@pytest.mark.parametrize(
    ("kind", "row", "why"),
    [
        (
            "demonstrations",
            {"messages": [USER, call(name="")]},
            "'messages' holds a tool call without a name",
        ),
        (
            "demonstrations",
            {"messages": [USER, call(name=None)]},
            "'messages' holds a tool call without a name",
        ),
        ("demonstrations", {"messages": [USER, call("at sky")]}, NO_OBJECT),
        ("demonstrations", {"messages": [USER, call("[1]")]}, NO_OBJECT),
        ("demonstrations", {"messages": [USER, call(arguments=7)]}, NO_OBJECT),
        (
            "demonstrations",
            {"messages": [USER, BLUE | {"tool_calls": "look"}]},
            "'messages' holds 'tool_calls' that are not a list",
        ),
        (
            "demonstrations",
            {"messages": [USER, BLUE | {"tool_calls": ["look"]}]},
            "'messages' holds a tool call without a name",
        ),
        (
            "demonstrations",
            {"messages": [USER, CALL, RESULT]},
            "'messages' does not end with the assistant's response",
        ),
        (
            "demonstrations",
            {"prompt": [USER], "completion": [BLUE, USER, GREEN | {"weight": 0}]},
            "the last turn of 'response' has a weight of 0",
        ),
        (
            "demonstrations",
            {"messages": [USER, BLUE], "tools": "look"},
            "'tools' must be a list of tools, or its JSON text",
        ),
        ("demonstrations", {"messages": [USER, BLUE], "tools": [{}]}, "'tools' holds a tool without a name"),
        ("tasks", {"prompt": [USER, call("at sky")]}, NO_OBJECT.replace("messages", "prompt")),
        (
            "preferences",
            {"prompt": [USER], "chosen": [BLUE], "rejected": [CALL, RESULT]},
            "'rejected' must end with an assistant turn",
        ),
        (
            "preferences",
            {"prompt": [USER], "completion": [call("at sky")], "label": True},
            NO_OBJECT.replace("messages", "response"),
        ),
    ],
)
def test_a_bad_conversation_is_rejected_with_the_reason(kind: Kind, row: dict[str, Any], why: str) -> None:
    assert reason(kind, row) == why
