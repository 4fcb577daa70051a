"""Conversations by the chat templates of public models, against TRL's tokenisation written out plainly.

TRL tokenises the whole conversation, and the prompt with what asks for the answer. The completion begins
where the two differ: `_tokenize` and `common_prefix_length` of its `data_utils`. `tests/others/peers` asks it
too.
"""

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from tests.support.chat_templates import FILES, TOOLS, read, tokenizer
from trinity_db.data.records.records import text_of
from trinity_db.explorer.engines.folder import end_tokens
from trinity_db.models.chat.prompts import ChatRenderer, UntokenizableText
from trinity_db.models.chat.replies import Replies

WITH_TOOLS = ("qwen2_5", "qwen3", "llama3_1", "mistral", "gpt_oss")
NAMES = (*WITH_TOOLS, "llama3", "gemma3", "phi3", "phi4", "smollm3", "command_r", "deepseek_r1")
ENDS = {
    **dict.fromkeys(("qwen2_5", "qwen3", "phi4", "smollm3"), "<|im_end|>"),
    **dict.fromkeys(("llama3", "llama3_1"), "<|eot_id|>"),
    **dict.fromkeys(("mistral", "deepseek_r1"), "</s>"),
    "gemma3": "<end_of_turn>",
    "phi3": "<|end|>",
    "gpt_oss": "<|return|>",
    "command_r": "<|END_OF_TURN_TOKEN|>",
}

Message = dict[str, Any]
ASK: Message = {"role": "user", "content": "What is 1 + 2?"}
MORE: Message = {"role": "user", "content": "And twice?"}
THREE: Message = {"role": "assistant", "content": "It is 3."}
SIX: Message = {"role": "assistant", "content": "It is 6."}
RESULT: Message = {"role": "tool", "name": "add", "tool_call_id": "abcdefghi", "content": "three"}


UNNAMED: Message = {"role": "tool", "content": "three"}


