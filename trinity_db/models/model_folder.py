"""Writes a whole model into a folder: configuration, weights under transformers' names, and a tokenizer."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinity_db.models.folder_digest import complete
from trinity_db.models.rounding import round_to, seed_names
from trinity_db.models.weights_file import FILE, WeightsFile


def write_with_tokenizer(
    model: Any, state: dict[str, Tensor], folder: Path, dtype: torch.dtype, tokenizer: Any
) -> None:
    """Write a whole model with its tokenizer into a folder for transformers. See `write`.

    Raises:
        OSError: if the disk is full or cannot be written.
    """
    unwritten = write(model, state, folder, dtype)
    tokenizer.save_pretrained(folder)
    complete(folder, unwritten)


def write(
    model: Any,
    state: dict[str, Tensor],
    folder: Path,
    dtype: torch.dtype,
    classifier: str | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> dict[Path, WeightsFile]:
    """Write a model's configuration into a folder, and return its weights file, which is not written yet.

    The file has copies on the CPU, so that the weights may change before it is written.

    Args:
        model: a transformers model. state: its weights by its own names. Emptied here, so that memory has
            only one copy.
        dtype: format of the parameters in the file, except for weights that the model's class keeps in
            float32. They are rounded to 16 bits with `round_to`, by their names in the model, before the
            names are converted for the file.
        classifier: name of the class for sequence classification with one label, if the folder also has its
            weights.
        beside: additional weights of that class, missing in `model`.
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
    state = remove_tied_weights_from_state_dict(state, model)  # first, since it compares addresses
    buffers = {name for name, _ in model.named_buffers()}
    copies, seeds = {}, seed_names(model)
    for name in list(state):
        weight = state.pop(name)
        is_exact = name in buffers or stays_exact(model, name)
        copies[name] = _copy(weight, seeds.get(name, name), weight.dtype if is_exact else dtype)
    copies = revert_weight_conversion(model, copies)
    copies |= {name: _copy(weight, name, dtype) for name, weight in (beside or {}).items()}
    return {Path(FILE): WeightsFile(copies)}


def _copy(weight: Tensor, seed_name: str, dtype: torch.dtype) -> Tensor:
    """Return a copy on the CPU, rounded on the weight's device."""
    rounded = round_to(weight, seed_name, dtype).detach()
    return rounded.to("cpu", copy=rounded.data_ptr() == weight.data_ptr())


def stays_exact(model: Any, name: str) -> bool:
    """Whether the model's class keeps a weight in float32, regardless of the others."""
    kept = (model._keep_in_fp32_modules or (), model._keep_in_fp32_modules_strict or ())
    return any(part in name for parts in kept for part in parts)
