"""Rows of fake tensors on another device than the CPU: operators check devices as usual, without computing.

So a loss that mixes devices fails without a GPU. A PyTorch that was built without CUDA cannot index CUDA
tensors, even fake ones; a device that each build has takes their place.
"""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.config import AlgorithmConfig
from trinity_db.trainer.recipes.parts.columns import COLUMNS
from trinity_db.trainer.recipes.parts.totals import Totals

DEVICE = "cuda" if torch.version.cuda else "lazy"
ROWS, WIDTH = 8, 16
ALWAYS = (
    "mask",
    "weight",
    "logprobs",
    "correct",
    "entropy",
    "behaviour",
    "same_version",
    "advantages",
    "values",
)
"""Columns that `create` does not list as needed, or that only some recipes read."""
OF_THE_PASS = ("logprobs", "correct", "entropy")
"""Columns of the forward pass, which follows `prepare`."""
PREPARED = ("divergence", "desirable", "old", "advantages", "values", "old_values", "returns")
"""Columns that `prepare` adds."""
BOOLEAN = ("mask", "correct", "is_expert", "desirable", "greedy", "shares_reward", "same_version")
WHOLE_NUMBERS = ("groups", "rollouts", "steps", "staleness")
TOTALS = Totals(
    100, ROWS, ROWS, desirable_items=4, expert_tokens=10, expert_sequences=2, same_version_tokens=50
)


def column(name: str) -> Tensor:
    """Return a column of ones with the shape and dtype that its name implies."""
    shape = COLUMNS[name].shape if name in COLUMNS else "[B]"
    size = (ROWS, WIDTH) if "K" in shape else (ROWS,)
    if name in BOOLEAN or "bool" in shape:
        return torch.ones(size, dtype=torch.bool, device=DEVICE)
    if name in WHOLE_NUMBERS:
        return torch.ones(size, dtype=torch.int64, device=DEVICE)
    if name == "advantages":
        return torch.ones((ROWS, 1), dtype=torch.float64, device=DEVICE)
    return torch.ones(size, dtype=torch.float64 if name == "rewards" else torch.float32, device=DEVICE)


def shares(config: AlgorithmConfig) -> dict[str, Tensor]:
    """Return the shares of a recipe's loss and metrics for fake rows."""
    algorithm = create(config)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        rows = {name: column(name) for name in {*ALWAYS, *algorithm.needs}}
        before = {
            name: one for name, one in rows.items() if name not in OF_THE_PASS or name in algorithm.needs
        }
        try:
            rows |= algorithm.prepare(before)[0]
        except (DataDependentOutputException, DynamicOutputShapeException):
            pass  # it reads numbers, which fake tensors do not have
        except RuntimeError as error:
            if ".numpy() is not supported" not in str(error):
                raise
        return algorithm.shares({name: column(name) for name in PREPARED} | rows, TOTALS)
