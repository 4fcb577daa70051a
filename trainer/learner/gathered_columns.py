"""What there is to read of a whole step before its gradient: what is stored, and what models say.

The columns are declared in `trainer/algorithms/columns.py`. Shapes: N sequences of the step,
K the most trained tokens of one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinity_db.arrays import Payload
from trinity_db.errors import ConfigError
from trinity_db.models.forward import trained_mask, trained_values
from trinity_db.trainer.algorithms.columns import COLUMNS, STORED, Origin
from trinity_db.trainer.algorithms.interface import Algorithm, Columns
from trinity_db.trainer.learner.policy import Policy

Pace = Callable[[Sequence[Payload]], Iterator[tuple[list[int], bool]]]
"""Goes through this rank's micro-batches of some rows, by index, and may give up between two; says of each
whether it counts. All ranks together go through each row once."""


@dataclass(frozen=True)
class Batch:
    """What one optimizer step learns from. Pairs stand as chosen, rejected, chosen, rejected, ..."""

    payloads: Sequence[Payload]
    """Each trains at least one token."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """[N] A number a row, by the names in `COLUMNS`: advantages, rewards, groups, staleness, weight,
    is_expert."""
    scores: Mapping[str, Sequence[NDArray[np.floating]]] = field(default_factory=dict)
    """For each row [k] what another model said of its trained tokens, by the names in `COLUMNS`:
    teacher, and reference where it is not asked during the step."""


@torch.no_grad()
def gathered(batch: Batch, algorithm: Algorithm, policy: Policy, pace: Pace) -> dict[str, Tensor]:
    """The columns that the algorithm needs, and those that are there anyway.

    Raises:
        ConfigError: the rows lack one.
    """
    columns = _stored(batch, policy.device)
    _check_has(columns, algorithm.needs)
    for name, column in COLUMNS.items():  # in this order on every rank
        if column.origin is Origin.MODEL and name in algorithm.needs and name not in columns:
            ask = getattr(policy, column.source)
            columns[name] = _scored(ask, batch.payloads, columns["mask"], policy, pace)
    if "mismatched" in algorithm.needs:
        columns["mismatched"] = _mismatched_ratios(batch.payloads, policy, pace)
    return columns


def mismatched(payloads: Sequence[Payload], max_length: int) -> list[Payload]:
    """Each row's prompt with the response of the row before it; before the first one stands the last.

    What lies beyond `max_length` tokens is cut off, as TRL's KTO does, also if it is all of the response. (A
    response that was cut with its own prompt when it got its tokens comes as it was left; TRL has it whole.)
    """
    starts = [int(np.argmax(payload.action_mask)) for payload in payloads]
    rows = []
    for row, start in enumerate(starts):
        own, other, begins = payloads[row], payloads[row - 1], starts[row - 1]
        tokens = np.concatenate([own.token_ids[:start], other.token_ids[begins:]])
        mask = np.concatenate([np.zeros(start, np.bool_), other.action_mask[begins:]])
        rows.append(Payload(tokens[:max_length], mask[:max_length]))
    return rows


def _stored(batch: Batch, device: str) -> dict[str, Tensor]:
    found = {"weight": np.ones(len(batch.payloads)), **batch.columns}
    columns = {name: torch.from_numpy(values) for name, values in found.items()}
    columns = {name: one.float() if one.is_floating_point() else one for name, one in columns.items()}
    if "advantages" in columns:
        columns["advantages"] = columns["advantages"][:, None]
    # An expert's rows were sampled by nobody: 0 stands there, and nothing of it is read.
    is_expert = batch.columns.get("is_expert", np.zeros(len(batch.payloads), np.bool_))
    sampled = [payload for payload, skipped in zip(batch.payloads, is_expert, strict=True) if not skipped]
    if all(payload.logprobs is not None for payload in sampled):
        columns["behaviour"] = torch.from_numpy(trained_values(batch.payloads, "logprobs"))
    mask = trained_mask(batch.payloads)
    for name, rows in batch.scores.items():
        values = np.zeros(mask.shape, np.float32)
        values[mask] = np.concatenate(rows)
        columns[name] = torch.from_numpy(values)
    columns["mask"] = torch.from_numpy(mask)
    return {name: one.to(device) for name, one in columns.items()}


def _scored(
    ask: Callable[[Sequence[Payload]], Tensor],
    payloads: Sequence[Payload],
    mask: Tensor,
    policy: Policy,
    pace: Pace,
) -> Tensor:
    """[N, K] What a model says of the trained tokens."""
    scores = torch.zeros(mask.shape, device=policy.device)
    # In the micro-batches of the second phase, so that a policy that has not moved differs by exactly 0.
    for chosen, counts in pace(payloads):
        found = ask([payloads[i] for i in chosen])
        if counts:
            scores[chosen, : found.shape[1]] = found
    return policy.ranks.sum(scores)


def _mismatched_ratios(payloads: Sequence[Payload], policy: Policy, pace: Pace) -> Tensor:
    """[N] log(policy / reference) of mismatched responses; 0 where none is left, or there is no other row."""
    ratios = torch.zeros(len(payloads), device=policy.device)
    rows = mismatched(payloads, policy.max_length) if len(payloads) > 1 else []
    kept = [number for number, row in enumerate(rows) if row.action_mask[1:].any()]
    if not kept:
        return ratios
    chosen = [rows[number] for number in kept]
    mask = torch.from_numpy(trained_mask(chosen))
    sums = [
        _scored(ask, chosen, mask, policy, pace).sum(dim=1)
        for ask in (policy.logprobs, policy.reference_logprobs)
    ]
    ratios[kept] = sums[0] - sums[1]
    return ratios


def _check_has(columns: Columns, needs: Mapping[str, str]) -> None:
    for name, reader in needs.items():
        if name not in columns and COLUMNS[name].origin in STORED:
            raise ConfigError(f"The rows have no {name} ({COLUMNS[name].meaning}), which {reader} needs.")
