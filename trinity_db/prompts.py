"""From a task to the text and the tokens a model is given.

Explorer and trainer share it, so that an imported demonstration is tokenised exactly as a rollout
is sampled: prompt and response apart, the response closed by the end-of-sequence token.
Knows tokenizers only by the few members it uses; loads neither torch nor transformers.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from trinity_db.arrays import Payload
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
    messages = [plain(message) for message in messages]
    if tokenizer is not None and tokenizer.chat_template:
        try:
            return tokenizer.apply_chat_template(
                messages, tools=[*tools] or None, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a model's own code
            raise UntokenizableText(f"The chat template refuses the conversation: {error}") from error
    if tools:
        raise UntokenizableText("There are tools, and the tokenizer has no chat template to show them by.")
    lines = [f"{message['role']}: {message['content']}" for message in messages]
    return "\n".join([*lines, "assistant:"])


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates read it: its content one text, the arguments of its tool calls objects.

    Raises:
        UntokenizableText: its content is something other than text, as an image, or a tool call is no object.
    """
    content = message.get("content")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        parts = content if isinstance(content, list | tuple) else [content]
        content = "".join(map(_text_of_part, parts))
    plain = {**message, "content": content}
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


def tokenize(prompt: str, response: str, tokenizer: Tokenizer, max_length: int) -> Payload:
    """A demonstration as a payload: the response and its end-of-sequence token are trained.

    What reaches beyond `max_length` tokens is cut off at the end.

    Raises:
        PromptTooLong: no token of the response is left.
        UntokenizableText: the tokenizer does not know one of the characters.
    """
    before = prompt_ids(prompt, tokenizer)
    after = encode(response, tokenizer)
    if tokenizer.eos_token_id is not None:
        after.append(tokenizer.eos_token_id)
    token_ids = np.array((before + after)[:max_length], np.int32)
    action_mask = np.arange(len(token_ids)) >= len(before)
    if not action_mask.any():
        raise PromptTooLong(
            f"A prompt of {len(before)} tokens leaves no room for a response in {max_length}."
        )
    return Payload(token_ids, action_mask)


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
