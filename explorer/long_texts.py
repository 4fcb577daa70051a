"""Work on long texts: in a small pool of threads, so that the event loop answers other attempts meanwhile."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from trinity_db.prompts import PromptTooLong, encode

Result = TypeVar("Result")

SHORT = 16_384  # characters; work on at most so many takes a few milliseconds, and is done at once
CHARACTERS = 4  # that a token counts for, where tokens are the input
THREADS = 2
PIECE = 65_536  # characters that are encoded at a time to count tokens
_MIN_LONGEST = 16  # characters for which a token may stand, also in a vocabulary of single characters

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="long-texts")


async def work_on(characters: int, work: Callable[[], Result]) -> Result:
    """The result of work on a text with so many characters. Only short texts hold up the event loop."""
    if characters <= SHORT:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


@cache
def longest_token(tokenizer: Any) -> int:
    """Characters of the longest token, at least 16."""
    vocabulary: dict[str, int] = getattr(tokenizer, "get_vocab", dict)()
    return max(_MIN_LONGEST, max(map(len, vocabulary), default=0))


def characters_in(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> int:
    """Characters of the texts of a conversation and of tools: how long it takes to render them."""
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
    """Refuse a text that is too long for the context before all of it is encoded.

    A text of more than 4 characters for each token of the context is first encoded piece by piece, up to
    twice the context: the last tokens of a piece may be others than those of the whole text.

    Raises:
        PromptTooLong: it has more tokens than the context.
        UntokenizableText: the tokenizer does not know one of its characters.
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
                f"A prompt of {len(text)} characters has more than {context} tokens, the whole context."
            )