def call(arguments: Any) -> Message:
    function = {"name": "add", "arguments": arguments}
    calls = [{"id": "abcdefghi", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


CALL = call({"a": 1, "b": 2})
TALKS: dict[str, tuple[list[Message], list[Message]]] = {
    "one turn": ([ASK], [THREE]),
    "several turns": ([ASK, THREE, MORE], [SIX]),
    "a completion of several turns": ([ASK], [THREE, MORE, SIX]),
}
TALKS_WITH_TOOLS: dict[str, tuple[list[Message], list[Message]]] = {
    "tools that are not called": ([ASK], [THREE]),
    "a call": ([ASK], [CALL]),
    "a call and what follows": ([ASK], [CALL, RESULT, THREE]),
    "after a call": ([ASK, CALL, RESULT], [THREE]),
}


def by_trl(
    reader: Any, prompt: list[Message], completion: list[Message], tools: Any
) -> tuple[list[int], int]:
    """All tokens, and how many of them are no part of the completion."""
    how = {"tools": tools, "tokenize": True, "return_dict": True}
    asked = reader.apply_chat_template(prompt, add_generation_prompt=True, **how)["input_ids"]
    whole = reader.apply_chat_template([*prompt, *completion], **how)["input_ids"]
    pairs = enumerate(zip(asked, whole, strict=False))
    return whole, next((place for place, (one, other) in pairs if one != other), len(asked))


def ours(
    reader: Any, prompt: list[Message], completion: list[Message], tools: Any
) -> tuple[list[int], list[bool]]:
    """All tokens, and which of them are trained. A lone turn of text is a text, as an import has it."""
    is_text = len(completion) == 1 and not completion[0].get("tool_calls")
    response = text_of(completion) if is_text else completion
    payload = Replies(ChatRenderer(reader)).payload({"messages": prompt, "tools": tools}, response, 10_000)
    return payload.token_ids.tolist(), payload.action_mask.tolist()


@pytest.mark.parametrize(
    ("name", "talk", "tools"),
    [
        *((name, talk, None) for name in NAMES for talk in TALKS.values()),
        *((name, talk, TOOLS) for name in WITH_TOOLS for talk in TALKS_WITH_TOOLS.values()),
    ],
    ids=[
        *(f"{name}, {talk}" for name in NAMES for talk in TALKS),
        *(f"{name}, {talk}" for name in WITH_TOOLS for talk in TALKS_WITH_TOOLS),
    ],
)
def test_the_tokens_are_those_of_trl_up_to_the_end_of_the_turn(name: str, talk: Any, tools: Any) -> None:
    reader = tokenizer(read(name))
    expected, begin = by_trl(reader, talk[0], talk[1], tools)
    found, mask = ours(reader, talk[0], talk[1], tools)
    assert found == expected[: len(found)]
    assert mask.index(True) == begin
    end = "<|call|>" if name == "gpt_oss" and talk[1][-1].get("tool_calls") else ENDS[name]
    assert reader.decode(found[-1]) == end
    # What a template writes behind the turn's end, no engine samples.
    assert reader.decode(expected[len(found) :]).strip() in ("", "</s>")
    trained = reader.decode([token for token, is_trained in zip(found, mask, strict=True) if is_trained])
    for message in talk[1]:
        assert (message["content"] in trained) == (message["role"] == "assistant")


@pytest.mark.parametrize("name", sorted(FILES.keys() - {*NAMES}))
def test_the_texts_of_other_templates_are_those_of_trl_or_are_refused(name: str) -> None:
    """Tokens may differ where an answer begins with a line break: it is tokenized apart, as it is sampled."""
    reader = tokenizer(read(name))
    talks = [(*talk, tools) for tools in (None, TOOLS) for talk in (TALKS | TALKS_WITH_TOOLS).values()]
    for prompt, completion, tools in talks:
        with suppress(UntokenizableText):
            found, mask = ours(reader, prompt, completion, tools)
            expected, _ = by_trl(reader, prompt, completion, tools)
            assert reader.decode(expected).startswith(reader.decode(found).removesuffix(reader.eos_token))
            words = reader.decode([token for token, one in zip(found, mask, strict=True) if one])
            for message in completion:
                assert (message["content"] in words) == (message["role"] == "assistant")


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_stops_where_the_template_ends_a_turn(name: str) -> None:
    reader = tokenizer(read(name))
    assert end_tokens(ChatRenderer(reader)) == {
        reader.eos_token_id,
        reader.convert_tokens_to_ids(ENDS[name]),
    }


def test_arguments_as_json_text_are_those_of_an_object() -> None:
    for name in WITH_TOOLS:
        reader = tokenizer(read(name))
        as_text = ours(reader, [ASK], [call('{"a": 1, "b": 2}')], TOOLS)
        assert as_text == ours(reader, [ASK], [CALL], TOOLS)


def test_a_turn_of_weight_0_within_a_completion_is_context() -> None:
    reader = tokenizer(read("qwen2_5"))
    found, mask = ours(reader, [ASK], [{**THREE, "weight": 0}, MORE, SIX], None)
    whole, _ = ours(reader, [ASK], [THREE, MORE, SIX], None)
    assert found == whole
    assert (
        reader.decode([token for token, one in zip(found, mask, strict=True) if one]) == "It is 6.<|im_end|>"
    )


@pytest.mark.parametrize(
    ("name", "prompt", "completion", "tools", "why"),
    [
        ("phi3", [ASK], [THREE], TOOLS, "The chat template shows no tools"),
        ("gemma3", [ASK], [CALL], None, "The chat template leaves out or changes a part of message 2"),
        ("smollm3", [ASK], [CALL], None, "The chat template leaves out or changes a part of message 2"),
        ("phi4", [ASK, THREE, UNNAMED], [SIX], None, "leaves out or changes message 3, whose role is 'tool'"),
        ("phi4", [ASK, THREE, RESULT], [SIX], None, "has the id 'abcdefghi', and no call before it has it"),
        ("gemma3", [ASK, CALL, RESULT], [THREE], None, "Conversation roles must alternate"),
        (
            "mistral",
            [ASK],
            [{**CALL, "tool_calls": [{**CALL["tool_calls"][0], "id": "1"}]}],
            TOOLS,
            "length 9",
        ),
    ],
)
def test_a_template_that_cannot_show_tools_is_refused(
    name: str, prompt: list[Message], completion: list[Message], tools: Any, why: str
) -> None:
    with pytest.raises(UntokenizableText, match=why):
        ours(tokenizer(read(name)), prompt, completion, tools)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("functions", "[]"),
        ("tools", TOOLS),
        ("function_calls", "add()"),
        ("thought", "hm"),
        ("refusal", "no"),
    ],
)
def test_a_part_in_a_key_that_the_template_does_not_read_is_not_lost(key: str, value: Any) -> None:
    silent = tokenizer(read("qwen3"))
    other = THREE | {"id": "a"}  # no part
    for prompt, completion in (
        ([ASK], [other | {key: value}, MORE, SIX]),
        ([ASK, other | {key: value}, MORE], [SIX]),
        ([{"role": "system", "content": "Add.", key: value}, ASK], [SIX]),
    ):
        with pytest.raises(UntokenizableText, match="leaves out or changes a part of"):
            ours(silent, prompt, completion, None)
    assert ours(silent, [ASK], [other], None)
    shows = tokenizer(read("qwen3").replace("message.content", f"((message.{key} or '') ~ message.content)"))
    ours(shows, [{"role": "system", "content": "Add.", key: str(value)}, ASK], [SIX], None)


