"""LoRA: trains two small matrices in parallel to the frozen weight of a layer (arXiv 2106.09685).

A is initialised randomly and B with 0, so that at first the adapted model equals its base. It remains the
same transformers model: attention, the chunked log-probabilities and gradient checkpointing
(`trinity_db/models/`) are unaffected.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trinity_db.config.base import hint
from trinity_db.errors import ConfigError
from trinity_db.models import check_libraries
from trinity_db.models.adapter_folder import WEIGHTS_FILE
from trinity_db.models.lora import Lora
from trinity_db.models.weights_file import WeightsFile
from trinity_db.trainer.config import LoraConfig

ADAPTER_FOLDER = "adapter"
"""The folder in a version of merged weights that peft loads onto the starting model."""
EVERYWHERE = "all-linear"  # peft's name for all linear layers except the output embedding
_LINEAR = {"FalconLinear"}  # equivalent to its base class
_READ_BY_KERNELS = {"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"}  # the list in peft


class Adapter(Lora):
    """Adds the two matrices to layers of the policy's model, in place, and freezes all other weights.

    Raises:
        ConfigError: if no layer matches a target, or a target matches the output embedding.
        MissingExtra: if peft is not installed.
    """

    def __init__(self, model: Any, config: LoraConfig) -> None:
        check_libraries("peft")
        import peft

        is_everywhere = config.targets == (EVERYWHERE,)
        if not is_everywhere:
            _check_targets(model, config.targets)
        settings = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=EVERYWHERE if is_everywhere else list(config.targets),
            exclude_modules=_without_adapter(model) or None,
            task_type=peft.TaskType.CAUSAL_LM,
        )
        try:
            super().__init__(model, settings)
        except ValueError as error:  # peft found no layer; its own exception class is newer than 0.20
            reason = str(error).partition(". ")[0]
            raise ConfigError(
                f"trainer.lora.targets: peft puts no adapter on {type(model).__name__} ({reason}); remove "
                "trainer.lora to train the whole model."
            ) from error
        # peft makes sets of them. The order of a set in the file would vary between processes.
        settings.target_modules = sorted(settings.target_modules)
        settings.target_parameters = sorted(settings.target_parameters or ()) or None
        self._settings = settings

    def write(self, folder: Path, base: Path) -> dict[Path, WeightsFile]:
        """Write the files that `peft.PeftModel.from_pretrained(base, folder)` reads, except the matrices.

        Return the file of the matrices, not yet written, by its path in the folder. It has copies on the CPU,
        which do not change.

        Args:
            base: Folder of the adapter's base model.
        """
        self._settings.base_model_name_or_path = str(base.absolute())
        self._settings.save_pretrained(folder)
        copies = {name: matrix.detach().to("cpu", copy=True) for name, matrix in self.matrices().items()}
        return {Path(WEIGHTS_FILE): WeightsFile(copies)}


def _without_adapter(model: Any) -> list[str]:
    """Return the linear layers that cannot have an adapter.

    Other subclasses compute something else, such as a router's choice of experts. The kernels of Mamba read
    the weight of `out_proj` directly, so that an adapter on it would have no effect. Frozen layers do not
    process text.
    """
    from transformers.pytorch_utils import Conv1D

    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
    }
    return sorted(
        name
        for name, module in linear.items()
        if (type(module) not in (torch.nn.Linear, Conv1D) and type(module).__name__ not in _LINEAR)
        or not module.weight.requires_grad
        or (model.config.get_text_config().model_type in _READ_BY_KERNELS and name.endswith(".out_proj"))
    )


def _check_targets(model: Any, targets: Sequence[str]) -> None:
    """Raise ConfigError unless each target names at least one linear layer, and none the output embedding.

    `models/chunked_logprobs.py` reads the weight of the output embedding directly, so an adapter there would
    have no effect.
    """
    from transformers.pytorch_utils import Conv1D

    names = {module: name for name, module in model.named_modules()}
    linear = {name for module, name in names.items() if isinstance(module, (torch.nn.Linear, Conv1D))}
    head = names.get(model.get_output_embeddings(), "")
    without = set(_without_adapter(model))
    for target in targets:
        matching = {name for name in linear if f".{name}".endswith(f".{target}")}
        if matching and matching <= without:
            raise ConfigError(
                f"trainer.lora.targets: '{target}' of {type(model).__name__} is read by more than its own "
                "layer, so it cannot have an adapter; remove it."
            )
        if head in matching:
            raise ConfigError(
                f"trainer.lora.targets: '{target}' is the output embedding, which cannot have an adapter; "
                "remove it."
            )
        if not matching:
            known = sorted({name.rpartition(".")[2] for name in linear - {head}})
            raise ConfigError(
                f"trainer.lora.targets: {type(model).__name__} has no linear layer '{target}'; "
                f"{hint(target, known)}"
            )
