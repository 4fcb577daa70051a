"""LoRA: the trainer trains two small matrices beside the frozen weight of a layer (arXiv 2106.09685).

    y = W·x + alpha / rank · B·(A·x)        W [out, in], A [rank, in], B [out, rank]

A starts random and B starts at 0, so that at first the adapted model equals its base. peft puts its layers
into the model itself, which remains the transformers model that it was: attention, the chunked
log-probabilities and gradient checkpointing (`trinity_db/models/`) see no difference. The adapter is never
merged into the live weights, because unmerging would not restore the same bits.
"""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trinity_db.errors import ConfigError
from trinity_db.models import check_libraries
from trinity_db.settings import hint
from trinity_db.trainer.config import LoraConfig

ADAPTER_FOLDER = "adapter"
"""The folder in a checkpoint that peft loads onto the starting model."""
EVERYWHERE = "all-linear"  # peft's name for all linear layers but the output embedding
_WEIGHTS_FILE = "adapter_model.safetensors"  # peft's name for it
_NAME = "default"  # peft's name for a model's only adapter


class Adapter:
    """Adds the two matrices to layers of a model, in place, and freezes all other weights.

    Raises:
        ConfigError: the model has no layer that a target names, or a target names its output embedding.
        MissingExtra: peft is not installed.
    """

    def __init__(self, model: Any, config: LoraConfig) -> None:
        check_libraries("peft")
        import peft
        from peft.tuners.lora import LoraLayer

        is_everywhere = config.targets == (EVERYWHERE,)
        if not is_everywhere:
            _check_targets(model, config.targets)
        settings = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=EVERYWHERE if is_everywhere else list(config.targets),
            task_type=peft.TaskType.CAUSAL_LM,
        )
        self._model = model
        with warnings.catch_warnings():
            # peft uses a name that transformers has deprecated.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            self._wrapped = peft.get_peft_model(model, settings, adapter_name=_NAME)
        # peft makes a set of it. The order of a set in the file would differ from process to process.
        settings.target_modules = sorted(settings.target_modules)
        self._settings = settings
        self._layers = {name: one for name, one in model.named_modules() if isinstance(one, LoraLayer)}
        model.eval()  # the new layers begin in training mode

    def disabled(self) -> AbstractContextManager[None]:
        """Within this `with`, the model computes what it computes without the adapter, bit for bit."""
        without: AbstractContextManager[None] = self._wrapped.disable_adapter()
        return without

    @torch.no_grad()
    def merged(self) -> dict[str, Tensor]:
        """All weights with the adapter merged in, W + alpha / rank · B·A, under the model's own names.

        Adapted weights are copies on the CPU. The live weights stay as they are.
        """
        weights = {}
        for name, weight in self._model.state_dict().items():
            layer, _, rest = name.partition(".base_layer.")
            if layer in self._layers:
                weights[f"{layer}.{rest}"] = weight
            elif name.partition(".lora_")[0] not in self._layers:
                weights[name] = weight
        for name, layer in self._layers.items():
            weights[f"{name}.weight"] = (layer.get_base_layer().weight + layer.get_delta_weight(_NAME)).cpu()
        return weights

    def save(self, folder: Path) -> None:
        """Write what `peft.PeftModel.from_pretrained(starting_model, folder)` reads."""
        import peft

        weights = peft.get_peft_model_state_dict(
            self._wrapped, adapter_name=_NAME, save_embedding_layers=False
        )
        folder.mkdir()
        self._settings.save_pretrained(folder)
        save_file(weights, folder / _WEIGHTS_FILE, metadata={"format": "pt"})

    def load(self, folder: Path) -> None:
        """Load the matrices that `save` wrote."""
        import peft

        peft.set_peft_model_state_dict(self._wrapped, load_file(folder / _WEIGHTS_FILE), adapter_name=_NAME)


def _check_targets(model: Any, targets: Sequence[str]) -> None:
    """Raise ConfigError unless each target names at least one linear layer, and none the output embedding.

    `models/chunked_logprobs.py` reads the weight of the output embedding directly, so an adapter there would
    have no effect.
    """
    from transformers.pytorch_utils import Conv1D

    names = {module: name for name, module in model.named_modules()}
    linear = {name for module, name in names.items() if isinstance(module, (torch.nn.Linear, Conv1D))}
    head = names.get(model.get_output_embeddings(), "")
    for target in targets:
        found = {name for name in linear if f".{name}".endswith(f".{target}")}
        if head in found:
            raise ConfigError(
                f"trainer.lora.targets: '{target}' is the output embedding, which cannot have an adapter; "
                "leave it out."
            )
        if not found:
            known = sorted({name.rpartition(".")[2] for name in linear - {head}})
            raise ConfigError(
                f"trainer.lora.targets: {type(model).__name__} has no linear layer '{target}'; "
                f"{hint(target, known)}"
            )