def test_without_a_chat_template_there_are_no_tools() -> None:
    reader = tokenizer("")
    reader.chat_template = None
    with pytest.raises(UntokenizableText, match="the tokenizer has no chat template to show them"):
        ours(reader, [ASK], [CALL], None)
    found, mask = ours(reader, [ASK], [THREE, MORE, SIX], None)
    assert reader.decode(found) == (
        "user: What is 1 + 2?\nassistant: It is 3.\nuser: And twice?\nassistant:It is 6.</s>"
    )
    assert reader.decode([token for token, one in zip(found, mask, strict=True) if one]) == (
        " It is 3.It is 6.</s>"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("qwen3", "<think>\nhm\n</think>\n\nIt is 3.<|im_end|>"),  # the template spaces it out
        ("phi4", "<think>hm</think>It is 3.<|im_end|>"),
        ("deepseek_r1", "<think>hm</think>It is 3.</s>"),  # the template leaves it out, so it stands as it is
    ],
)
def test_what_a_response_thinks_is_learned_whatever_the_template_does(name: str, shown: str) -> None:
    reader = tokenizer(read(name))
    found, mask = ours(reader, [ASK], [{"role": "assistant", "content": "<think>hm</think>It is 3."}], None)
    assert reader.decode([token for token, one in zip(found, mask, strict=True) if one]) == shown


def test_a_thought_that_the_prompt_opens_is_not_opened_twice() -> None:
    reader = tokenizer(read("deepseek_r1"))
    text = "<think>\nhm</think>It is 3."
    found, _ = ours(reader, [ASK], [{"role": "assistant", "content": text}], None)
    asked = ChatRenderer(reader).ask([ASK])
    assert reader.decode(found) == asked + text.removeprefix("<think>\n") + "</s>"


