"""Measures the share of an update visible in a version's file, and the noise that rounding adds.

The trainer's weights w are in float32, and a version may contain round(w) in 16 bits (`models/rounding.py`).
The measure compares both on a fixed sample of the weights that training changes and a version rounds:

    visible = <round(w) - round(v), w - v> / |w - v|²     v: the weights of an earlier version

The standard error of `visible` is about sqrt(d / (u n)) for an update u per weight, a distance d between the
16-bit values and n weights: 1 % after one step at a learning rate of 1e-6.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from trinity_db.models.rounding import round_to
from trinity_db.trainer.learner.published_weights import first_element, local_part

SAMPLE = 1 << 20
"""Weights in the sample. They take 67 MB on the first rank: 4 bytes each for the start, and 4 + 2 bytes for
each of the last ten versions."""
SPAN = 1 << 12  # consecutive weights: long enough that `round_to` takes 20 ms for all spans on one core
CHUNK = 1 << 14  # weights at a time, equal to `rounding.CHUNKS`: too few for torch to start threads
VERSIONS = 10

VISIBLE = "publish/visible"
LAST_TEN = "publish/visible_last_ten"
CHANGED = "publish/changed"
NOISE = "publish/noise"
EXACT = {VISIBLE: 1.0, LAST_TEN: 1.0, NOISE: 0.0}
"""Metrics of a version in float32."""


@dataclass(frozen=True)
class Span:
    """Consecutive elements of a parameter, indexed in the whole parameter."""

    name: str
    start: int
    count: int

    def of(self, parameter: Tensor, first: int = 0) -> Tensor:
        """Return the elements, from a parameter or from a part of it that starts at the element `first`."""
        low = self.start - first
        return parameter.detach().reshape(-1)[low : low + self.count]


@dataclass(frozen=True)
class _Version:
    exact: Tensor
    """[N] The trainer's weights."""
    published: Tensor
    """[N] Their values in the version's file, in its number format."""


class VisibleUpdates:
    """The sample of the weights in the starting version and in the last ten versions.

    Args:
        weights: Parameters that training changes and a version rounds, with their values in version 0. A rank
            that has a part of each samples its part.
        seeds: The name for `round_to`, by the name of a parameter.
        are_frozen: Whether `weights` are constant, because training changes an adapter on them.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], seeds: Mapping[str, str], *, are_frozen: bool = False
    ) -> None:
        parts = {name: (first_element(weight), local_part(weight)) for name, weight in weights.items()}
        self._spans = spans({name: (first, part.numel()) for name, (first, part) in parts.items()})
        self._seeds = seeds
        self._are_frozen = are_frozen
        exact = _on_cpu([span.of(parts[span.name][1], parts[span.name][0]) for span in self._spans])
        self._start: _Version | None = _Version(exact, exact)  # version 0 is the starting model's file
        self._versions = deque([self._start], maxlen=VERSIONS)
        """The last versions, oldest first."""

    @property
    def has_start(self) -> bool:
        """Whether `measure` compares with an earlier version. False until the first version after a restart
        from a checkpoint without a sample."""
        return self._start is not None

    @property
    def state_bytes(self) -> int:
        """Size of the sample in a checkpoint."""
        return 0 if self._are_frozen else 4 * sum(span.count for span in self._spans)

    @torch.no_grad()
    def measure(self, weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, float]:
        """Return the metrics of a version, and keep its sample.

        A metric is absent without an earlier version to compare with, or if no weight has moved since.

        Args:
            weights: Whole parameters by name, not rounded.
            dtype: Number format of the version.
        """
        exact = _on_cpu([span.of(weights[span.name]) for span in self._spans])
        now = _Version(exact, self._rounded(exact, dtype))
        metrics: dict[str, float] = {}
        self._start = self._start or now
        for name, before in ((VISIBLE, self._start), (LAST_TEN, next(iter(self._versions), now))):
            share = _visible_share(before, now)
            if share is not None:
                metrics[name] = share
        if self._versions:
            metrics[CHANGED] = _changed_share(self._versions[-1], now)
        metrics[NOISE] = _noise(now)
        self._versions.append(now)
        return metrics

    def state_dict(self) -> dict[str, Any] | None:
        """Return the sample of the starting version; None if a restarted trainer has the starting weights
        anyway."""
        if self._are_frozen or self._start is None:
            return None
        return {
            "spans": [(span.name, span.start, span.count) for span in self._spans],
            "exact": self._start.exact,
            "published": self._start.published,
        }

    def resume(self, state: Mapping[str, Any] | None) -> None:
        """Continue from a `state_dict`. Without a state of the same sample, the next version becomes the
        start.

        The last versions are not in the state: `LAST_TEN` and `CHANGED` start with the next version.
        """
        self._versions.clear()
        if self._are_frozen:
            return
        is_same = state is not None and [Span(*span) for span in state["spans"]] == self._spans
        self._start = _Version(state["exact"], state["published"]) if state and is_same else None

    def _rounded(self, exact: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype == exact.dtype:
            return exact
        parts = torch.split(exact, [span.count for span in self._spans])
        return torch.cat(
            [
                round_to(part, self._seeds[span.name], dtype, span.start)
                for span, part in zip(self._spans, parts, strict=True)
            ]
        )


def shown_in_log(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a version for its log line. Empty if rounding changed no weight."""
    return {name: metrics[name] for name in (VISIBLE, LAST_TEN) if metrics.get(NOISE) and name in metrics}


