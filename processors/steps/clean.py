"""Steps of `clean`: they drop rows before scoring, returning the reason, or None to keep the row.

By default only rows that nothing can be learned from are dropped. A step that drops rows because of their
content removes that content from the policy gradient.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trinity_db.processors.jobs.words import normalized
from trinity_db.processors.lists.step import Drop, step

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
"""First words of the Unicode names of a script's letters."""


@step()
def not_empty(response: str) -> str | None:
    """Drops responses that consist of white space."""
    return None if response.strip() else "empty"


@step()
def finite_logprobs(logprobs: NDArray[np.float32] | None) -> str | None:
    """Drops rows with a log-probability that is not finite."""
    return None if logprobs is None or np.isfinite(logprobs).all() else "non_finite_logprobs"


@step()
def max_length(response_length: int, *, tokens: Annotated[int, Field(ge=1)]) -> str | None:
    """Drops responses of more than `tokens` tokens."""
    return "too_long" if response_length > tokens else None


@step()
def not_truncated(finish_reason: str | None) -> str | None:
    """Drops responses that were cut off at the token limit (DAPO's overlong filtering).

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
    """Drops responses that repeat themselves, such as those of a model caught in a loop.

    A run of tokens is repeated if the same run occurs earlier in the response. Counting tokens instead of
    words makes the measure independent of the language.

    Args:
        tokens: Length of a run. Shorter runs may repeat any number of times.
        share: The row is dropped if more than this share of the response's tokens is in repeated runs.

    Source: MassiveText's filter by the share of text in duplicate n-grams, arXiv 2112.11446, table A1, with
    tokens instead of characters.
    """
    sampled = token_ids[action_mask]
    if len(sampled) <= tokens:
        return None
    runs = np.lib.stride_tricks.sliding_window_view(sampled, tokens)
    _, first = np.unique(runs, axis=0, return_index=True)
    is_repeated = np.ones(len(runs), dtype=bool)
    is_repeated[first] = False
    # A token is in a repeated run if one of the `tokens` runs that contain it is repeated.
    covered = np.convolve(is_repeated, np.ones(tokens, dtype=np.int64)) > 0
    repeated_share = float(covered.mean())
    return Drop("repetitive", {"share": round(repeated_share, 4)}) if repeated_share > share else None


@step()
def in_script(
    response: str,
    *,
    scripts: Annotated[Sequence[Script], Field(min_length=1)],
    share: Annotated[float, Field(ge=0, lt=1)] = 0.05,
) -> Drop | None:
    """Drops responses written in other scripts, such as after a switch to another language.

    Digits, signs and emoji belong to no script. A mathematical letter counts as the plain letter.

    Args:
        scripts: Allowed scripts. Chinese characters are `cjk`; Japanese also needs `hiragana` and `katakana`.
        share: The row is dropped if more than this share of its letters is in other scripts.
    """
    # Letters that modify others, such as the Japanese prolonged sound mark, belong to several scripts.
    letters = [char for char in normalized(response) if char.isalpha() and unicodedata.category(char) != "Lm"]
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
    """Drops responses that equal an earlier response of the same rollout group.

    The rest of the group is compared without them. A confident policy repeats its answers, so dropping them
    changes what a group shows about the policy: use this step where many equal rows only cost time.
    """
    return Drop("duplicate", {"of": first_equal}) if first_equal != id else None
