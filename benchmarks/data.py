"""Rows that we and all peers write, so that all stores hold the same bytes.

Groups of 8 attempts at one prompt: prompts of 64 to 256 tokens, responses log-normal around 400 in 32 to
1,024, with texts of four characters a token. A group depends only on its number and the seed, so several
processes can generate parts of one data set. Imports only numpy, because peers' environments use this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

GROUP_SIZE = 8
PROMPT_TOKENS = (64, 256)
RESPONSE_TOKENS = (32, 1024)
RESPONSE_MEDIAN = 380  # tokens; with this spread and after clipping the mean is about 420
RESPONSE_SIGMA = 0.5  # standard deviation of the logarithm
VOCABULARY = 150_000
CHARACTERS_PER_TOKEN = 4
GROUPS_PER_VERSION = 64
POOL_TOKENS = 1 << 20  # rows are slices of a pool, which costs microseconds and no memory


@dataclass(frozen=True, eq=False)
class Experience:
    """Attempt at the prompt of a group."""

    group: int
    member: int
    token_ids: NDArray[np.int32]
    """[n] Prompt and response."""
    action_mask: NDArray[np.bool_]
    """[n] True for tokens of the response."""
    logprobs: NDArray[np.float32]
    """[k] Log-probability of each token of the response."""
    prompt: str
    response: str
    reward: float
    version: int
    """Policy version that sampled it."""

    @property
    def key(self) -> tuple[int, int]:
        """Unique key of the row."""
        return self.group, self.member

    @property
    def prompt_tokens(self) -> int:
        return len(self.token_ids) - len(self.logprobs)


def groups(count: int, first: int = 0, seed: int = 0) -> Iterator[list[Experience]]:
    """Yield `count` groups, starting with number `first`."""
    for number in range(first, first + count):
        yield group(number, seed)


def group(number: int, seed: int = 0) -> list[Experience]:
    """Return the members of one group."""
    rng = np.random.default_rng([seed, number])
    prompt_tokens = int(rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1))
    lengths = rng.lognormal(np.log(RESPONSE_MEDIAN), RESPONSE_SIGMA, GROUP_SIZE)
    lengths = np.clip(np.rint(lengths), *RESPONSE_TOKENS).astype(int)
    starts = rng.integers(0, POOL_TOKENS - sum(PROMPT_TOKENS) - RESPONSE_TOKENS[1], GROUP_SIZE)
    rewards = rng.integers(0, 2, GROUP_SIZE)
    prompt_text = _text(int(starts[0]), prompt_tokens)
    return [
        _experience(number, member, prompt_tokens, prompt_text, int(length), int(start), float(reward))
        for member, (length, start, reward) in enumerate(zip(lengths, starts, rewards, strict=True))
    ]


def rows(count: int, first_group: int = 0, seed: int = 0) -> list[Experience]:
    """Return `count` rows of whole groups."""
    return [row for members in groups(count // GROUP_SIZE, first_group, seed) for row in members]


def _experience(
    number: int, member: int, prompt_tokens: int, prompt: str, length: int, start: int, reward: float
) -> Experience:
    token_ids, logprobs, mask = _pool()
    return Experience(
        number,
        member,
        token_ids[start : start + prompt_tokens + length],
        mask[PROMPT_TOKENS[1] - prompt_tokens : PROMPT_TOKENS[1] + length],
        logprobs[start : start + length],
        prompt,
        _text(start + prompt_tokens, length),
        reward,
        version=number // GROUPS_PER_VERSION,
    )


def _text(start: int, tokens: int) -> str:
    return _words()[CHARACTERS_PER_TOKEN * start : CHARACTERS_PER_TOKEN * (start + tokens)]


@cache
def _pool() -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.bool_]]:
    """Return token ids with Zipf's frequencies, log-probabilities, and a mask with a prompt's end."""
    rng = np.random.default_rng(0)
    token_ids = (rng.zipf(1.2, POOL_TOKENS) % VOCABULARY).astype(np.int32)
    logprobs = -rng.exponential(0.5, POOL_TOKENS).astype(np.float32)
    mask = np.arange(sum(PROMPT_TOKENS) + RESPONSE_TOKENS[1]) >= PROMPT_TOKENS[1]
    return token_ids, logprobs, mask


@cache
def _words() -> str:
    """Return text that compresses about as well as prose."""
    rng = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    shares = 1 / np.arange(1, len(letters) + 1)
    words = [
        "".join(rng.choice(letters, size, p=shares / shares.sum())) for size in rng.integers(2, 10, 5000)
    ]
    needed = CHARACTERS_PER_TOKEN * POOL_TOKENS
    numbers = rng.zipf(1.3, needed // 3) % len(words)  # a word and its space have at least three characters
    return " ".join(words[number] for number in numbers)[:needed]
