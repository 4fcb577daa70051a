"""What an attempt asked of the policy and what was sampled: one call, and calls that were joined."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import index

import numpy as np

from trinity_db.arrays import Payload
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

    def add(self, prompt_ids: Sequence[int], completion: Completion, temperature: float) -> None:
        """Add a call whose prompt begins with the tokens that are here."""
        self.token_ids += [*prompt_ids[len(self.token_ids) :], *completion.token_ids]
        self.mask += [False] * (len(prompt_ids) - len(self.mask)) + [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs
        self.versions += completion.versions
        self.temperatures += [temperature] * len(completion.token_ids)

    @property
    def payload(self) -> Payload:
        return Payload(
            np.array(self.token_ids, np.int32),
            np.array(self.mask, np.bool_),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
            None if set(self.temperatures) == {self.temperature} else np.array(self.temperatures, np.float32),
        )


def check(completion: Completion) -> None:
    """Refuse what could be stored and not trained on; an engine may be a user's own.

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
