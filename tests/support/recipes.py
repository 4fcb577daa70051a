"""Algorithms as a configuration names them."""

from typing import Any

from pydantic import TypeAdapter

from trinity_db.trainer.config import AlgorithmConfig
from trinity_db.trainer.recipes.recipes import RECIPES, ExternalConfig

WITH_A_LOSS = [name for name, config in RECIPES.items() if not isinstance(config, ExternalConfig)]
"""Recipes that the built-in trainer computes."""

_ADAPTER: TypeAdapter[AlgorithmConfig] = TypeAdapter(AlgorithmConfig)


def recipe(name: str, **changes: Any) -> AlgorithmConfig:
    """What `algorithm: {name: NAME, ...}` stands for."""
    return _ADAPTER.validate_python({"name": name, **changes})
