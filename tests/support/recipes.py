"""Algorithms as a configuration names them."""

from typing import Any

from pydantic import TypeAdapter

from trinity_db.trainer.config import AlgorithmConfig

_ADAPTER: TypeAdapter[AlgorithmConfig] = TypeAdapter(AlgorithmConfig)


def recipe(name: str, **changes: Any) -> AlgorithmConfig:
    """What `algorithm: {name: NAME, ...}` stands for."""
    return _ADAPTER.validate_python({"name": name, **changes})
