"""Any conversation reaches the tokens whole and with the right mask, or is refused with a reason.

Each case draws a conversation and a chat template, changes one part, and compares the two rows of tokens: the
change shows where the part belongs and nowhere else. `make test-conversations` draws many more cases, also
with the templates of many models.
"""

import os
from copy import deepcopy
from functools import cache
from itertools import groupby
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.chat_templates import FILES, read, tokenizer
from trinity_db.models.chat.prompts import ChatRenderer, UntokenizableText
from trinity_db.models.chat.replies import Replies

CASES = 300 * int(os.environ.get("TRINITY_TEST_TIMES", "1"))
ODD = (
    *(
        "",
        " \n",
        "a",
        "user",
        "assistant",
        "4",
        "null",
        '"',
        "\\n",
        '{"a": 1}',
        "<b>x</b>",
        "</think>",
        "\U000f0000",
    ),
    *(
        "<think>so</think>yes",
        "<think>\n\n</think>\n\nyes",
        "a<think>b</think>c</think>d",
        "\n\nyes\n",
        "é" * 3000,
    ),
    *(
        "<tool_response>\nx\n</tool_response>",
        "<tool_call>\n{}\n</tool_call>",
        "<|im_end|>",
        "<|user|>",
        "</s>",
    ),
)

Message = dict[str, Any]
WITH_TOOLS = ("deepseek_v3_1", "glm4_5", "llama3_1", "mistral", "qwen2_5", "qwen3")
WITH_THOUGHTS = ("glm4_5", "qwen3")
texts = st.text(min_size=1, max_size=30) | st.sampled_from(ODD) | st.just("yes")
names = st.sampled_from(("add", "look_up", "final"))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | texts,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)


@st.composite
def assistant_turns(draw: Any, name: str) -> list[Message]:
    """A turn, and the results of its calls in any order. Few turns have what the template does not show."""
    turn: Message = {"role": "assistant", "content": draw(texts)}
    if draw(st.integers(0, 3 if name in WITH_THOUGHTS else 30)) == 0:
        turn["reasoning_content"] = draw(texts)
    if draw(st.booleans()):
        turn["weight"] = draw(st.integers(0, 1))
    if draw(st.integers(0, 1 if name in WITH_TOOLS else 30)):
        return [turn]
    if draw(st.integers(0, 2)):
        turn["content"] = ""
    arguments = st.dictionaries(st.sampled_from("abc"), values, max_size=2)
    functions = draw(
        st.lists(st.fixed_dictionaries({"name": names, "arguments": arguments}), min_size=1, max_size=3)
    )
    ids = [f"call{number:05}" for number in range(len(functions))]
    turn["tool_calls"] = [
        {"id": id, "type": "function", "function": function}
        for id, function in zip(ids, functions, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": id, "name": function["name"], "content": draw(texts)}
        for id, function in zip(ids, functions, strict=True)
    ]
    return [turn, *draw(st.permutations(results))]


@st.composite
def conversations(draw: Any) -> tuple[str, list[Message], list[Message]]:
    """A template, messages that end with a turn of the assistant, and tools."""
    name = draw(st.sampled_from([*FILES]))
    messages: list[Message] = []
    if draw(st.integers(0, 9)) == 0:
        messages.append({"role": draw(st.sampled_from(("system", "developer"))), "content": draw(texts)})
    for _ in range(draw(st.integers(1, 3))):
        role = "user" if draw(st.integers(0, 29)) else draw(st.sampled_from(("human", "observation", "User")))
        messages.append({"role": role, "content": draw(texts)})
        messages += draw(assistant_turns(name))
    while messages[-1]["role"] == "tool" or messages[-1].get("weight") == 0:
        messages.append({"role": "assistant", "content": draw(texts)})
    used = {call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    return (
        name,
        messages,
        [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": draw(texts),
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "a": {"type": "string", "description": draw(texts)},
                            "b": {"type": "number"},
                        },
                        "required": ["a"],
                    },
                },
            }
            for name in sorted(used)
        ],
    )


@cache
def reader(name: str) -> Any:
    return tokenizer(read(name))


def segments(name: str, messages: list[Message], tools: list[Message]) -> list[tuple[bool, str]]:
    """The texts of a row, each with whether it is trained."""
    response = [*messages]
    prompt = [response.pop(0)]
    while response[0]["role"] != "assistant":
        prompt.append(response.pop(0))
    payload = Replies(ChatRenderer(reader(name))).payload(
        {"messages": prompt, "tools": tools}, response, 10**6
    )
    pairs = zip(payload.action_mask.tolist(), payload.token_ids.tolist(), strict=True)
    return [
        (is_trained, reader(name).decode([token for _, token in group], clean_up_tokenization_spaces=False))
        for is_trained, group in groupby(pairs, lambda pair: pair[0])
    ]


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of the texts and numbers in messages or tools that a model has to see."""
    if isinstance(value, dict):
        unseen = ("role", "type", "id", "tool_call_id", "weight", "required", *["name"] * ("role" in value))
        return [inner for key in value if key not in unseen for inner in paths(value[key], (*path, key))]
    if isinstance(value, list):
        return [inner for index, one in enumerate(value) for inner in paths(one, (*path, index))]
    is_seen = bool(value.strip()) if isinstance(value, str) else isinstance(value, int)
    return [path] if is_seen else []


def changed(value: Any, path: tuple[Any, ...]) -> Any:
    copy = deepcopy(value)
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    old = inner[path[-1]]
    inner[path[-1]] = (
        f"{old.rstrip()}zq" if isinstance(old, str) else not old if isinstance(old, bool) else old + 1
    )
    return copy


@settings(max_examples=CASES, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(conversations(), st.data())
def test_a_part_that_changes_changes_its_own_place_alone(drawn: Any, data: Any) -> None:
    name, messages, tools = drawn
    try:
        before = segments(name, messages, tools)
    except UntokenizableText as error:
        event(f"refused: {' '.join(str(error).split()[:8])}")
        return
    event("rendered")
    learned = [
        index for index, one in enumerate(messages) if one["role"] == "assistant" and one.get("weight", 1)
    ]
    trained = [text for is_trained, text in before if is_trained]
    assert len(trained) == len(learned)
    ends = tuple(token.content for token in reader(name).added_tokens_decoder.values())
    has_marks = len(ends) > 2  # a few templates write none beside BOS and EOS
    assert not has_marks or all(text.endswith(ends) for text in trained)

    whole = {"messages": messages, "tools": tools}
    path = data.draw(st.sampled_from(paths(whole)))
    other = changed(whole, path)
    try:
        after = segments(name, other["messages"], other["tools"])
    except UntokenizableText:
        event("refused once it is changed")
        return
    masks = [[is_trained for is_trained, _ in row] for row in (before, after)]
    assert masks[0] == masks[1]
    differing = [number for number, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
    kind, index = path[:2]
    if kind == "messages" and index in learned:
        turn = learned.index(index)
        assert differing == [[number for number, is_trained in enumerate(masks[0]) if is_trained][turn]]
    else:
        assert not any(masks[0][number] for number in differing)
        assert differing or path[2] == "reasoning_content", "a thought that is not learned may be left out"
