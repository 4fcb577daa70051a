"""Mamba layers have the time steps of the published model, whole and token by token."""

import asyncio
from pathlib import Path

import pytest
import torch

from tests.others.families import checks
from tests.others.families.tiny import build, save
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.transformers_engine import TransformersEngine

SHORT = -12.0  # before the softplus: steps of 6e-6, far below time_step_min


@pytest.mark.parametrize("family", ["nemotron_h", "zamba2"])
def test_short_time_steps_are_decoded_as_they_are_computed_whole(family: str, tmp_path: Path) -> None:
    context = save(family, tmp_path)
    model = build(family)
    for name, weight in model.named_parameters():
        if name.endswith("dt_bias"):
            torch.nn.init.constant_(weight, SHORT)
    model.save_pretrained(tmp_path)
    assert checks.check_explored(tmp_path, context) == "together"


def test_a_limit_that_decoding_would_not_keep_is_refused(tmp_path: Path) -> None:
    save("nemotron_h", tmp_path)
    model = build("nemotron_h")
    model.config.time_step_limit = (0.001, 0.1)
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"without the time_step_limit of its config\.json; use another"):
        asyncio.run(TransformersEngine(device="cpu").load(tmp_path, 0))
