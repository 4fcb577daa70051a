"""From a task to the text and the tokens a model is given.

Explorer and trainer share it, so that an imported demonstration is tokenised exactly as a rollout
is sampled: prompt and response apart, the response closed by the end-of-sequence token.
Knows tokenizers only by the few members it uses; loads neither torch nor transformers.
"""

from collections.abc import Mapping, Sequence
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
        self, messages: Sequence[Mapping[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str: ...


def prompt_text(task: Mapping[str, Any], template: str, tokenizer: Tokenizer | None) -> str:
    """The text a model is asked to continue.

    `messages` go through the tokenizer's chat template; without one they become lines
    "role: content" and a last line "assistant:". A plain `prompt` takes the place of "{prompt}" in
    the template, in which no other brace has a meaning.

    Raises:
        UntokenizableText: the chat template refuses the messages, as some do a role or two turns of one.
    """
    messages = task.get("messages")
    if not messages:
        return template.replace("{prompt}", task["prompt"])
    if tokenizer is not None and tokenizer.chat_template:
        try:
            return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a model's own code
            raise UntokenizableText(f"The chat template refuses the conversation: {error}") from error
    lines = [f"{message['role']}: {message['content']}" for message in messages]
    return "\n".join([*lines, "assistant:"])


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


def _encode(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise UntokenizableText(f"The tokenizer cannot encode {text!r:.80}: {error}") from error
