"""How one call is sampled: what a workflow may ask for, and what is refused since it biases training."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypedDict

from trinity_db.settings import hint


class Sampling(TypedDict, total=False):
    """How a call is sampled. Without a key, or with None, the configuration of the run holds.

    Options that choose among some of the tokens, or weigh them otherwise, may be named only with the value
    that changes nothing.
    """

    max_new_tokens: int | None
    """Longest response in tokens."""
    temperature: float | None
    """Above 0. The trainer divides the logits of these tokens by it. A group's greedy attempt keeps 0."""
    stop: str | Sequence[str] | None
    """Texts that end the response. It has the one that ended it, which is trained too."""
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None


MAX_TEMPERATURE = 1000
NEUTRAL: Mapping[str, Sequence[float]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
}
"""Values with which each token has the probability that the trainer computes for it."""


def check(how: Mapping[str, Any]) -> None:
    """Refuse options that the trainer could not follow.

    Raises:
        TypeError: there is no such option.
        ValueError: naming the option and what is wrong with it.
    """
    for name, value in how.items():
        if name not in Sampling.__annotations__:
            raise TypeError(f"A call has no option '{name}'; {hint(name, Sampling.__annotations__)}")
        if name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
            raise ValueError(
                f"{name} is {value}, and must be {NEUTRAL[name][0]}: else tokens are not sampled from the "
                "distribution that the trainer compares with."
            )
    temperature = how.get("temperature")
    if temperature is not None and not 0 < temperature <= MAX_TEMPERATURE:
        raise ValueError(
            f"temperature is {temperature}, and must be above 0 and at most {MAX_TEMPERATURE}: the likeliest "
            "tokens alone are no sample that could be trained on."
        )
    limit = how.get("max_new_tokens")
    if limit is not None and limit < 1:
        raise ValueError(f"max_new_tokens is {limit}; the policy samples at least one token.")


def stops(how: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts that end a response.

    Raises:
        TypeError: one is no text.
        ValueError: one is empty.
    """
    given = how.get("stop") or ()
    texts = (given,) if isinstance(given, str) else tuple(given)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"A stop string is {type(text).__name__}, no text.")
        if not text:
            raise ValueError("A stop string is empty.")
    return texts


def seed_of(*numbers: int) -> int:
    """A seed of 64 bits that follows from these numbers and from nothing else."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")
