"""Writes a whole model into a folder: configuration, and weights by the names of `transformers`."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinity_db.models.rounding import round_to, seed_names
from trinity_db.models.weights_file import FILE, WeightsFile


def write(
    model: Any,
    state: dict[str, Tensor],
    folder: Path,
    dtype: torch.dtype,
    classifier: str | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> dict[Path, WeightsFile]:
    """Write a model's configuration into a folder, and return the file of its weights, which is not written.

    The file has copies on the CPU, so that the weights may change before it is written.

    Args:
        model: a model of `transformers`.
        state: its weights by its own names. This function empties it, so that no two copies are in memory.
        dtype: of the parameters in the file, apart from those that the model's class keeps in float32.
            `round_to` rounds them to 16 bits, by their names in the model, before the names are converted
            for the file.
        classifier: name of the class that classifies sequences by one label, if the folder is of it too.
        beside: weights of that class which `model` lacks.
    """
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    config = deepcopy(model.config)
    config.dtype, config.architectures = str(dtype).removeprefix("torch."), [type(model).__name__]
    if classifier:
        config.architectures, config.num_labels = [classifier], 1
    config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    for name in model._keys_to_ignore_on_save or ():
        state.pop(name, None)
    state = remove_tied_weights_from_state_dict(state, model)  # it compares addresses, so it comes first
    buffers = {name for name, _ in model.named_buffers()}
    copies, seeds = {}, seed_names(model)
    for name in list(state):
        weight = state.pop(name)
        is_exact = name in buffers or stays_exact(model, name)
        copies[name] = _copy(weight, seeds.get(name, name), weight.dtype if is_exact else dtype)
    copies = revert_weight_conversion(model, copies)
    copies |= {name: _copy(one, name, dtype) for name, one in (beside or {}).items()}
    return {Path(FILE): WeightsFile(copies)}


def _copy(weight: Tensor, seed_name: str, dtype: torch.dtype) -> Tensor:
    """A copy on the CPU, rounded on the weight's device."""
    rounded = round_to(weight, seed_name, dtype).detach()
    return rounded.to("cpu", copy=rounded.data_ptr() == weight.data_ptr())


def stays_exact(model: Any, name: str) -> bool:
    """Whether the model's class keeps a weight in float32, whatever the others are in."""
    kept = (model._keep_in_fp32_modules or (), model._keep_in_fp32_modules_strict or ())
    return any(part in name for parts in kept for part in parts)
