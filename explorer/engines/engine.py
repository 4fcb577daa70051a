"""The interface of an engine, which turns prompts into sampled responses.

An engine owns the policy's weights and nothing else: it handles tokens, never tasks or the database. It
accepts requests at any time and answers each as soon as it is finished. Each token comes with its
log-probability and the policy version that sampled it. Importing this module needs none of the extras.
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
    """The engine can no longer sample; the explorer exits, and its supervisor restarts it."""


class NotLoadedYet(ConfigError):
    """Another program loads the engine's weights, and no server has this version yet."""


@dataclass(frozen=True)
class Request:
    """A prompt to continue by up to `max_new_tokens` tokens, or until the context is full."""

    prompt_ids: Sequence[int]
    max_new_tokens: int
    temperature: float = 1.0
    """0 always takes the likeliest token."""
    seed: int = 0
    """The same prompt, weights and seed give the same response, whatever is sampled concurrently."""
    stop: Sequence[str] = ()
    """Strings that end the response, including names of special tokens. The response contains all tokens up
    to and including the token that completes such a string, so its text may extend beyond it. An engine that
    samples further tokens before it notices must cut them off: a conversation that continues the response
    would otherwise contain text that the policy was not meant to produce. The finish reason is stop."""


@dataclass(frozen=True)
class Completion:
    """A finished response. The lists have one entry per token, including the end token."""

    token_ids: list[int]
    logprobs: list[float]
    """Log-probabilities under the distribution sampled from; at temperature 0, of temperature 1."""
    versions: list[int]
    """Policy version that sampled each token."""
    finish_reason: Literal["stop", "length"]
    """stop: the policy ended the response; length: a limit was reached."""
    routing: NDArray[np.uint8] | NDArray[np.uint16] | None = field(default=None, compare=False)
    """[m, layers, e] Experts chosen by the routers (see `Payload`), for prompt and response: m is the number
    of their tokens minus one. None: not recorded."""


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of tokens at temperature 1. The lists have an entry for each token but the first."""

    logprobs: list[float]
    likeliest: list[tuple[int, float]]
    """Likeliest token at each place, and its log-probability."""


class Engine(Protocol):
    """A policy that continues prompts. Used by one event loop at a time."""

    version: int
    """Loaded policy version."""
    context: int
    """Maximum sequence length in tokens, prompt plus response."""
    tokenizer: Any

    async def load(self, path: Path, version: int) -> None:
        """Use the weights of a checkpoint from the next token on, including in unfinished responses.

        Raises:
            NotLoadedYet: the engine keeps its previous weights; try again later.
            ConfigError: if the folder has no usable model. The engine samples nothing until another load
                succeeds, unless it still has its previous weights.
        """

    async def generate(self, request: Request) -> Completion:
        """Continue a prompt. Cancelling the caller aborts the response.

        Raises:
            PromptTooLong: if the prompt is empty, or leaves no room for a token.
            EngineFailed: if the engine can no longer sample.
        """

    def close(self) -> None:
        """Abort requests in flight, and free the weights."""


def dtype_of(engine: Engine) -> str | None:
    """Return the number format of an engine's weights, its attribute `dtype`: float32, bfloat16 or float16.

    None: it has no such attribute, and rounds the weights that it loads by itself.
    """
    dtype: str | None = getattr(engine, "dtype", None)
    return dtype


async def score(engine: Engine, token_ids: Sequence[int]) -> Scores:
    """Compute the log-probabilities of given tokens, with the engine's method `score`.

    Raises:
        ConfigError: if the engine has no such method.
        PromptTooLong: if the tokens exceed the context, or there are none.
        EngineFailed: if the engine can no longer compute.
    """
    method = getattr(engine, "score", None)
    if method is None:
        raise ConfigError(
            "This engine has no method score, and cannot compute log-probabilities of given tokens: use "
            "explorer.engine: transformers."
        )
    scores: Scores = await method(token_ids)
    return scores


def sample_all(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """Return the completions of all requests, in order, for callers without an event loop.

    Raises:
        PromptTooLong: if a prompt does not fit.
    """

    async def gathered() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(gathered())
