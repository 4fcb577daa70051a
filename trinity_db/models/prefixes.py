"""Prefixes that sequences share, such as the prompt of a group, computed once for all of them.

    prefixes = Prefixes(payloads)
    tree = prefixes.tree([4, 5, 6])  # of these payloads: segments, and the tokens of each payload in them

Any common beginning of two sequences is a prefix: a prompt, the earlier turns of a conversation, or a system
prompt of several tasks. Tokens for which an engine chose other experts are not shared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays.codec import Payload
from trinity_db.models.segments import Segments

WORTH_SAVING = 16
"""Tokens that a shared segment has to save. A segment costs calls of the attention in each layer."""


@dataclass(frozen=True)
class Tree:
    """Segments of some payloads."""

    segments: Segments
    paths: list[list[int]]
    """Segments of each payload."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the model computes."""
        return self.segments.starts[-1]


class Prefixes:
    """Common prefixes of payloads.

    Args:
        shares: whether prefixes are shared. False: each payload is a segment.
    """

    def __init__(self, payloads: Sequence[Payload], shares: bool = True) -> None:
        self.lengths = [payload.num_tokens for payload in payloads]
        """Tokens of each payload."""
        keys = _keys(payloads) if shares else [np.zeros((0, 1), np.uint8)] * len(payloads)
        # Payloads that share a prefix are neighbours.
        self._order = sorted(range(len(payloads)), key=lambda row: keys[row].tobytes())
        self._ranks = {row: rank for rank, row in enumerate(self._order)}
        pairs = pairwise(keys[row] for row in self._order)
        self._common = np.array([0, *(_equal(previous, key) for previous, key in pairs)])
        """Tokens that a payload of `_order` shares with the one before it."""

    def tree(self, rows: Sequence[int]) -> Tree:
        """Divide payloads into segments, those that begin together by length, the longest first."""
        ranks = sorted(self._ranks[row] for row in rows)
        ordered = [self._order[rank] for rank in ranks]
        common = [
            0,
            *(int(self._common[previous + 1 : rank + 1].min()) for previous, rank in pairwise(ranks)),
        ]
        lengths = [self.lengths[row] for row in ordered]
        segments: list[tuple[int, int]] = []  # length and parent
        paths: dict[int, list[int]] = {row: [] for row in rows}
        waiting = [(0, len(ordered), 0, -1)]
        for first, last, begin, parent in waiting:
            parts = [part for part in _parts(lengths, common, first, last, begin) if part[2] > begin]
            for start, stop, end in sorted(
                parts, key=lambda part: (-part[2], min(ordered[part[0] : part[1]]))
            ):
                for row in ordered[start:stop]:
                    paths[row].append(len(segments))
                if stop > start + 1:
                    waiting.append((start, stop, end, len(segments)))
                segments.append((end - begin, parent))
        return Tree(Segments(*zip(*segments, strict=True)), [paths[row] for row in rows])

    def ordered(self) -> list[int]:
        """Return the payloads with those that share a prefix next to each other, the longest first."""
        if not self.lengths:
            return []
        tree = self.tree(range(len(self.lengths)))
        longest = [0] * len(tree.segments.lengths)
        for length, path in zip(self.lengths, tree.paths, strict=True):
            for segment in path:
                longest[segment] = max(longest[segment], length)
        keys = [[(-longest[segment], segment) for segment in path] for path in tree.paths]
        return sorted(range(len(keys)), key=keys.__getitem__)


def _parts(
    lengths: Sequence[int], common: Sequence[int], first: int, last: int, begin: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the segments that start at a position, with the range of sequences that contain it, and its end.

    Args:
        first, last: range of sequences with the same tokens before the position.
    """
    waiting = [(first, last, begin)]
    while waiting:
        first, last, cut = waiting.pop()
        bounds = [first, *(position for position in range(first + 1, last) if common[position] <= cut), last]
        for start, stop in pairwise(bounds):
            end = lengths[start] if stop == start + 1 else min(common[start + 1 : stop])
            if stop == start + 1 or (stop - start - 1) * (end - begin) >= WORTH_SAVING:
                yield start, stop, end
            else:
                waiting.append((start, stop, end))


def _keys(payloads: Sequence[Payload]) -> list[NDArray[np.uint8]]:
    """[n, bytes] What makes the tokens of each payload equal: ids, and recorded choices of experts."""
    ids = [
        np.ascontiguousarray(payload.token_ids, ">u4").view(np.uint8).reshape(-1, 4) for payload in payloads
    ]
    if all(payload.routing is None for payload in payloads):
        return ids
    choices = [
        np.empty((0, 0), np.uint8)
        if payload.routing is None
        else np.ascontiguousarray(payload.routing).reshape(len(payload.routing), -1).view(np.uint8)
        for payload in payloads
    ]
    width = max(choice.shape[1] for choice in choices)
    keys = []
    for own, choice in zip(ids, choices, strict=True):
        key = np.zeros((len(own), 4 + 1 + width), np.uint8)
        key[:, :4] = own
        key[: len(choice), 4] = 1  # recorded
        key[: len(choice), 5 : 5 + choice.shape[1]] = choice
        keys.append(key)
    return keys


def _equal(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    """Return how many first rows are equal."""
    length = min(len(first), len(second))
    differ = (first[:length] != second[:length]).any(axis=1)
    return int(differ.argmax()) if differ.any() else length
