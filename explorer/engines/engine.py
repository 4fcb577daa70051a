"""What the explorer needs of an engine: it turns prompts into sampled responses.

An engine owns the policy's weights and nothing else: it sees tokens, never tasks or the database. It takes
requests at any time and answers each as soon as it ends. Each token comes with its log-probability and the
policy version that sampled it. Importing this needs none of the extras.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trinity_db.errors import ConfigError, TrinityError


class EngineFailed(TrinityError):
    """The engine cannot sample any more; the explorer ends, and its supervisor starts it again."""


class NotLoadedYet(ConfigError):
    """Other people load the engine's weights, and a server with this version may still come."""


@dataclass(frozen=True)
class Request:
    """A prompt to continue by at most `max_new_tokens` tokens, or until the context is full."""

    prompt_ids: Sequence[int]
    max_new_tokens: int
    temperature: float = 1.0
    """0 takes the likeliest token each time."""
    seed: int = 0
    """The same prompt, weights and seed give the same response, whatever else is sampled beside it."""
    stop: Sequence[str] = ()
    """Texts that end the response, special tokens by their names included. The response has all tokens up to
    and including the one that completes such a text, so it may go beyond the text by a part of that token.
    An engine that samples further tokens before it notices cuts them off: a policy that goes on from the
    response would read what it was never to say. The finish reason is stop."""


@dataclass(frozen=True)
class Completion:
    """A finished response. The lists have one entry per token of it, the end token included."""

    token_ids: list[int]
    logprobs: list[float]
    """Under the distribution that each token was sampled from; at temperature 0, that of temperature 1."""
    versions: list[int]
    """The policy version that sampled each token."""
    finish_reason: Literal["stop", "length"]
    """stop: the policy ended the response; length: a limit did."""
    routing: NDArray[np.uint8] | NDArray[np.uint16] | None = field(default=None, compare=False)
    """[m, layers, e] The experts that the routers chose, as `Payload` has it, for prompt and response: m is
    their tokens but the last one. None: the engine does not record it."""


class Engine(Protocol):
    """A policy that continues prompts. One event loop uses it at a time."""

    version: int
    """The policy version that is loaded."""
    context: int
    """Longest sequence in tokens, prompt and response together."""
    tokenizer: Any

    async def load(self, path: Path, version: int) -> None:
        """Use the weights of a checkpoint from the next token on, in responses that were begun too.

        Raises:
            NotLoadedYet: ask again; the engine has the weights of before.
            ConfigError: the folder holds no usable model. The engine samples nothing more until another
                load succeeds, unless it still has the weights of before.
        """

    async def generate(self, request: Request) -> Completion:
        """Continue a prompt. Cancelling the caller gives the response up.

        Raises:
            PromptTooLong: the prompt is empty, or leaves no room for one more token.
            EngineFailed: the engine cannot sample any more.
        """

    def close(self) -> None:
        """Give up what is in flight, and free the weights."""


def dtype_of(engine: Engine) -> str | None:
    """Number format of an engine's weights, its attribute `dtype`: float32, bfloat16 or float16.

    None: there is no such attribute: the engine rounds the weights that it loads by itself.
    """
    dtype: str | None = getattr(engine, "dtype", None)
    return dtype


def sample_all(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """The completions of all requests, in their order, for callers without an event loop.

    Raises:
        PromptTooLong: a prompt does not fit.
    """

    async def gathered() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(gathered())
