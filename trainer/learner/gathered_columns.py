"""Gathers the columns of a whole step before its gradient: from the store, and from models.

`trainer/recipes/parts/columns.py` declares the columns. Shapes: N sequences of the step, K the most trained
tokens of one sequence.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_db.arrays.codec import Payload
from trinity_db.errors import ConfigError
from trinity_db.models.forward import trained_mask, trained_values
from trinity_db.trainer.algorithms.interface import Algorithm, Columns
from trinity_db.trainer.learner.micro_batches import MicroBatches
from trinity_db.trainer.learner.policy import Policy
from trinity_db.trainer.recipes.parts.columns import COLUMNS, STORED, Origin


@dataclass(frozen=True)
class Batch:
    """The rows of one step. Pairs are in the order chosen, rejected, chosen, rejected, ..."""

    payloads: Sequence[Payload]
    """Arrays of each row. Each row has at least one trained token."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """One number per row [N], under the names in `COLUMNS`: advantages, rewards, groups, staleness, weight,
    is_expert."""
    scores: Mapping[str, Sequence[NDArray[np.floating]]] = field(default_factory=dict)
    """Per row, the stored log-probabilities [k] of its trained tokens under another model, under the names in
    `COLUMNS`: teacher, and reference if it was precomputed."""
    version: int | None = None
    """The policy version with the weights before the step; None if these were not published."""


@torch.no_grad()
def gather_columns(
    batch: Batch,
    algorithm: Algorithm,
    policy: Policy,
    micro_batches: MicroBatches,
    later: Collection[str] = (),
) -> dict[str, Tensor]:
    """Return the columns of the rows, and the columns that the algorithm needs from models.

    All columns of a model are computed in one pass.

    Args:
        later: Columns of models that the algorithm gets from the pass with gradient.

    Raises:
        ConfigError: if the rows lack a column that the algorithm needs.
    """
    columns = _stored(batch, policy.device)
    _check_has(columns, algorithm.needs)
    missing = {
        name: column.source  # in the same order on every rank, because all ranks sum together
        for name, column in COLUMNS.items()
        if column.origin is Origin.MODEL and name in algorithm.needs and name not in columns
    }
    passes: dict[str, tuple[str, ...]] = {
        source: (name,) for name, source in missing.items() if name not in later
    }
    if passes.keys() >= {"logprobs", "values"}:
        passes["logprobs_and_values"] = (*passes.pop("logprobs"), *passes.pop("values"))
    for source, names in passes.items():
        scores = _scores(getattr(policy, source), batch.payloads, columns["mask"], policy, micro_batches)
        columns |= zip(names, scores, strict=True)
    if "mismatched" in algorithm.needs:
        columns["mismatched"] = _mismatched_ratios(batch.payloads, policy, micro_batches)
    return columns


def mismatched(payloads: Sequence[Payload], max_length: int) -> list[Payload]:
    """Combine each row's prompt with the response of the previous row; the first row gets the last one's.

    Tokens beyond `max_length` are truncated, even if no token of the response is left, like in TRL's KTO. If
    a response was truncated when the trainer tokenised it with its own prompt, the truncated one is used. TRL
    uses the whole one.
    """
    starts = [int(np.argmax(payload.action_mask)) for payload in payloads]
    rows = []
    for row, start in enumerate(starts):
        own, other, begins = payloads[row], payloads[row - 1], starts[row - 1]
        tokens = np.concatenate([own.token_ids[:start], other.token_ids[begins:]])
        mask = np.concatenate([np.zeros(start, np.bool_), other.action_mask[begins:]])
        trained = int(np.count_nonzero(mask[:max_length]))
        temperatures = payloads[row - 1].temperatures
        tempered = None if temperatures is None or not trained else temperatures[:trained]
        rows.append(Payload(tokens[:max_length], mask[:max_length], temperatures=tempered))
    return rows


def _stored(batch: Batch, device: str) -> dict[str, Tensor]:
    """Return the columns of the batch, as tensors on the device."""
    arrays = {"weight": np.ones(len(batch.payloads)), **batch.columns}
    columns = {name: torch.from_numpy(values) for name, values in arrays.items()}
    # Rewards and advantages stay in float64: for large rewards their differences are relatively small.
    columns = {
        name: column.float()
        if column.is_floating_point() and name not in ("rewards", "advantages")
        else column
        for name, column in columns.items()
    }
    if "advantages" in columns:
        columns["advantages"] = columns["advantages"][:, None]
    # Expert rows have no sampling log-probabilities. They get 0, and no part reads them.
    is_expert = batch.columns.get("is_expert", np.zeros(len(batch.payloads), np.bool_))
    sampled = [payload for payload, skipped in zip(batch.payloads, is_expert, strict=True) if not skipped]
    if all(payload.logprobs is not None for payload in sampled):
        columns["behaviour"] = torch.from_numpy(trained_values(batch.payloads, "logprobs"))
    mask = trained_mask(batch.payloads)
    if "behaviour" in columns and batch.version is not None:
        same = mask & (trained_values(batch.payloads, "versions") == batch.version)
        same[[payload.versions is None for payload in batch.payloads]] = False
        columns["same_version"] = torch.from_numpy(same)
    for name, rows in batch.scores.items():
        values = np.zeros(mask.shape, np.float32)
        values[mask] = np.concatenate(rows)
        columns[name] = torch.from_numpy(values)
    columns["mask"] = torch.from_numpy(mask)
    return {name: column.to(device) for name, column in columns.items()}


def _scores(
    score: Callable[[Sequence[Payload]], Tensor | tuple[Tensor, ...]],
    payloads: Sequence[Payload],
    mask: Tensor,
    policy: Policy,
    micro_batches: MicroBatches,
) -> tuple[Tensor, ...]:
    """For each column that `score` returns, [N, K] its numbers for the trained tokens, from all ranks."""
    scores: list[Tensor] = []
    # The second phase uses the same micro-batches, so that an unchanged policy gives exactly equal numbers.
    for chosen, counts, _ in micro_batches(payloads):
        result = score([payloads[i] for i in chosen])
        columns = result if isinstance(result, tuple) else (result,)
        scores = scores or [
            mask.new_zeros(mask.shape, dtype=torch.promote_types(column.dtype, torch.float32))
            for column in columns
        ]
        for whole, column in zip(scores, columns, strict=True):
            if counts:
                whole[chosen, : column.shape[1]] = column.to(whole.dtype)
    return tuple(policy.ranks.sum(whole) for whole in scores)


def _mismatched_ratios(payloads: Sequence[Payload], policy: Policy, micro_batches: MicroBatches) -> Tensor:
    """[N] log(policy / reference) of each mismatched response, summed over its tokens.

    It is 0 if no token of the response is left, and if the batch has only one row.
    """
    ratios = torch.zeros(len(payloads), device=policy.device)
    rows = mismatched(payloads, policy.max_length) if len(payloads) > 1 else []
    kept = [number for number, row in enumerate(rows) if row.action_mask[1:].any()]
    if not kept:
        return ratios
    chosen = [rows[number] for number in kept]
    mask = torch.from_numpy(trained_mask(chosen)).to(policy.device)
    sums = [
        _scores(score, chosen, mask, policy, micro_batches)[0].sum(dim=1)
        for score in (policy.logprobs, policy.reference_logprobs)
    ]
    ratios[kept] = sums[0] - sums[1]
    return ratios


def _check_has(columns: Columns, needs: Mapping[str, str]) -> None:
    for name, reader in needs.items():
        if name not in columns and COLUMNS[name].origin in STORED:
            raise ConfigError(f"The rows have no {name} ({COLUMNS[name].meaning}), which {reader} needs.")
