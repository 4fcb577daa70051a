"""Prompts are the same text and tokens for explorer and trainer."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import trinity_db
from trinity_db.config.shared import PromptConfig
from trinity_db.errors import ConfigError
from trinity_db.models.chat.prompts import ChatRenderer, PromptTooLong, UntokenizableText, plain, prompt_ids
from trinity_db.models.chat.replies import EmptyResponse, Replies


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


def renderer(tokenizer: Any, **settings: Any) -> ChatRenderer:
    return ChatRenderer(tokenizer, PromptConfig(**settings))


def test_a_prompt_takes_its_place_in_the_template_whatever_braces_it_holds() -> None:
    assert (
        renderer(Letters(), prompt_template="Q{1}: {prompt}\nA:").task({"prompt": "{x} {prompt}"})
        == "Q{1}: {x} {prompt}\nA:"
    )


def test_messages_go_through_the_chat_template_or_become_lines() -> None:
    task = {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]}
    tokenizer = Letters()
    assert renderer(tokenizer).task(task) == "system: be\nuser: hi\nassistant:"
    tokenizer.chat_template = "..."
    assert renderer(tokenizer).task(task) == "<s>behi"


class Roles(Letters):
    """A chat template that writes each message with its role, and a value of its own."""

    chat_template: str | None = "..."

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        asks = "assistant:" * options["add_generation_prompt"]
        lines = [f"{message['role']}: {message['content']}" for message in messages]
        return "|".join([*lines, asks, *options.get("mood", ())])


def test_a_plain_prompt_is_one_user_message_where_there_is_a_chat_template() -> None:
    task = {"prompt": "hi"}
    assert renderer(Roles()).task(task) == "user: hi|assistant:"
    assert renderer(Roles(), prompt_template="Q: {prompt}").task(task) == "Q: hi"
    assert renderer(Letters()).task(task) == "hi"


def test_tasks_get_the_system_prompt_and_conversations_of_programs_do_not() -> None:
    reader = renderer(Roles(), system_prompt="be kind")
    assert reader.task({"prompt": "hi"}) == "system: be kind|user: hi|assistant:"
    assert reader.task({"messages": [{"role": "user", "content": "hi"}]}).startswith("system: be kind|user")
    own = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    assert reader.task({"messages": own}) == "system: be|user: hi|assistant:"
    assert reader.ask([{"role": "user", "content": "hi"}]) == "user: hi|assistant:"
    assert renderer(Letters(), system_prompt="be kind").task({"prompt": "hi"}) == "hi", "no conversation"


def test_a_template_gets_the_values_of_the_configuration_in_every_rendering() -> None:
    reader = renderer(Roles(), chat_template_kwargs={"mood": "!"})
    assert reader.task({"prompt": "hi"}).endswith("|!")
    assert reader.text([{"role": "user", "content": "hi"}], asks=False).endswith("|!")


def test_a_chat_template_in_a_file_takes_the_place_of_the_tokenizers(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    base = Letters()
    assert renderer(base, chat_template=file).task({"prompt": "hi"}) == "<s>hi"
    assert base.chat_template == "{{ messages }}", "versions that are saved with it have the same"
    with pytest.raises(ConfigError, match=r"model.chat_template: .*other.jinja cannot be read"):
        renderer(Letters(), chat_template=tmp_path / "other.jinja")


def test_imported_plain_pairs_stay_plain() -> None:
    payload = Replies(renderer(Turns(), system_prompt="z")).payload({"prompt": "b"}, "c", max_length=10)
    assert payload.token_ids.tolist() == [1, 2, 99]


def test_nothing_but_the_renderer_calls_a_chat_template() -> None:
    package = Path(trinity_db.__file__).parent
    roles = [role.resolve() for role in package.iterdir() if role.is_symlink()]
    assert len(roles) > 3, "the roles are links"
    files = [file for folder in (package, *roles) for file in folder.rglob("*.py")]
    assert [file.name for file in files if ".apply_chat_template(" in file.read_text()] == ["prompts.py"]


def test_messages_of_the_openai_protocol_are_written_as_templates_read_them() -> None:
    seen: list[Mapping[str, Any]] = []

    class Template(Letters):
        chat_template: str | None = "..."

        def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
            seen.extend(messages)
            return json.dumps(messages, ensure_ascii=False)

    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    renderer(Template()).task({"messages": messages})
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
        renderer(Letters()).task({"messages": [{"role": "user", "content": content}]})


def test_tools_need_a_chat_template() -> None:
    with pytest.raises(UntokenizableText, match="no chat template to show them"):
        renderer(Letters()).task({"messages": [{"role": "user", "content": "a"}]}, [{"type": "function"}])


def test_a_begin_token_is_not_added_twice() -> None:
    assert prompt_ids("ab", Letters()) == prompt_ids("<s>ab", Letters()) == [98, 0, 1]


def test_a_demonstration_trains_its_response_and_the_end_token() -> None:
    payload = Replies(renderer(Letters())).payload({"prompt": "ab"}, "c", max_length=10)
    assert payload.token_ids.tolist() == [98, 0, 1, 2, 99]
    assert payload.action_mask.tolist() == [False, False, False, True, True]
    assert payload.logprobs is None


def test_a_long_demonstration_loses_its_end_but_never_its_whole_response() -> None:
    replies = Replies(renderer(Letters()))
    assert replies.payload({"prompt": "ab"}, "cde", max_length=4).token_ids.tolist() == [98, 0, 1, 2]
    with pytest.raises(PromptTooLong, match="3 tokens leaves no room for a response in 3"):
        replies.payload({"prompt": "ab"}, "cde", max_length=3)


def test_a_response_of_which_no_model_predicts_a_token_is_refused() -> None:
    class Bare(Letters):
        bos_token: str | None = None
        eos_token_id: int | None = None

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return super().encode(text, add_special_tokens=False)

    bare = Replies(renderer(Bare()))
    with pytest.raises(EmptyResponse, match="prompt of 2 tokens and a response of 0 have no token"):
        bare.payload({"prompt": "ab"}, "", max_length=10)
    with pytest.raises(EmptyResponse, match="prompt of 0 tokens and a response of 1 have no token"):
        bare.payload({"prompt": ""}, "a", max_length=10)
    assert bare.payload({"prompt": ""}, "ab", max_length=10).num_predicted == 1
    ended = Replies(renderer(Letters())).payload({"prompt": "ab"}, "", max_length=10)
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
        renderer(Strict()).task({"messages": [{"role": "system", "content": "be"}]})


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
        payload = Replies(renderer(tokenizer)).payload(task, response, max_length=10)
        return payload.token_ids.tolist(), payload.token_ids[payload.action_mask].tolist()

    assert said("c", "<t>z") == said("c ", "<t>z") == ([1, 97, 25, 2, 97], [2, 97])
    # The template closes more than the turn.
    assert said("c", "yz<t>z") == ([1, 24, 25, 97, 25, 2, 24, 25, 97], [2, 24, 25, 97])
    # Nothing would tell the engine to stop.
    assert said("c", "z") == ([1, 25, 2, 99], [2, 99])
    plain = Replies(renderer(tokenizer)).payload({"prompt": "b"}, "c", max_length=10)
    assert plain.token_ids.tolist() == [1, 2, 99]


def test_a_text_that_ends_by_the_end_of_sequence_has_one_end() -> None:
    class Ended(Letters):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            ids = super().encode(text.removesuffix("<e>"), add_special_tokens=add_special_tokens)
            return [*ids, 99] if text.endswith("<e>") else ids

    payload = Replies(renderer(Ended())).payload({"prompt": "ab"}, "c<e>", max_length=10)
    assert payload.token_ids.tolist() == [98, 0, 1, 2, 99]


def test_a_document_is_learned_from_its_first_token_to_its_end() -> None:
    replies = Replies(renderer(Letters(), prompt_template="ask {prompt}"))
    payload = replies.payload({"prompt": ""}, "abc", max_length=10)
    assert payload.token_ids.tolist() == [98, 0, 1, 2, 99]
    assert payload.action_mask.tolist() == [False, True, True, True, True]
    begun = replies.payload({"prompt": ""}, "<s>abc", max_length=10)
    assert begun.token_ids.tolist() == [98, 0, 1, 2, 99], "its beginning is there already"
    cut = replies.payload({"prompt": ""}, "abc", max_length=3)
    assert cut.token_ids.tolist() == [98, 0, 1], "a document that goes on has no end here"


@pytest.mark.parametrize("brackets", [5_000, 100_000])
def test_arguments_that_are_nested_too_deeply_stay_text(brackets: int) -> None:
    """Whether the parser in C or the one in Python reads them."""
    arguments = "[" * brackets
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    [read] = plain({"role": "assistant", "content": "", "tool_calls": [call]})["tool_calls"]
    assert read["function"]["arguments"] == arguments