def spans(parts: Mapping[str, tuple[int, int]]) -> list[Span]:
    """Choose at most SAMPLE elements, depending only on the names and sizes of parameters.

    If there are more elements, take spans whose first elements are evenly spaced over all parameters.

    Args:
        parts: First element and number of elements of each parameter's part, by name.
    """
    total = sum(count for _, count in parts.values())
    if total <= SAMPLE:
        return [Span(name, first, count) for name, (first, count) in parts.items() if count]
    number = SAMPLE // SPAN
    begins = iter([step * total // number for step in range(number)])
    begin, chosen = next(begins), []
    for (name, (first, count)), end in zip(
        parts.items(), accumulate(count for _, count in parts.values()), strict=True
    ):
        while begin < end:
            low = begin - (end - count)
            chosen.append(Span(name, first + low, min(SPAN, count - low)))
            begin = next(begins, total)
    return chosen


def _visible_share(before: _Version, now: _Version) -> float | None:
    """Share of the update since an earlier version that the published weights show. None if nothing moved."""
    square = product = 0.0
    for exact, published, exact_before, published_before in _chunks(
        now.exact, now.published, before.exact, before.published
    ):
        moved = exact - exact_before
        shown = published.float() - published_before.float()
        square += _dot(moved, moved)
        product += _dot(shown, moved)
    return product / square if square else None


def _changed_share(before: _Version, now: _Version) -> float:
    pairs = _chunks(before.published, now.published)
    return sum(int((old != new).sum()) for old, new in pairs) / len(now.exact)


def _noise(version: _Version) -> float:
    """Root mean square of the rounding error, relative to that of the weights."""
    error = size = 0.0
    for exact, published in _chunks(version.exact, version.published):
        difference = published.float() - exact
        error += _dot(difference, difference)
        size += _dot(exact, exact)
    return math.sqrt(error / size) if size else 0.0


def _dot(left: Tensor, right: Tensor) -> float:
    return float((left * right).sum(dtype=torch.float64))


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield corresponding chunks of the tensors; see CHUNK."""
    return zip(*(torch.split(tensor, CHUNK) for tensor in tensors), strict=True)


def _on_cpu(parts: list[Tensor]) -> Tensor:
    """Concatenate all parts into a new tensor in float32."""
    return torch.cat(parts).to("cpu", torch.float32)
