"""From a task to the text and the tokens a model is given.

Explorer and trainer share it, so that both ask a model by the same text. `replies` goes on from here to the
tokens of an imported response. Knows tokenizers only by the few members it uses; loads neither torch nor
transformers.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from trinity_db.errors import TrinityError


class PromptTooLong(TrinityError, ValueError):
    """The prompt alone fills the context; nothing could follow it."""


class UntokenizableText(TrinityError, ValueError):
    """The tokenizer has no token for a character of the text, or its template refuses the conversation."""


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: str | None
    bos_token: str | None
    eos_token_id: int | None
    all_special_tokens: list[str]
    added_tokens_decoder: dict[int, Any]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> str: ...


def prompt_text(
    task: Mapping[str, Any],
    template: str,
    tokenizer: Tokenizer | None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The text a model is asked to continue.

    `messages` go through the tokenizer's chat template; without one they become lines
    "role: content" and a last line "assistant:". A plain `prompt` takes the place of "{prompt}" in
    the template, in which no other brace has a meaning.

    Args:
        tools: JSON schemas of what the model may call, for the chat template to show.

    Raises:
        UntokenizableText: the chat template refuses the messages, as some do a role or two turns of one; a
            message has an image; or there are tools, and no chat template.
    """
    messages = task.get("messages")
    if not messages:
        return template.replace("{prompt}", task["prompt"])
    if tokenizer is not None and tokenizer.chat_template:
        return rendered(messages, tokenizer, tools, add_generation_prompt=True)
    if tools:
        raise UntokenizableText("There are tools, and the tokenizer has no chat template to show them by.")
    lines = [f"{message['role']}: {message['content']}" for message in map(plain, messages)]
    return "\n".join([*lines, "assistant:"])


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates read it: its content one text, the arguments of its tool calls objects.

    Its weight in training is left out.

    Raises:
        UntokenizableText: its content is something other than text, as an image, or a tool call is no object.
    """
    content = message.get("content")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        parts = content if isinstance(content, list | tuple) else [content]
        content = "".join(map(_text_of_part, parts))
    plain = {name: value for name, value in message.items() if name != "weight"} | {"content": content}
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    return plain


def prompt_ids(prompt: str, tokenizer: Tokenizer) -> list[int]:
    """The prompt's tokens. A beginning-of-sequence token is not added twice (chat templates write it).

    Raises:
        UntokenizableText: the tokenizer does not know one of the characters.
    """
    begun = tokenizer.bos_token is not None and prompt.startswith(tokenizer.bos_token)
    return _encode(prompt, tokenizer, add_special_tokens=not begun)


def encode(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text that goes on from others: nothing is added before or after it.

    Raises:
        UntokenizableText: the tokenizer does not know one of the characters.
    """
    return _encode(text, tokenizer, add_special_tokens=False)


def rendered(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    add_generation_prompt: bool,
) -> str:
    """Messages by the chat template.

    Raises:
        UntokenizableText: the template refuses them, or a message is not of text.
    """
    turns = [plain(message) for message in messages]
    try:
        return tokenizer.apply_chat_template(
            turns, tools=[*tools] or None, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except Exception as error:  # a template is a model's own code
        raise UntokenizableText(f"The chat template refuses the conversation: {error}") from error


def offered_tools(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a task lets the model call: its column `tools`, where that is a list of functions with names.

    A column of that name that holds something else is the business of the rewards that read it.
    """
    given = task.get("tools")
    functions = [function_of(one) for one in given] if isinstance(given, list) else []
    return [*given] if given and all(isinstance(one.get("name"), str) for one in functions) else []


def function_of(value: Any) -> Mapping[str, Any]:
    """The function in a tool, or in a call of one: what OpenAI writes under `function`, or the value itself.

    Returns:
        an empty mapping where there is none.
    """
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise UntokenizableText(
        f"A message has content of type '{kind}'; the policy reads texts only, no images."
    )


def _plain_call(call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise UntokenizableText(f"A message has a tool call that is no object: {call!r:.80}")
    function = dict(call.get("function", call))
    if isinstance(function.get("arguments"), str):
        with suppress(ValueError):  # a model may have written none
            function["arguments"] = json.loads(function["arguments"])
    return {**call, "function": function} if "function" in call else function


def _encode(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise UntokenizableText(f"The tokenizer cannot encode {text!r:.80}: {error}") from error