def learned(reader: Any, prompt: list[Message], completion: list[Message], tools: Any = None) -> list[str]:
    """The texts that are trained, each from one context to the next."""
    found, mask = ours(reader, prompt, completion, tools)
    edges = [place for place in range(1, len(mask)) if mask[place] != mask[place - 1]]
    bounds = [0, *edges, len(mask)]
    return [reader.decode(found[start:stop]) for start, stop in pairwise(bounds) if mask[start]]


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_that_the_assistant_begins_teaches_its_words_and_no_header(name: str) -> None:
    reader = tokenizer(read(name))
    # Each is part of a header or of a system prompt in some template.
    for content in ("a", "I", "hi", "s", "assistant", "system", "final", "You are a helpful assistant."):
        first = {"role": "assistant", "content": content, "weight": 1}
        with suppress(UntokenizableText):
            end = "<|end|>" if name == "gpt_oss" else ENDS[name]
            assert learned(reader, [first, ASK], [THREE])[0] == f"{content}{end}", content
            continue
        assert name in ("command_r", "gemma3"), "other templates let the assistant begin"


@pytest.mark.parametrize("content", ["a", "final", "s"])
def test_a_turn_that_says_what_its_header_says_is_learned_whole(content: str) -> None:
    """The template of gpt-oss writes a header before an answer, and ends it otherwise once others follow."""
    reader = tokenizer(read("gpt_oss"))
    said = learned(reader, [ASK, {"role": "assistant", "content": content, "weight": 1}, MORE], [SIX])
    assert said[0] == f"<|channel|>final<|message|>{content}<|end|>"


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_tool_call_with_the_token_that_ends_a_turn_is_refused_and_not_cut(name: str) -> None:
    reader = tokenizer(read(name))
    says = f"Message 2 holds {ENDS[name]}, the token that ends a turn".replace("|", r"\|")
    for arguments in ({"a": f"x {ENDS[name]} y"}, f'{{"a": {{"{ENDS[name]}": 1}}}}'):
        for completion in ([call(arguments)], [call(arguments), RESULT, THREE]):
            with pytest.raises(UntokenizableText, match=says):
                ours(reader, [ASK], completion, TOOLS)
    said_before = {**CALL, "content": f"I add. {ENDS[name]}"}
    with pytest.raises(UntokenizableText, match=says):
        ours(reader, [ASK], [said_before], TOOLS)
    found, mask = ours(reader, [ASK], [{**call(arguments), "weight": 0}, RESULT, THREE], TOOLS)
    trained = [token for token, is_trained in zip(found, mask, strict=True) if is_trained]
    assert reader.decode(trained).endswith(f"It is 3.{ENDS[name]}")


def test_a_thought_with_the_token_that_ends_a_turn_is_refused_and_not_cut() -> None:
    reader = tokenizer(read("qwen3"))
    thinks = {**THREE, "reasoning_content": "It is 3. <|im_end|> Or not."}
    with pytest.raises(UntokenizableText, match=r"Message 2 holds <\|im_end\|>, the token that ends a turn"):
        ours(reader, [ASK], [thinks, MORE, SIX], None)


def test_an_answer_that_parts_from_an_opened_thought_within_a_mark_is_learned_whole() -> None:
    reader = tokenizer(read("deepseek_r1"))  # what asks for an answer ends by "<think>"
    first = {"role": "assistant", "content": "<answer>3</answer>", "weight": 1}
    assert learned(reader, [ASK, first, MORE], [SIX])[0] == "<answer>3</answer></s>"


def test_turns_beyond_the_longest_row_are_not_looked_at() -> None:
    reader = tokenizer(read("qwen2_5"))
    turns = [ASK, {**THREE, "weight": 1}] * 50
    num_shown = 0
    apply = reader.apply_chat_template

    def counted(messages: list[Message], **how: Any) -> Any:
        nonlocal num_shown
        num_shown += len(messages)
        return apply(messages, **how)

    whole = Replies(ChatRenderer(reader)).payload({"messages": turns[:-1]}, THREE["content"], 10**6)
    reader.apply_chat_template = counted
    cut = Replies(ChatRenderer(reader)).payload({"messages": turns[:-1]}, THREE["content"], 200)
    assert cut.token_ids.tolist() == whole.token_ids[:200].tolist()
    assert cut.action_mask.tolist() == whole.action_mask[:200].tolist()
    assert num_shown < 6 * len(turns), "not every turn is looked for by all messages before it"
