"""Built-in engines: each entry of ENGINES can be configured, and its factory exists."""

import importlib
import inspect
from typing import Any

import pytest

from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.settings import ENGINES

REQUIRED: dict[str, dict[str, Any]] = {"endpoint": {"urls": ["http://localhost:8000"]}}
"""Options without a default."""


@pytest.mark.parametrize("name", ENGINES)
def test_a_registered_engine_can_be_configured(name: str) -> None:
    settings = ExplorerConfig.model_validate({"engine": {"name": name, **REQUIRED.get(name, {})}}).engine
    assert type(settings) is ENGINES[name]
    assert settings.name == name


@pytest.mark.parametrize("name", ENGINES)
def test_the_factory_of_a_registered_engine_takes_its_settings(name: str) -> None:
    module, _, function = ENGINES[name].factory.partition(":")
    factory = getattr(importlib.import_module(module), function)
    first, *others = inspect.signature(factory, eval_str=True).parameters.values()
    assert first.annotation is ENGINES[name]
    assert [parameter.name for parameter in others] == ["prompts", "record_routing"]
