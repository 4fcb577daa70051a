"""Prompts are the same text and tokens for explorer and trainer."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from trinity_db.prompts import PromptTooLong, UntokenizableText, prompt_ids, prompt_text, tokenize


class Letters:
    """A tokenizer of a-z with a begin token, as Llama has one."""

    chat_template: str | None = None
    bos_token: str | None = "<s>"
    eos_token_id: int | None = 99

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = []
        while text:
            ids.append(98 if text.startswith("<s>") else "abcdefghijklmnopqrstuvwxyz".index(text[0]))
            text = text.removeprefix("<s>") if ids[-1] == 98 else text[1:]
        return [98] * add_special_tokens + ids

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        return "<s>" + "".join(message["content"] for message in messages)


def test_a_prompt_takes_its_place_in_the_template_whatever_braces_it_holds() -> None:
    assert prompt_text({"prompt": "{x} {prompt}"}, "Q{1}: {prompt}\nA:", None) == "Q{1}: {x} {prompt}\nA:"


def test_messages_go_through_the_chat_template_or_become_lines() -> None:
    task = {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]}
    tokenizer = Letters()
    assert prompt_text(task, "{prompt}", tokenizer) == "system: be\nuser: hi\nassistant:"
    tokenizer.chat_template = "..."
    assert prompt_text(task, "{prompt}", tokenizer) == "<s>behi"


def test_messages_of_the_openai_protocol_are_written_as_templates_read_them() -> None:
    seen: list[Mapping[str, Any]] = []

    class Template(Letters):
        chat_template: str | None = "..."

        def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
            seen.extend(messages)
            return ""

    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    prompt_text({"messages": messages}, "{prompt}", Template())
    function = {"name": "add", "arguments": {"a": 1}}
    assert seen[0] == {"role": "user", "content": "ab"}
    assert seen[1] == {"role": "assistant", "content": "", "tool_calls": [{**call, "function": function}]}


@pytest.mark.parametrize(
    "content", [[{"type": "image_url", "image_url": {"url": "data:"}}], {"type": "image_url"}]
)
def test_an_image_is_refused_in_one_line(content: object) -> None:
    with pytest.raises(
        UntokenizableText, match="of type 'image_url'; the policy reads texts only, no images"
    ):
        prompt_text({"messages": [{"role": "user", "content": content}]}, "{prompt}", Letters())


def test_tools_need_a_chat_template() -> None:
    with pytest.raises(UntokenizableText, match="no chat template to show them by"):
        prompt_text(
            {"messages": [{"role": "user", "content": "a"}]}, "{prompt}", Letters(), [{"type": "function"}]
        )


def test_a_begin_token_is_not_added_twice() -> None:
    assert prompt_ids("ab", Letters()) == prompt_ids("<s>ab", Letters()) == [98, 0, 1]


def test_a_demonstration_trains_its_response_and_the_end_token() -> None:
    payload = tokenize("ab", "c", Letters(), max_length=10)
    assert payload.token_ids.tolist() == [98, 0, 1, 2, 99]
    assert payload.action_mask.tolist() == [False, False, False, True, True]
    assert payload.logprobs is None


def test_a_long_demonstration_loses_its_end_but_never_its_whole_response() -> None:
    assert tokenize("ab", "cde", Letters(), max_length=4).token_ids.tolist() == [98, 0, 1, 2]
    with pytest.raises(PromptTooLong, match="3 tokens leaves no room for a response in 3"):
        tokenize("ab", "cde", Letters(), max_length=3)


def test_a_character_without_a_token_is_named() -> None:
    with pytest.raises(UntokenizableText, match="cannot encode 'a1'"):
        prompt_ids("a1", Letters())


def test_a_conversation_that_the_chat_template_refuses_is_text_that_cannot_be_tokenised() -> None:
    class Strict(Letters):
        chat_template: str | None = "..."

        def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
            raise RuntimeError("System role not supported")

    with pytest.raises(UntokenizableText, match="template refuses the conversation: System role not supp"):
        prompt_text({"messages": [{"role": "system", "content": "be"}]}, "{prompt}", Strict())
