"""What the explorer needs of an engine: it turns prompts into sampled responses.

An engine owns the policy's weights and nothing else: it sees tokens, never tasks or the database. Each
token comes with its log-probability and policy version. The explorer decides when a newer version is
loaded. Responses that it has begun go on with the newer version. This module needs none of the extras.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from trinity_db.arrays import Payload


@dataclass(frozen=True)
class Request:
    """A prompt to continue by at most `max_new_tokens` tokens, or until the context is full."""

    prompt_ids: Sequence[int]
    max_new_tokens: int
    greedy: bool = False
    """Take the likeliest token each time, no matter at which temperature other requests are sampled."""


@dataclass(frozen=True)
class Completion:
    """A finished response. The three lists have one entry per token of it, the end token included."""

    index: int
    """Position of its request among those passed to `generate`."""
    token_ids: list[int]
    logprobs: list[float]
    """Under the distribution each token was sampled from; in a greedy response, that of temperature 1."""
    versions: list[int]
    """The policy version that sampled each token."""
    finish_reason: Literal["stop", "length"]
    """stop: the policy ended the response; length: a limit did."""

    def payload(self, prompt_ids: Sequence[int]) -> Payload:
        """Prompt and response as one sequence; only the response is trained."""
        token_ids = np.array([*prompt_ids, *self.token_ids], np.int32)
        return Payload(
            token_ids=token_ids,
            action_mask=np.arange(len(token_ids)) >= len(prompt_ids),
            logprobs=np.array(self.logprobs, np.float32),
            versions=np.array(self.versions, np.int32),
        )


class Engine(Protocol):
    """A policy that continues prompts."""

    version: int
    """The policy version that is loaded."""
    context: int
    """Longest sequence in tokens, prompt and response together."""
    tokenizer: Any

    def load(self, path: Path, version: int) -> None:
        """Use the weights of a checkpoint from the next token on."""

    def fits(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt has a token to begin with and leaves room for one more."""

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        seed: int,
        should_stop: Callable[[], bool],
    ) -> Iterator[list[Completion]]:
        """Continue all prompts together; completions that end at one token are yielded at once, together.

        Temperature 0 takes the likeliest token, of all of them. When `should_stop` becomes true, asked before
        every token, the responses not finished by then are given up.

        Raises:
            PromptTooLong: at once, when a prompt does not fit.
        """
