"""The interface of an engine, which turns prompts into sampled responses.

An engine owns the policy's weights and nothing else: it handles tokens, never tasks or the database. It
accepts requests at any time and answers each as soon as it is finished. Each token comes with its
log-probability and the policy version that sampled it. Importing this module needs none of the extras.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from operator import index
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays.codec import check_routing
from trinity_db.config.user_functions import describe_error
from trinity_db.errors import ConfigError, TrinityError


class EngineFailed(TrinityError):
    """The engine can no longer sample; the explorer exits, and its supervisor restarts it."""


class RequestRefused(TrinityError):
    """The request is invalid for every engine of this model; its sender is at fault."""


class RequestFailed(TrinityError):
    """The engine did not answer a valid request, or not with tokens that can be trained on. It may answer
    others, and this one with another seed."""


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
            RequestRefused: if no engine can continue it, such as for a token outside of the vocabulary.
            RequestFailed: if this engine could not continue it, and may continue others.
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


async def generate(engine: Engine, request: Request) -> Completion:
    """Continue a prompt with an engine, which may be a user's, and check its completion.

    Raises:
        RequestFailed: if the completion cannot be trained on, or the engine raises an error of another class.
        The errors of `Engine.generate`.
    """
    with _failing():
        completion = await engine.generate(request)
        _check(completion, len(request.prompt_ids))
    return completion


@contextmanager
def _failing() -> Iterator[None]:
    """Turn other errors than ours, such as those of a user's engine, into RequestFailed."""
    try:
        yield
    except TrinityError:
        raise
    except Exception as error:
        raise RequestFailed(describe_error(error)) from error


def _check(completion: Completion, prompt_tokens: int) -> None:
    """Check that a completion can be trained on.

    Args:
        prompt_tokens: number of tokens in its prompt.

    Raises:
        TypeError: if a token or a version is not an integer.
        ValueError: naming what is wrong.
    """
    numbers = [len(values) for values in (completion.token_ids, completion.logprobs, completion.versions)]
    if not 0 < numbers[0] == numbers[1] == numbers[2]:
        tokens, logprobs, versions = numbers
        raise ValueError(
            f"The engine returned {tokens} tokens, {logprobs} log-probabilities and {versions} versions."
        )
    if min(map(index, completion.token_ids)) < 0 or min(map(index, completion.versions)) < 0:
        raise ValueError("The engine returned a negative token or version.")
    if not all(map(isfinite, completion.logprobs)):
        raise ValueError("The engine returned a log-probability that is not finite.")
    if completion.finish_reason not in ("stop", "length"):
        raise ValueError(
            f"The engine returned the finish reason {completion.finish_reason!r}: not stop or length."
        )
    if completion.routing is not None:
        check_routing(completion.routing, prompt_tokens + numbers[0])


async def score(engine: Engine, token_ids: Sequence[int]) -> Scores:
    """Compute the log-probabilities of given tokens, with the engine's method `score`.

    Raises:
        ConfigError: if the engine has no such method.
        PromptTooLong: if the tokens exceed the context, or there are none.
        RequestRefused: if a token is outside of the vocabulary.
        RequestFailed: if a log-probability is not finite, or the engine raises an error of another class.
        EngineFailed: if the engine can no longer compute.
    """
    method = getattr(engine, "score", None)
    if method is None:
        raise ConfigError(
            "This engine has no method score, and cannot compute log-probabilities of given tokens: use "
            "explorer.engine: transformers or vllm."
        )
    with _failing():
        scores: Scores = await method(token_ids)
        if not all(map(isfinite, scores.logprobs)):
            raise ValueError("The engine returned a log-probability that is not finite.")
    return scores


def sample_all(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """Return the completions of all requests, in order, for callers without an event loop.

    Raises:
        PromptTooLong: if a prompt does not fit.
    """

    async def gathered() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(gathered())
