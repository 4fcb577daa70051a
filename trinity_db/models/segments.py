"""Segments of a packed row: a prefix that several sequences share is a segment, and so is the rest of each.

A sequence is a path of segments. A token attends to the earlier tokens of its segment, and to all tokens of
the segments before it on the path, which are its context. Segments without a context come first, and segments
with the same context are neighbours.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STACKED_TOKENS = 64  # queries of a stack that are worth a call, however short their context is


class Call(NamedTuple):
    """Segments that one call of the attention computes."""

    times: int
    """Number of segments of equal length and context, or 1 for a stack."""
    length: int
    """Queries of each segment, or of the stack."""
    context: int
    """Keys before those of the queries."""
    mask: Tensor | None = None
    """[length, context + length] 0 or -inf, which a stack adds to its scores. None: causal."""

    @property
    def num_queries(self) -> int:
        return self.times * self.length

    @property
    def num_keys(self) -> int:
        return self.times * (self.context + self.length)


class Calls(NamedTuple):
    """Calls of the attention for all segments, in their order."""

    calls: list[Call]
    indices: Tensor | None
    """Indices of the tokens whose keys the calls read, call by call. None: each token once, in order."""

    @property
    def num_keys(self) -> int:
        """Number of keys that all calls read."""
        return sum(call.num_keys for call in self.calls)


class Segments:
    """Lengths and parents of the segments of a packed row.

    It is no list, because `torch.compile` inspects lists and would recompile for each.

    Args:
        lengths: tokens of each segment.
        parents: index of the segment before it on its path; -1 for the first one. None: all are -1.
    """

    def __init__(self, lengths: Sequence[int], parents: Sequence[int] | None = None) -> None:
        self.lengths = list(lengths)
        self.parents = [-1] * len(self.lengths) if parents is None else list(parents)
        self.starts: list[int] = [0, *np.cumsum(self.lengths).tolist()]
        """Index of the first token of each segment. The last number is that of all tokens."""
        self._calls: dict[tuple[object, ...], Calls] = {}
        """Calls by the arguments that they were planned for: all layers use the same."""

    def path(self, segment: int) -> list[int]:
        """Return the segments up to this one, first one first. Empty for -1."""
        path: list[int] = []
        while segment >= 0:
            path.append(segment)
            segment = self.parents[segment]
        return path[::-1]

    def indices(self, path: Sequence[int]) -> NDArray[np.int64]:
        """Return the indices of the tokens of these segments."""
        return _joined([np.arange(self.starts[segment], self.starts[segment + 1]) for segment in path])

    def positions(self) -> NDArray[np.int64]:
        """[total] Position of each token in its sequence."""
        begins = [sum(self.lengths[segment] for segment in self.path(parent)) for parent in self.parents]
        return _joined(
            [begin + np.arange(length) for begin, length in zip(begins, self.lengths, strict=True)]
        )

    def each(self, window: int | None, device: torch.device) -> Calls:
        """Return a call for each segment, for kernels that take all segments at once.

        Args:
            window: tokens that a token attends to, including itself. None: all earlier ones.
        """

        def plan() -> Iterator[tuple[Call, NDArray[np.int64]]]:
            for number, length in enumerate(self.lengths):
                context = self._context(self.parents[number], window)
                yield Call(1, length, len(context)), np.append(context, self.indices([number]))

        return self._planned((window, device), plan, device)

    def calls(self, window: int | None, device: torch.device, stacked: torch.dtype | None) -> Calls:
        """Return calls of segments with the same context: as many of equal length as are neighbours, or a
        stack of short ones.

        A causal call computes scores for the whole context too. A stack needs a mask instead.

        Args:
            window: tokens that a token attends to, including itself. None: all earlier ones.
            stacked: dtype of the masks of stacks. None: nothing is stacked.
        """

        def plan() -> Iterator[tuple[Call, NDArray[np.int64]]]:
            for parent, siblings in groupby(range(len(self.lengths)), key=self.parents.__getitem__):
                context = self._context(parent, window)
                stacks = stacked is not None and window is None

                def kind(segment: int, most: int = len(context) if stacks else 0) -> int:
                    return 0 if self.lengths[segment] < most else self.lengths[segment]

                for length, run in groupby(siblings, key=kind):
                    if length == 0:
                        yield from self._stacks(list(run), context, stacked, device)
                    else:
                        yield from self._runs(list(run), context, window)

        return self._planned((window, device, stacked), plan, device)

    def _runs(
        self, run: Sequence[int], context: NDArray[np.int64], window: int | None
    ) -> Iterator[tuple[Call, NDArray[np.int64]]]:
        """Yield the calls of neighbours of equal length. With many short ones, the overhead of a call for
        each would dominate.

        A sequence that is split into blocks has its own call.
        """
        length = self.lengths[run[0]]
        is_split = window is not None and len(context) + length > 2 * window
        size = 1 if is_split else len(run)
        for first in range(0, len(run), size):
            keys = [
                part for segment in run[first : first + size] for part in (context, self.indices([segment]))
            ]
            yield Call(size, length, len(context)), _joined(keys)

    def _stacks(
        self,
        members: Sequence[int],
        context: NDArray[np.int64],
        dtype: torch.dtype | None,
        device: torch.device,
    ) -> Iterator[tuple[Call, NDArray[np.int64]]]:
        """Yield the calls of short neighbours.

        A larger stack reads the context less often, and computes more scores that its mask hides.
        """
        most = max(STACKED_TOKENS, len(context) // 2)
        stack: list[int] = []
        for segment, following in zip(members, [*members[1:], None], strict=True):
            stack.append(segment)
            tokens = self.indices(stack)
            if following is None or len(tokens) + self.lengths[following] > most:
                mask = _mask([self.lengths[segment] for segment in stack], len(context)).to(device, dtype)
                yield Call(1, len(tokens), len(context), mask), np.append(context, tokens)
                stack = []

    def _context(self, parent: int, window: int | None) -> NDArray[np.int64]:
        """Return the indices of the tokens before a segment, as far as its first token attends to them."""
        whole = self.indices(self.path(parent))
        return whole if window is None else whole[max(0, len(whole) + 1 - window) :]

    def _planned(
        self,
        key: tuple[object, ...],
        plan: Callable[[], Iterator[tuple[Call, NDArray[np.int64]]]],
        device: torch.device,
    ) -> Calls:
        if key not in self._calls:
            calls, keys = zip(*plan(), strict=True)
            shares = max(self.parents) >= 0
            self._calls[key] = Calls(
                list(calls), torch.from_numpy(_joined(keys)).to(device) if shares else None
            )
        return self._calls[key]


def _mask(lengths: Sequence[int], context: int) -> Tensor:
    """[total, context + total] 0 where a token of a stack attends to a key, else -inf."""
    total = sum(lengths)
    members = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    own = (members[:, None] == members).tril()
    sees = torch.cat([torch.ones(total, context, dtype=torch.bool), own], dim=1)
    return torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts])
