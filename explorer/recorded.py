"""What an attempt asked of the policy and what was sampled: one call, and calls that were joined."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays import Payload, check_routing
from trinity_db.explorer.engines.engine import Completion


@dataclass(frozen=True)
class Sampled:
    """One call of an attempt: what was asked, and what was sampled."""

    number: int
    """Its place among the calls of the attempt, from 0."""
    prompt: str | None
    """Its text; None where it was given as tokens."""
    prompt_ids: Sequence[int]
    completion: Completion


@dataclass
class JoinedCalls:
    """Tokens of calls that were joined."""

    prompt: str
    """The text of the first prompt."""
    token_ids: list[int]
    """Of prompts and responses, in order."""
    mask: list[bool]
    """True for a token that the policy sampled."""
    first_response: int
    """Where the first response begins."""
    temperature: float
    """That of the run."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    routing: list[NDArray[Any]] = field(default_factory=list)
    """[m, layers, e] each, end to end: the experts of the first tokens, as far as calls say them in turn."""

    def add(self, prompt_ids: Sequence[int], completion: Completion, temperature: float) -> "Place":
        """Add a call whose prompt begins with the tokens that are here; where it stands."""
        start, first = len(prompt_ids), len(self.logprobs)
        self.token_ids += [*prompt_ids[len(self.token_ids) :], *completion.token_ids]
        self.mask += [False] * (len(prompt_ids) - len(self.mask)) + [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs
        self.versions += completion.versions
        self.temperatures += [temperature] * len(completion.token_ids)
        self._add_routing(completion.routing)
        return Place(self, start, len(self.token_ids), first, completion.finish_reason)

    def _add_routing(self, routing: NDArray[Any] | None) -> None:
        """Add what a call says of tokens that are not known yet. Of the others the first call's choice stays:
        by it the next token was sampled. Another engine may count layers otherwise, and then adds nothing."""
        if routing is None or (self.routing and self.routing[0].shape[1:] != routing.shape[1:]):
            return
        if len(more := routing[sum(map(len, self.routing)) :]):
            self.routing.append(more)

    def routing_of(self, tokens: int) -> NDArray[Any] | None:
        """[m, layers, e] What is known of so many first tokens; None: nothing."""
        return np.concatenate(self.routing)[:tokens] if self.routing else None

    @property
    def payload(self) -> Payload:
        return Payload(
            np.array(self.token_ids, np.int32),
            np.array(self.mask, np.bool_),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
            None if set(self.temperatures) == {self.temperature} else np.array(self.temperatures, np.float32),
            self.routing_of(len(self.token_ids) - 1),
        )


@dataclass(frozen=True)
class Place:
    """Where the tokens of one call stand in its sequence, which later calls only lengthen.

    So the calls of an attempt take as much memory as its sequences, however often a conversation comes back.
    """

    sequence: JoinedCalls
    start: int
    """Where the response begins."""
    end: int
    first: int
    """How many sampled tokens come before the response."""
    finish_reason: str

    @property
    def prompt_ids(self) -> list[int]:
        return self.sequence.token_ids[: self.start]

    @property
    def temperature(self) -> float:
        return self.sequence.temperatures[self.first]

    @property
    def completion(self) -> Completion:
        sampled = slice(self.first, self.first + self.end - self.start)
        reason: Any = self.finish_reason
        return Completion(
            self.sequence.token_ids[self.start : self.end],
            self.sequence.logprobs[sampled],
            self.sequence.versions[sampled],
            reason,
            self.sequence.routing_of(self.end - 1),
        )


def check(completion: Completion, prompt_tokens: int) -> None:
    """Refuse what could be stored and not trained on; an engine may be a user's own.

    Args:
        prompt_tokens: of the prompt that it continues.

    Raises:
        TypeError: a token or a version is no whole number.
        ValueError: naming what is wrong.
    """
    numbers = [len(one) for one in (completion.token_ids, completion.logprobs, completion.versions)]
    if not 0 < numbers[0] == numbers[1] == numbers[2]:
        tokens, logprobs, versions = numbers
        raise ValueError(
            f"The engine gave {tokens} tokens, {logprobs} log-probabilities and {versions} versions."
        )
    if min(map(index, completion.token_ids)) < 0 or min(map(index, completion.versions)) < 0:
        raise ValueError("The engine gave a negative token or version.")
    if not all(map(isfinite, completion.logprobs)):
        raise ValueError("The engine gave a log-probability that is not finite.")
    if completion.finish_reason not in ("stop", "length"):
        raise ValueError(
            f"The engine gave the finish reason {completion.finish_reason!r}: not stop or length."
        )
    if completion.routing is not None:
        check_routing(completion.routing, prompt_tokens + numbers[0])
