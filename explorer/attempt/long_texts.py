"""Processes long texts in a small thread pool, so that the event loop can serve other attempts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from trinity_db.models.chat.prompts import PromptTooLong, encode

Result = TypeVar("Result")

SHORT = 16_384  # characters; shorter texts take a few milliseconds, and are processed in the event loop
CHARACTERS = 4  # assumed per token, if the input is tokens
THREADS = 2
PIECE = 65_536  # characters encoded at a time when counting tokens
_MIN_LONGEST = 16  # characters covered by one token, even in a vocabulary of single characters

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="long-texts")


async def work_on(characters: int, work: Callable[[], Result]) -> Result:
    """Run work on a text of this length. Only short texts are processed in the event loop."""
    if characters <= SHORT:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


@cache
def longest_token(tokenizer: Any) -> int:
    """Return the length of the longest token in characters, at least 16."""
    vocabulary: dict[str, int] = getattr(tokenizer, "get_vocab", dict)()
    return max(_MIN_LONGEST, max(map(len, vocabulary), default=0))


def characters_in(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> int:
    """Count the characters of a conversation and its tools, as an estimate of the time to render them."""
    number, left = 0, [*messages, *tools]
    while left and number <= SHORT:
        value = left.pop()
        number += 1 + (len(value) if isinstance(value, str) else 0)
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
    return number


def check_fits(text: str, tokenizer: Any, context: int) -> None:
    """Reject a text that is too long for the context, before all of it is encoded.

    A text of more than 4 characters per token of the context is first encoded in pieces, up to twice the
    context: tokens at the end of a piece may differ from those of the whole text.

    Raises:
        PromptTooLong: if it has more tokens than the context.
        UntokenizableText: if the tokenizer cannot encode one of its characters.
    """
    if len(text) > context * longest_token(tokenizer):
        raise PromptTooLong(f"A prompt of {len(text)} characters does not fit a context of {context} tokens.")
    if len(text) <= max(PIECE, CHARACTERS * context):
        return
    tokens = 0
    for begin in range(0, len(text), PIECE):
        tokens += len(encode(text[begin : begin + PIECE], tokenizer))
        if tokens > 2 * context:
            raise PromptTooLong(
                f"A prompt of {len(text)} characters exceeds the context of {context} tokens."
            )
