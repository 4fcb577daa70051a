"""Steps of `clean`: they drop rows before they are scored.

Only rows that nothing can be learned from are dropped by default. A step that drops by what the response says
removes it from the policy gradient.

Each returns why the row is dropped, or None.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trinity_db.processors.step import Drop, step

Script = Literal[
    "arabic",
    "armenian",
    "bengali",
    "cherokee",
    "cjk",
    "cyrillic",
    "devanagari",
    "ethiopic",
    "georgian",
    "greek",
    "gujarati",
    "gurmukhi",
    "hangul",
    "hebrew",
    "hiragana",
    "kannada",
    "katakana",
    "khmer",
    "lao",
    "latin",
    "malayalam",
    "mongolian",
    "myanmar",
    "oriya",
    "sinhala",
    "syriac",
    "tamil",
    "telugu",
    "thaana",
    "thai",
    "tibetan",
]
"""The first word of the Unicode names of a script's letters."""


@step()
def not_empty(response: str) -> str | None:
    """Drops responses of nothing but white space."""
    return None if response.strip() else "empty"


@step()
def finite_logprobs(logprobs: NDArray[np.float32] | None) -> str | None:
    """Drops rows with a log-probability that is no number."""
    return None if logprobs is None or np.isfinite(logprobs).all() else "non_finite_logprobs"


@step()
def max_length(response_length: int, *, tokens: Annotated[int, Field(ge=1)]) -> str | None:
    """Drops responses of more than `tokens` tokens."""
    return "too_long" if response_length > tokens else None


@step()
def not_truncated(finish_reason: str | None) -> str | None:
    """Drops responses that ended because no more tokens were allowed (DAPO's overlong filtering).

    The rest of their group is compared without them.
    """
    return "truncated" if finish_reason == "length" else None


@step()
def not_repetitive(
    token_ids: NDArray[np.int32],
    action_mask: NDArray[np.bool_],
    *,
    tokens: Annotated[int, Field(ge=2, le=1000)] = 20,
    share: Annotated[float, Field(ge=0, lt=1)] = 0.3,
) -> Drop | None:
    """Drops responses that repeat themselves, as a model does that is caught in a loop.

    A run of tokens is repeated if the response has the same run further left. It counts tokens and no words,
    so that it means the same in every language.

    Args:
        tokens: Length of a run. A shorter one may occur any number of times.
        share: The row is dropped if more than this share of the response's tokens lies in repeated runs.

    Source: the share of text in duplicate n-grams by which MassiveText is filtered, arXiv 2112.11446, table
    A1, of tokens in place of characters.
    """
    sampled = token_ids[action_mask]
    if len(sampled) <= tokens:
        return None
    runs = np.lib.stride_tricks.sliding_window_view(sampled, tokens)
    _, first = np.unique(runs, axis=0, return_index=True)
    is_repeated = np.ones(len(runs), dtype=bool)
    is_repeated[first] = False
    # A token lies in a repeated run if one of the `tokens` runs that hold it is repeated.
    covered = np.convolve(is_repeated, np.ones(tokens, dtype=np.int64)) > 0
    found = float(covered.mean())
    return Drop("repetitive", {"share": round(found, 4)}) if found > share else None


@step()
def in_script(
    response: str,
    *,
    scripts: Annotated[Sequence[Script], Field(min_length=1)],
    share: Annotated[float, Field(ge=0, lt=1)] = 0.05,
) -> Drop | None:
    """Drops responses that are written in other scripts, as when a model falls into another language.

    Digits, signs and emoji are of no script. A mathematical letter counts as the plain one.

    Args:
        scripts: Those that are allowed. Chinese characters are `cjk`; Japanese has `hiragana` and `katakana`
            beside them.
        share: The row is dropped if more than this share of its letters is of other scripts.
    """
    # Letters that modify others, as the Japanese mark of a long vowel, belong to several scripts.
    letters = [
        char
        for char in unicodedata.normalize("NFKC", response)
        if char.isalpha() and unicodedata.category(char) != "Lm"
    ]
    others: Counter[str] = Counter()
    for char, count in Counter(letters).items():
        script = unicodedata.name(char, "UNKNOWN").split(maxsplit=1)[0].lower()
        if script not in scripts:
            others[script] += count
    if others.total() <= share * len(letters):
        return None
    return Drop("other_script", {"share": round(others.total() / len(letters), 4), "scripts": dict(others)})


@step()
def not_duplicate(id: int, first_equal: int) -> Drop | None:
    """Drops responses that an earlier member of the same rollout group gave word by word.

    What is left of the group is compared without them. A policy that is sure of an answer gives it often, so
    this changes what a group says about the policy: use it where many equal rows only cost time.
    """
    return Drop("duplicate", {"of": first_equal}) if first_equal != id else None
