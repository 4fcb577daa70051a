"""Prompts are the same text and tokens for explorer and trainer."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from trinity_db.prompts import PromptTooLong, UntokenizableText, prompt_ids, prompt_text
from trinity_db.replies import EmptyResponse, Replies


class Letters:
    """A tokenizer of a-z with a begin token, as Llama has one."""

    chat_template: str | None = None
    bos_token: str | None = "<s>"
    eos_token_id: int | None = 99
    all_special_tokens: list[str] = ["<t>", "<s>"]  # noqa: RUF012
    added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

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
    payload = Replies(Letters()).payload({"prompt": "ab"}, "c", max_length=10)
    assert payload.token_ids.tolist() == [98, 0, 1, 2, 99]
    assert payload.action_mask.tolist() == [False, False, False, True, True]
    assert payload.logprobs is None


def test_a_long_demonstration_loses_its_end_but_never_its_whole_response() -> None:
    replies = Replies(Letters())
    assert replies.payload({"prompt": "ab"}, "cde", max_length=4).token_ids.tolist() == [98, 0, 1, 2]
    with pytest.raises(PromptTooLong, match="3 tokens leaves no room for a response in 3"):
        replies.payload({"prompt": "ab"}, "cde", max_length=3)


def test_a_response_of_which_no_model_predicts_a_token_is_refused() -> None:
    class Bare(Letters):
        bos_token: str | None = None
        eos_token_id: int | None = None

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return super().encode(text, add_special_tokens=False)

    bare = Replies(Bare())
    with pytest.raises(EmptyResponse, match="prompt of 2 tokens and a response of 0 have no token"):
        bare.payload({"prompt": "ab"}, "", max_length=10)
    with pytest.raises(EmptyResponse, match="prompt of 0 tokens and a response of 1 have no token"):
        bare.payload({"prompt": ""}, "a", max_length=10)
    assert bare.payload({"prompt": ""}, "ab", max_length=10).num_predicted == 1
    ended = Replies(Letters()).payload({"prompt": "ab"}, "", max_length=10)
    assert ended.num_predicted == 1  # the end token


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


class Turns(Letters):
    """A chat template that ends each turn by a token of its own, and more after it, as ChatML does."""

    chat_template: str | None = "..."
    after = "<t>z"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = []
        while text:
            ids += [97] if text.startswith("<t>") else super().encode(text[0], add_special_tokens=False)
            text = text.removeprefix("<t>") if ids[-1] == 97 else text[1:]
        return ids

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, **options: Any
    ) -> str:
        return "".join(message["content"].strip() + self.after for message in messages)


def test_a_demonstration_ends_as_the_chat_template_ends_a_turn() -> None:
    task, tokenizer = {"messages": [{"role": "user", "content": "b"}]}, Turns()

    def said(response: str, after: str) -> tuple[list[int], list[int]]:
        """All tokens, and the trained ones."""
        tokenizer.after = after
        payload = Replies(tokenizer).payload(task, response, max_length=10)
        return payload.token_ids.tolist(), payload.token_ids[payload.action_mask].tolist()

    assert said("c", "<t>z") == said("c ", "<t>z") == ([1, 97, 25, 2, 97], [2, 97])
    # The template closes more than the turn.
    assert said("c", "yz<t>z") == ([1, 24, 25, 97, 25, 2, 24, 25, 97], [2, 24, 25, 97])
    # Nothing would tell the engine to stop.
    assert said("c", "z") == ([1, 25, 2, 99], [2, 99])
    plain = Replies(tokenizer).payload({"prompt": "b"}, "c", max_length=10)
    assert plain.token_ids.tolist() == [1, 2, 99]


def test_a_text_that_ends_by_the_end_of_sequence_has_one_end() -> None:
    class Ended(Letters):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            ids = super().encode(text.removesuffix("<e>"), add_special_tokens=add_special_tokens)
            return [*ids, 99] if text.endswith("<e>") else ids

    payload = Replies(Ended()).payload({"prompt": "ab"}, "c<e>", max_length=10)
    assert payload.token_ids.tolist() == [98, 0, 1, 2, 99]


def test_a_document_is_learned_from_its_first_token_to_its_end() -> None:
    replies = Replies(Letters(), template="ask {prompt}")
    payload = replies.payload({"prompt": ""}, "abc", max_length=10)
    assert payload.token_ids.tolist() == [98, 0, 1, 2, 99]
    assert payload.action_mask.tolist() == [False, True, True, True, True]
    begun = replies.payload({"prompt": ""}, "<s>abc", max_length=10)
    assert begun.token_ids.tolist() == [98, 0, 1, 2, 99], "its beginning is there already"
    cut = replies.payload({"prompt": ""}, "abc", max_length=3)
    assert cut.token_ids.tolist() == [98, 0, 1], "a document that goes on has no end here"
