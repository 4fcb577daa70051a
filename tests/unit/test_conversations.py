"""Conversations to imitate: which turns of the assistant are learned, and by which tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.columns import read, reason
from tests.unit.test_prompts import Letters
from trinity_db.data.records.records import Demonstration, Trajectory
from trinity_db.models.chat.prompts import ChatRenderer, UntokenizableText
from trinity_db.models.chat.replies import Replies
from trinity_db.models.chat.turns import Turns

END = 97  # <t>


class ChatML(Letters):
    """user: "ub<t>", assistant: "ac<t>"; it thinks, behind a "t", only in its last turn."""

    chat_template: str | None = "..."

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = []
        while text:
            mark = text.startswith("<t>")
            ids += [END] if mark else super().encode(text[0], add_special_tokens=False)
            text = text[3:] if mark else text[1:]
        return ids

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, **options: Any
    ) -> str:
        turns = [
            message["role"][0]
            + (
                message["content"]
                if number == len(messages)
                else message["content"].partition("t")[2] or message["content"]
            )
            + "<t>"
            for number, message in enumerate(messages, 1)
        ]
        return "".join(turns) + "a" * add_generation_prompt


def conversation(*contents: str, **weights: int) -> list[dict[str, Any]]:
    """Turns of user and assistant by turns; `w3=0` is the weight of the fourth message."""
    found: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[number % 2], "content": content}
        for number, content in enumerate(contents)
    ]
    for name, weight in weights.items():
        found[int(name[1:])]["weight"] = weight
    return found


def imported(messages: list[dict[str, Any]]) -> Demonstration:
    record = read("demonstrations", {"messages": messages})
    assert isinstance(record, Demonstration)
    return record


def learned(record: Demonstration, max_length: int = 100) -> tuple[list[int], list[int]]:
    """All tokens, and the trained ones."""
    payload = Replies(ChatRenderer(ChatML())).payload(record.task.payload, record.response, max_length)
    return payload.token_ids.tolist(), payload.token_ids[payload.action_mask].tolist()


def test_every_turn_of_the_assistant_is_learned_with_the_token_that_ends_it() -> None:
    record = imported(conversation("b", "cc", "d", "e"))
    assert learned(record) == (
        [20, 1, END, 0, 2, 2, END, 20, 3, END, 0, 4, END],
        [2, 2, END, 4, END],
    )


def test_turns_of_weight_0_are_context_and_left_out_at_the_end() -> None:
    record = imported(conversation("b", "c", "d", "e", "f", "g", "h", "i", w1=0, w7=0))
    assert record.response == "g"
    assert learned(record)[1] == [4, END, 6, END]


def test_a_prompt_and_a_completion_teach_the_completion_alone() -> None:
    row = {"prompt": conversation("b", "c", "d"), "completion": conversation("", "e")[1:]}
    record = read("demonstrations", row)
    assert isinstance(record, Demonstration)
    assert learned(record)[1] == [4, END]


def test_trajectories_teach_their_response_alone() -> None:
    record = read("trajectories", {"messages": conversation("b", "c", "d", "e")})
    assert isinstance(record, Trajectory)
    assert record.task.messages == conversation("b", "c", "d")


def test_a_conversation_that_the_assistant_begins_does_not_teach_what_stands_before_its_words() -> None:
    messages = [{"role": "assistant", "content": "b"}, *conversation("c", "d")]
    assert learned(imported(messages)) == ([0, 1, END, 20, 2, END, 0, 3, END], [1, END, 3, END])


def test_a_turn_with_a_tool_call_that_the_template_rewrites_is_refused_whole() -> None:
    class Calls(ChatML):
        """Thinks in the last turn, and writes the name of each call."""

        def apply_chat_template(
            self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, **options: Any
        ) -> str:
            thought = [*[""] * (len(messages) - 1), "t"]
            turns = [
                message["role"][0]
                + first
                + message["content"]
                + "".join(call["function"]["name"] for call in message.get("tool_calls", ()))
                + "<t>"
                for first, message in zip(thought, messages, strict=True)
            ]
            return "".join(turns) + "a" * add_generation_prompt

    messages = conversation("b", "c", "d", "e", w1=1)
    messages[1]["tool_calls"] = [{"function": {"name": "add", "arguments": {}}}]
    messages[2]["role"] = "tool"
    renderer = ChatRenderer(Calls())
    with pytest.raises(UntokenizableText, match="rewrites message 2"):
        list(Turns(renderer).taught(messages[:3], renderer.rendering(messages[:3], asks=True)))


def test_what_does_not_fit_is_cut_and_the_turns_before_are_learned() -> None:
    assert learned(imported(conversation("b", "c", "d", "e")), max_length=6)[1] == [2, END]


def test_a_turn_that_the_template_rewrites_is_refused_with_its_place() -> None:
    with pytest.raises(UntokenizableText, match=r"rewrites message 2 once others follow it.*weight of 0"):
        learned(imported(conversation("b", "xtc", "d", "e")))
    assert learned(imported(conversation("b", "xtc", "d", "e", w1=0)))[1] == [4, END]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (conversation("b", "c", w1=0), "every turn of the assistant in 'messages' has a weight of 0"),
        (
            conversation("b", "c", w1=2),
            "'messages' holds a turn whose 'weight' is neither 0 nor 1, or contradicts another mask",
        ),
        (conversation("b", "c", "d"), "'messages' does not end with the assistant's response"),
    ],
)
def test_a_conversation_that_teaches_nothing_is_rejected(messages: list[dict[str, Any]], why: str) -> None:
    assert reason("demonstrations", {"messages": messages}) == why


def test_without_a_chat_template_the_lines_of_the_assistant_are_learned() -> None:
    messages = imported(conversation("hi", "ho", "he", "hu")).task.messages or []
    tokenizer = Letters()
    renderer = ChatRenderer(tokenizer)
    rendering = renderer.rendering(messages, asks=True)
    [(start, stop)] = Turns(renderer).taught(messages, rendering)
    assert rendering.text[:start] == "user: hi\nassistant:"
    assert rendering.text[start:stop] == " ho"
