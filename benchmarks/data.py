"""The rows that we and all peers write, so that all stores are asked to hold the same bytes.

Groups of 8 attempts at one prompt: prompts of 64 to 256 tokens, responses log-normal around 400 in 32 to
1,024, with texts of four characters a token. A group follows from its number and the seed alone, so several
processes can make parts of one data set. Needs only numpy: the peers' environment imports this very file.
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
RESPONSE_SIGMA = 0.5  # of the logarithm
VOCABULARY = 150_000
CHARACTERS_PER_TOKEN = 4
GROUPS_PER_VERSION = 64
POOL_TOKENS = 1 << 20  # rows are slices of a pool: making one costs microseconds, holding one costs nothing


@dataclass(frozen=True, eq=False)
class Experience:
    """One attempt at the prompt of a group."""

    group: int
    member: int
    token_ids: NDArray[np.int32]
    """[n] Prompt and response."""
    action_mask: NDArray[np.bool_]
    """[n] True for the response's tokens."""
    logprobs: NDArray[np.float32]
    """[k] One for each token of the response."""
    prompt: str
    response: str
    reward: float
    version: int
    """The policy version that wrote it."""

    @property
    def key(self) -> tuple[int, int]:
        """Two numbers that no other row has."""
        return self.group, self.member

    @property
    def prompt_tokens(self) -> int:
        return len(self.token_ids) - len(self.logprobs)

    @property
    def raw_bytes(self) -> int:
        """Its arrays and texts (ASCII), and 8 bytes each for group, member, reward and version."""
        arrays = self.token_ids.nbytes + self.action_mask.nbytes + self.logprobs.nbytes
        return arrays + len(self.prompt) + len(self.response) + 4 * 8


def groups(count: int, first: int = 0, seed: int = 0) -> Iterator[list[Experience]]:
    """Groups by their numbers, `first` the lowest."""
    for number in range(first, first + count):
        yield group(number, seed)


def group(number: int, seed: int = 0) -> list[Experience]:
    """All members of one group."""
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
    """The members of as many whole groups as `count` rows make."""
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
    """Token ids as frequent as words are, log-probabilities, and a mask that turns true at a prompt's end."""
    rng = np.random.default_rng(0)
    token_ids = (rng.zipf(1.2, POOL_TOKENS) % VOCABULARY).astype(np.int32)
    logprobs = -rng.exponential(0.5, POOL_TOKENS).astype(np.float32)
    mask = np.arange(sum(PROMPT_TOKENS) + RESPONSE_TOKENS[1]) >= PROMPT_TOKENS[1]
    return token_ids, logprobs, mask


@cache
def _words() -> str:
    """Text that compresses about as well as prose."""
    rng = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    shares = 1 / np.arange(1, len(letters) + 1)
    words = [
        "".join(rng.choice(letters, size, p=shares / shares.sum())) for size in rng.integers(2, 10, 5000)
    ]
    needed = CHARACTERS_PER_TOKEN * POOL_TOKENS
    numbers = rng.zipf(1.3, needed // 3) % len(
        words
    )  # words have three characters and more, the space included
    return " ".join(words[number] for number in numbers)[:needed]
