"""Recorded calls of an attempt: single calls, and calls joined to sequences."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays.codec import Payload
from trinity_db.explorer.engines.engine import Completion


@dataclass(frozen=True)
class Sampled:
    """One call of an attempt: prompt and completion."""

    number: int
    """Index among the calls of the attempt, from 0."""
    prompt: str | None
    """Text of the prompt; None if it was given as tokens."""
    prompt_ids: Sequence[int]
    completion: Completion


@dataclass(frozen=True)
class Requested:
    """The request of a program that a call answers."""

    digest: bytes
    """Equal for requests that are repetitions of each other."""
    path: str
    model: str


@dataclass
class JoinedCalls:
    """The tokens of joined calls."""

    prompt: str
    """Text of the first prompt."""
    token_ids: list[int]
    """Tokens of prompts and responses, in order."""
    mask: list[bool]
    """True for tokens that the policy sampled."""
    first_response: int
    """Index of the first response's first token."""
    temperature: float
    """The run's temperature."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    routing: list[NDArray[Any]] = field(default_factory=list)
    """[m, layers, e] each, contiguous: experts of the first tokens, as far as recorded."""
    calls: "dict[int, TokenSpan]" = field(default_factory=dict)
    """Positions of the calls, by their numbers."""

    def add(self, sampled: Sampled, temperature: float) -> "TokenSpan":
        """Append a call whose prompt begins with the tokens so far, and return its position."""
        prompt_ids, completion = sampled.prompt_ids, sampled.completion
        start, first = len(prompt_ids), len(self.logprobs)
        self.token_ids += [*prompt_ids[len(self.token_ids) :], *completion.token_ids]
        self.mask += [False] * (len(prompt_ids) - len(self.mask)) + [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs
        self.versions += completion.versions
        self.temperatures += [temperature] * len(completion.token_ids)
        self._add_routing(completion.routing)
        span = TokenSpan(self, start, len(self.token_ids), first, completion.finish_reason)
        self.calls[sampled.number] = span
        return span

    def without(self, left_out: Container[int]) -> "JoinedCalls | None":
        """Return the sequence up to its last call that is not left out, with the tokens of the calls that are
        left out as if they had been given; None if no call remains."""
        calls = {number: span for number, span in self.calls.items() if number not in left_out}
        if len(calls) == len(self.calls):
            return self
        if not calls:
            return None
        end = max(span.end for span in calls.values())
        kept = replace(self, token_ids=self.token_ids[:end], mask=[False] * end, calls=calls)
        kept.logprobs, kept.versions, kept.temperatures = [], [], []
        for span in calls.values():
            sampled = slice(span.first, span.first + span.end - span.start)
            kept.mask[span.start : span.end] = [True] * (span.end - span.start)
            kept.logprobs += self.logprobs[sampled]
            kept.versions += self.versions[sampled]
            kept.temperatures += self.temperatures[sampled]
        return kept

    def continued_by(self, later: "JoinedCalls") -> "JoinedCalls | None":
        """Return both sequences as one; None if the prompt of the later one does not begin with this one."""
        length = len(self.token_ids)
        if later.token_ids[:length] != self.token_ids or any(later.mask[:length]):
            return None
        joined = replace(
            later,
            prompt=self.prompt,
            first_response=self.first_response,
            mask=[*self.mask, *later.mask[length:]],
            logprobs=[*self.logprobs, *later.logprobs],
            versions=[*self.versions, *later.versions],
            temperatures=[*self.temperatures, *later.temperatures],
            routing=[],
            calls=self.calls | later.calls,
        )
        joined._add_routing(self.routing_of(length - 1))  # as the token after these was not sampled here
        joined._add_routing(later.routing_of(len(later.token_ids) - 1))
        return joined

    def _add_routing(self, routing: NDArray[Any] | None) -> None:
        """Add the experts of tokens without recorded ones. For others the first call's choice is kept, as the
        next token was sampled with it. A different engine may number layers differently, and then adds
        nothing."""
        if routing is None or (self.routing and self.routing[0].shape[1:] != routing.shape[1:]):
            return
        if len(more := routing[sum(map(len, self.routing)) :]):
            self.routing.append(more)

    def routing_of(self, tokens: int) -> NDArray[Any] | None:
        """[m, layers, e] Recorded experts of the first `tokens` tokens; None: none."""
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
class TokenSpan:
    """Position of one call's tokens in its sequence, which later calls only extend.

    So the calls of an attempt need only as much memory as its sequences, however often a conversation is
    repeated.
    """

    sequence: JoinedCalls
    start: int
    """Index of the response's first token."""
    end: int
    first: int
    """Number of sampled tokens before the response."""
    finish_reason: str

    @property
    def is_continued(self) -> bool:
        """Whether the prompt of a later call contains the response."""
        return len(self.sequence.token_ids) > self.end

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
