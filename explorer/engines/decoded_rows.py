"""Rows that the engine `transformers` decodes together: their tokens, their cache, and how they are sampled.

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

SAMPLED_AT_ONCE = 1 << 23  # probabilities that are summed up in float64 together, 64 MB


@dataclass(eq=False)
class Row:
    """A request on its way, and what was sampled for it so far."""

    request: Request
    limit: int
    """Tokens that it may have."""
    random: np.random.Generator
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Completion]
    """Of the loop, in whose thread it is given."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    routing: Routing = field(default_factory=Routing)
    ended: bool = False
    """Answered, or given up by its caller."""

    @property
    def longest(self) -> int:
        """Columns that it may take."""
        return len(self.request.prompt_ids) + self.limit

    @property
    def length(self) -> int:
        """Tokens so far, prompt included."""
        return len(self.request.prompt_ids) + len(self.token_ids)


@dataclass
class Batch:
    """Rows that are decoded together; one that has ended stays until half of them have."""

    rows: list[Row]
    tokens: Tensor
    """[B, 1] The newest token of each row, which the cache does not hold yet."""
    mask: Tensor
    """[B, L] Which cached columns hold a token of the row."""
    cache: DynamicCache

    def keep(self, running: Sequence[Row]) -> None:
        """Keep these rows, and the columns in which one of them has a token."""
        going_on = set(running)
        kept = [place for place, row in enumerate(self.rows) if row in going_on]
        rows = torch.tensor(kept, dtype=torch.long, device=self.mask.device)
        mask = self.mask[rows]
        padding = int(mask.any(0).int().argmax())
        kv_cache.select(self.cache, rows, padding)
        self.rows = [*running]
        self.tokens, self.mask = self.tokens[rows], mask[:, padding:]

    def join(self, more: "Batch") -> None:
        """Add the rows of another batch, whose tokens come to stand in the same newest column."""
        kv_cache.join(self.cache, more.cache)
        width = max(self.mask.shape[1], more.mask.shape[1])
        masks = [torch.nn.functional.pad(one.mask, (width - one.mask.shape[1], 0)) for one in (self, more)]
        self.rows = self.rows + more.rows
        self.tokens, self.mask = torch.cat([self.tokens, more.tokens]), torch.cat(masks)


def left_padded(prompts: Sequence[Sequence[int]], device: str) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, [B, L]; the padding's token does not matter, it is never seen."""
    width = max(map(len, prompts))
    tokens = np.zeros((len(prompts), width), np.int64)
    mask = np.zeros((len(prompts), width), np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)


def sample(logits: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probabilities, [B, 1] each, from logits [B, V].

    Each row has random numbers of its own, so that its sample does not depend on the other rows: its token is
    the first at which the summed probabilities exceed its number.
    """
    temperatures = [row.request.temperature or 1.0 for row in rows]
    scale = torch.tensor(temperatures, dtype=torch.float32, device=logits.device)[:, None]
    logprobs = torch.log_softmax(logits.float() / scale, dim=-1)
    tokens = logprobs.argmax(dim=-1, keepdim=True)
    sampled = [place for place, row in enumerate(rows) if row.request.temperature]
    size = max(1, SAMPLED_AT_ONCE // logits.shape[1])
    for first in range(0, len(sampled), size):
        places = sampled[first : first + size]
        numbers = torch.tensor([[rows[place].random.random()] for place in places], dtype=torch.float64)
        summed = logprobs[places].double().exp().cumsum(dim=-1)
        total = summed[:, -1:]
        marks = torch.minimum(numbers.to(logits.device) * total, total.nextafter(torch.zeros_like(total)))
        # Weights that are not finite have no token to sample: then its place lies beyond the last one.
        tokens[places] = torch.searchsorted(summed, marks, right=True).clamp(max=logits.shape[1] - 1)
    return tokens, logprobs.gather(-1, tokens)
