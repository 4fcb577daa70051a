"""Sampling options of a call, and rejection of options that bias training."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypedDict

from trinity_db.config.base import hint
from trinity_db.explorer.config import MIN_TEMPERATURE


class Sampling(TypedDict, total=False):
    """Sampling options of a call. Missing or None: the run's configuration applies.

    Options that restrict or reweight the tokens are accepted only with their neutral values.
    """

    max_new_tokens: int | None
    """Maximum length of the response in tokens."""
    temperature: float | None
    """From 0.01. The trainer divides these tokens' logits by it. A group's greedy attempt stays at 0."""
    stop: str | Sequence[str] | None
    """Strings that end the response. The response includes the string that ended it, which is trained too."""
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
"""Values that leave each token's probability as the trainer computes it."""


def check(how: Mapping[str, Any]) -> None:
    """Reject options that the trainer cannot account for.

    Raises:
        TypeError: if an option is unknown.
        ValueError: naming the option and what is wrong with it.
    """
    for name, value in how.items():
        if name not in Sampling.__annotations__:
            raise TypeError(f"A call has no option '{name}'; {hint(name, Sampling.__annotations__)}")
        if name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
            raise ValueError(
                f"{name} is {value}, and must be {NEUTRAL[name][0]}: otherwise tokens are not sampled from "
                "the distribution that the trainer uses."
            )
    temperature = how.get("temperature")
    if temperature is not None and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ValueError(
            f"temperature is {temperature}, and must be from {MIN_TEMPERATURE} to {MAX_TEMPERATURE}: greedy "
            "samples cannot be trained on."
        )
    limit = how.get("max_new_tokens")
    if limit is not None and limit < 1:
        raise ValueError(f"max_new_tokens is {limit}; it must be at least 1.")


def stops(how: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stop strings.

    Raises:
        TypeError: if one is not a string.
        ValueError: if one is empty.
    """
    stop = how.get("stop") or ()
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"A stop string is of type {type(text).__name__}, not a string.")
        if not text:
            raise ValueError("A stop string is empty.")
    return texts


def seed_of(*numbers: int) -> int:
    """Return a 64-bit seed derived deterministically from these numbers."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")
