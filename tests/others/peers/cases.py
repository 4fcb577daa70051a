"""Random rows to hold ours and a peer's function to, and the comparison itself.

Ragged lengths with 1 among them, groups, one with a single row and one with equal rewards, both
signs of advantage, and log-ratios from where nothing is clipped to where every bound is met.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

TOLERANCE = 1e-6  # peers add up to 1e-8 to their denominators
LENGTHS = (12, 1, 7, 3, 10, 1, 5, 9)
GROUPS = (0, 0, 0, 0, 1, 1, 1, 2)  # rewards of group 1 are equal, group 2 is a singleton

DIFFERENCES: dict[tuple[str, str], float] = {}
"""The largest difference found so far, by part and peer."""


@dataclass(frozen=True)
class Case:
    """B = 8 sequences, K = 12 token columns, all of it float64."""

    mask: Tensor
    """[B, K] bool. Padding on the right, and in one sequence three tokens between two turns."""
    logprobs: Tensor
    """[B, K] Of the policy being trained; a leaf that takes a gradient."""
    old: Tensor
    """[B, K] What ratios are relative to."""
    behaviour: Tensor
    """[B, K] Where it differs from `old`."""
    reference: Tensor
    """[B, K]"""
    advantages: Tensor
    """[B, 1] Both signs, and one that is 0."""
    token_advantages: Tensor
    """[B, K] The same where each token has its own."""
    rewards: Tensor
    """[B]"""
    groups: Tensor
    """[B] Whole numbers."""


def _case(spread: float, seed: int) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = (len(LENGTHS), max(LENGTHS))
    lengths, groups = torch.tensor(LENGTHS), torch.tensor(GROUPS)
    old = -normal(*shape).abs() - 0.05
    advantages = normal(shape[0], 1)
    advantages[:4, 0] = advantages[:4, 0].abs() * torch.tensor([1.0, -1.0, -1.0, 1.0])
    advantages[6] = 0.0
    rewards = normal(shape[0])
    rewards[groups == 1] = 0.25
    mask = torch.arange(shape[1]) < lengths[:, None]
    mask[4, 3:6] = False
    return Case(
        mask=mask,
        logprobs=(old + spread * normal(*shape)).clamp(max=-1e-3).requires_grad_(),
        old=old,
        behaviour=old + 0.5 * spread * normal(*shape),
        reference=old + spread * normal(*shape),
        advantages=advantages,
        token_advantages=normal(*shape),
        rewards=rewards,
        groups=groups,
    )


every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(_case(spread, seed), id=f"spread {spread}, seed {seed}")
        for spread in (0.35, 1.5)
        for seed in (0, 1, 2)
    ],
)
"""Runs a test with each `case`: log-ratios with standard deviations of 0.35 and of 1.5."""


def agree(part: str, peer: str, ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    """Hold two results together, and their gradients with respect to the inputs.

    The largest difference is shown at the end of the run.
    """
    pairs = [(ours, theirs)]
    if inputs:
        ones = torch.ones_like
        pairs += zip(
            torch.autograd.grad(ours, inputs, ones(ours), retain_graph=True),
            torch.autograd.grad(theirs, inputs, ones(theirs), retain_graph=True),
            strict=True,
        )
    largest = max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)
    DIFFERENCES[part, peer] = max(largest, DIFFERENCES.get((part, peer), 0.0))
    assert largest < TOLERANCE, f"{part} differs from {peer} by {largest}"
