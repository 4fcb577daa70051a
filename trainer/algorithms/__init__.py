"""The algorithms: each is a small composition of named parts, in a file of its own.

An algorithm sees tensors (`rows.Rows`), never the model, the optimizer or the database. Its parts
are pure functions: advantages (`advantages.py`), losses and aggregation (`losses.py`). To add one:
a settings class in `trainer/config.py`, a file here, a line in `ALGORITHMS`.
"""

from collections.abc import Callable

from trinity_db.trainer.algorithms.dpo import Dpo
from trinity_db.trainer.algorithms.grpo import Grpo
from trinity_db.trainer.algorithms.rows import Algorithm, Rows, Shares, Totals
from trinity_db.trainer.algorithms.sft import Sft
from trinity_db.trainer.config import AlgorithmConfig

__all__ = ["ALGORITHMS", "Algorithm", "Rows", "Shares", "Totals", "create"]

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {"grpo": Grpo, "sft": Sft, "dpo": Dpo}
"""By the name that the configuration uses; each is made from its settings."""


def create(config: AlgorithmConfig) -> Algorithm:
    """The algorithm that these settings belong to."""
    return ALGORITHMS[config.name](config)
