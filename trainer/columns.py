"""What there is to read of a whole step before its gradient: what is stored, and what models say.

The names and shapes of the columns stand in `algorithms/rows.py`. Shapes: N sequences of the step,
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
from trinity_db.trainer.algorithms import Algorithm, Columns
from trinity_db.trainer.forward import trained_mask, trained_values
from trinity_db.trainer.policy import Policy

Pace = Callable[[Sequence[list[int]]], Iterator[list[int]]]
"""Goes through micro-batches, and may give up between two."""

_ASKED: Mapping[str, Callable[[Policy], Callable[[Sequence[Payload]], Tensor]]] = {
    "reference": lambda policy: policy.reference_logprobs,
    "proximal": lambda policy: policy.logprobs,
}
"""Columns [N, K] that a model has to be asked for, without gradient."""

_LATER = {"entropy"}
"""Columns that only the second phase has, with gradient."""

_MEANINGS = {
    "behaviour": "log-probabilities of the policy that sampled them (behaviour)",
    "advantages": "advantages",
    "rewards": "rewards",
    "groups": "rollout groups (groups)",
    "staleness": "staleness",
}
"""What a batch may lack, in words."""


@dataclass(frozen=True)
class Batch:
    """What one optimizer step learns from. Pairs stand as chosen, rejected, chosen, rejected, ..."""

    payloads: Sequence[Payload]
    """Each trains at least one token."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """[N] A number a row, by the names in `rows.Columns`: advantages, rewards, groups, staleness, weight."""


@torch.no_grad()
def gathered(batch: Batch, algorithm: Algorithm, policy: Policy, pace: Pace) -> dict[str, Tensor]:
    """The columns that the algorithm needs, and those that are there anyway.

    Raises:
        ConfigError: the rows lack one.
    """
    columns = _stored(batch, policy.device)
    _check_has(columns, algorithm.needs)
    for name, asked in _ASKED.items():
        if name in algorithm.needs:
            columns[name] = _scored(asked(policy), batch.payloads, columns["mask"], algorithm, policy, pace)
    return columns


def _stored(batch: Batch, device: str) -> dict[str, Tensor]:
    found = {"weight": np.ones(len(batch.payloads)), **batch.columns}
    columns = {name: torch.from_numpy(values) for name, values in found.items()}
    columns = {name: one.float() if one.is_floating_point() else one for name, one in columns.items()}
    if "advantages" in columns:
        columns["advantages"] = columns["advantages"][:, None]
    if all(payload.logprobs is not None for payload in batch.payloads):
        columns["behaviour"] = torch.from_numpy(trained_values(batch.payloads, "logprobs"))
    columns["mask"] = torch.from_numpy(trained_mask(batch.payloads))
    return {name: one.to(device) for name, one in columns.items()}


def _scored(
    ask: Callable[[Sequence[Payload]], Tensor],
    payloads: Sequence[Payload],
    mask: Tensor,
    algorithm: Algorithm,
    policy: Policy,
    pace: Pace,
) -> Tensor:
    """[N, K] What a model says of the trained tokens."""
    scores = torch.zeros(mask.shape, device=policy.device)
    # In the micro-batches of the second phase, so that a policy that has not moved differs by exactly 0.
    for chosen in pace(policy.forward.micro_batches(payloads, algorithm.width)):
        found = ask([payloads[i] for i in chosen])
        scores[chosen, : found.shape[1]] = found
    return scores


def _check_has(columns: Columns, needs: Mapping[str, str]) -> None:
    for name, reader in needs.items():
        if name not in columns and name not in _ASKED and name not in _LATER:
            raise ConfigError(f"The rows have no {_MEANINGS[name]}, which {reader} needs.")
