"""Rows that the engine `transformers` decodes together: their tokens, their cache, and sampling.

Shapes: B rows in the batch, L columns of the longest of them, V the vocabulary.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from trinity_db.explorer.engines import kv_cache
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.explorer.engines.recorder import Routing

SAMPLED_AT_ONCE = 1 << 23  # probabilities summed in float64 at a time: 64 MB


@dataclass(eq=False)
class Row:
    """A request in progress, with the tokens sampled so far."""

    request: Request
    limit: int
    """Maximum number of response tokens."""
    random: np.random.Generator
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Completion]
    """Resolved in the thread of its loop."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    routing: Routing = field(default_factory=Routing)
    ended: bool = False
    """Answered, or cancelled by its caller."""

    @property
    def longest(self) -> int:
        """Maximum number of columns that it may take."""
        return len(self.request.prompt_ids) + self.limit

    @property
    def length(self) -> int:
        """Number of tokens so far, including the prompt."""
        return len(self.request.prompt_ids) + len(self.token_ids)


@dataclass
class Batch:
    """Rows decoded together. Finished rows stay until half of the rows are finished."""

    rows: list[Row]
    tokens: Tensor
    """[B, 1] Newest token of each row, which is not in the cache yet."""
    mask: Tensor
    """[B, L] Whether a cached column contains a token of the row."""
    cache: DynamicCache

    def keep(self, running: Sequence[Row]) -> None:
        """Keep only these rows, and drop padding columns on the left."""
        going_on = set(running)
        kept = [index for index, row in enumerate(self.rows) if row in going_on]
        rows = torch.tensor(kept, dtype=torch.long, device=self.mask.device)
        mask = self.mask[rows]
        padding = int(mask.any(0).int().argmax())
        kv_cache.select(self.cache, rows, padding)
        self.rows = [*running]
        self.tokens, self.mask = self.tokens[rows], mask[:, padding:]

    def join(self, more: "Batch") -> None:
        """Append the rows of another batch, right-aligned with these."""
        kv_cache.join(self.cache, more.cache)
        width = max(self.mask.shape[1], more.mask.shape[1])
        masks = [
            torch.nn.functional.pad(batch.mask, (width - batch.mask.shape[1], 0)) for batch in (self, more)
        ]
        self.rows = self.rows + more.rows
        self.tokens, self.mask = torch.cat([self.tokens, more.tokens]), torch.cat(masks)


def left_padded(prompts: Sequence[Sequence[int]], device: str) -> tuple[Tensor, Tensor]:
    """Return left-padded token ids and attention mask, [B, L]. Padding is masked."""
    width = max(map(len, prompts))
    tokens = np.zeros((len(prompts), width), np.int64)
    mask = np.zeros((len(prompts), width), np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)


def sample(logits: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Sample tokens from logits [B, V], and return them with their log-probabilities, [B, 1] each.

    Each row has its own random numbers, so that its samples do not depend on the other rows: its token is the
    first one at which the cumulative probability exceeds the random number.
    """
    temperatures = [row.request.temperature or 1.0 for row in rows]
    scale = torch.tensor(temperatures, dtype=torch.float32, device=logits.device)[:, None]
    logprobs = torch.log_softmax(logits.float() / scale, dim=-1)
    tokens = logprobs.argmax(dim=-1, keepdim=True)
    sampled = [index for index, row in enumerate(rows) if row.request.temperature]
    size = max(1, SAMPLED_AT_ONCE // logits.shape[1])
    for first in range(0, len(sampled), size):
        indices = sampled[first : first + size]
        numbers = torch.tensor([[rows[index].random.random()] for index in indices], dtype=torch.float64)
        summed = logprobs[indices].double().exp().cumsum(dim=-1)
        total = summed[:, -1:]
        marks = torch.minimum(numbers.to(logits.device) * total, total.nextafter(torch.zeros_like(total)))
        # If weights are not finite, no token qualifies, and the index is beyond the last one.
        tokens[indices] = torch.searchsorted(summed, marks, right=True).clamp(max=logits.shape[1] - 1)
    return tokens, logprobs.gather(-1, tokens)
