"""peft adapters on transformers models: loaded strictly, and merged without loss.

    y = W·x + alpha / rank · B·(A·x)        W [out, in], A [rank, in], B [out, rank]

peft inserts its layers into the model itself, which remains a transformers model. An adapter is never merged
into live weights, because unmerging would not restore the same bits.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from trinity_db.errors import ConfigError
from trinity_db.models import adapter_folder
from trinity_db.models.adapter_folder import CONFIG_FILE, WEIGHTS_FILE
from trinity_db.models.libraries import check_libraries
from trinity_db.models.rounding import round_to, seed_names, without_adapter

_NAME = "default"  # peft's name for a model's only adapter


class Lora:
    """Adds two matrices to layers of a model, in place, and freezes all other weights.

    Args:
        settings: peft's configuration, which selects the layers.

    Raises:
        MissingExtra: peft is not installed.
    """

    def __init__(self, model: Any, settings: Any) -> None:
        check_libraries("peft")
        import peft
        from peft.tuners.lora import LoraLayer

        self.model = model
        with warnings.catch_warnings():
            # peft uses a name that transformers has deprecated.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            # The adapted layers are known here; peft looks for the rank of fused experts only among modules.
            warnings.filterwarnings("ignore", "You have passed exclude_modules", UserWarning)
            warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys", RuntimeWarning)
            warnings.filterwarnings("ignore", "fan_in_fan_out is set to False", UserWarning)
            self._wrapped = peft.get_peft_model(model, settings, adapter_name=_NAME)
        self._layers = {
            name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)
        }
        model.eval()  # the new layers start in training mode

    def disabled(self) -> AbstractContextManager[None]:
        """Disable the adapter within this context: results are bitwise those of the base model."""
        without: AbstractContextManager[None] = self._wrapped.disable_adapter()
        return without

    @torch.no_grad()
    def merged(self) -> dict[str, Tensor]:
        """Return all weights with the adapter merged, W + alpha / rank · B·A, under the model's own names.

        Adapted weights are copies on the CPU; the live weights are unchanged.
        """
        weights = {
            without_adapter(name): weight
            for name, weight in self.model.state_dict().items()
            if name.partition(".lora_")[0] not in self._layers
        }
        for (name, layer), (_, weight) in zip(self._layers.items(), self.merged_weights(), strict=True):
            weights[f"{without_adapter(name)}.{_adapted(layer)}"] = weight.cpu()
        return weights

    def adapted_weights(self) -> dict[str, torch.nn.Parameter]:
        """Return the base parameters with an adapter, by the names of `merged`."""
        return {
            f"{without_adapter(name)}.{_adapted(layer)}": getattr(layer.get_base_layer(), _adapted(layer))
            for name, layer in self._layers.items()
        }

    def merged_weights(self) -> Iterator[tuple[torch.nn.Parameter, Tensor]]:
        """Yield each adapted parameter and its value with the adapter merged."""
        for layer in self._layers.values():
            weight = getattr(layer.get_base_layer(), _adapted(layer))
            yield weight, weight + layer.get_delta_weight(_NAME)

    @torch.no_grad()
    def merge_into(self, model: Any) -> None:
        """Copy the adapted weights into another model of the same architecture, in its dtype and device.

        They are rounded with `round_to`. Layers that share a weight, for example in Zamba2, have separate
        adapters, so each layer gets its own weight.
        """
        self._give(model, (weight for _, weight in self.merged_weights()))

    @torch.no_grad()
    def unload(self) -> Any:
        """Merge the adapter and return the model without peft's layers. This object is unusable
        afterwards."""
        weights = [weight for _, weight in self.merged_weights()]
        model = self._wrapped.unload()
        self._give(model, weights)
        return model

    def _give(self, model: Any, weights: Iterable[Tensor]) -> None:
        written: set[int] = set()
        seeds = seed_names(self.model)
        for (name, layer), weight in zip(self._layers.items(), weights, strict=True):
            module = model.get_submodule(without_adapter(name))
            parameter = getattr(module, _adapted(layer))
            seed_name = seeds[f"{without_adapter(name)}.{_adapted(layer)}"]
            if id(parameter) in written:
                parameter = torch.nn.Parameter(torch.empty_like(parameter), parameter.requires_grad)
                setattr(module, _adapted(layer), parameter)
            parameter.copy_(round_to(weight, seed_name, parameter.dtype))
            written.add(id(parameter))

    def matrices(self) -> dict[str, Tensor]:
        """Return the adapter's matrices (not copies) under peft's names in files."""
        import peft

        matrices: dict[str, Tensor] = peft.get_peft_model_state_dict(
            self._wrapped, adapter_name=_NAME, save_embedding_layers=False
        )
        return matrices

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Load the matrices in a folder.

        peft's own loader keeps matrices that are missing in the file, and renames some, such as Laguna's
        shared experts, like weights of an older transformers.

        Raises:
            ConfigError: if they are damaged, or not exactly those of this adapter; nothing is changed then.
        """
        file = folder / WEIGHTS_FILE
        try:
            matrices = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file}: cannot be read: {error}; restore it.") from error
        own = self.matrices()
        differing = sorted(
            name
            for name in own.keys() | matrices.keys()
            if name not in own or name not in matrices or own[name].shape != matrices[name].shape
        )
        if differing:
            raise ConfigError(
                f"{file}: does not fit this run's adapter: {len(differing)} matrices are missing, unknown "
                f"or of "
                f"another shape, such as {differing[0]}; restore it."
            )
        for name, matrix in own.items():
            matrix.copy_(matrices[name])


class AdaptedModel(Lora):
    """An adapter's base in memory, into which the adapters of successive versions are loaded.

    Args:
        folder: folder of the first adapter.
        base: folder of its base.
        model: the base.

    Raises:
        ConfigError: if the adapter is damaged.
    """

    def __init__(self, folder: Path, base: Path, model: Any) -> None:
        import peft

        self.base = base
        """Folder of the base."""
        self._digest = adapter_folder.read_base(folder).digest
        self._config = _config(folder)
        settings = peft.LoraConfig.from_pretrained(str(folder))
        settings.base_model_name_or_path = str(self.base)  # it may have moved, about which peft warns
        super().__init__(model, settings)
        self.model.requires_grad_(False)
        self.load(folder)

    def fits(self, folder: Path) -> bool:
        """Whether the adapter in a folder has the same layers and base."""
        return adapter_folder.read_base(folder).digest == self._digest and _config(folder) == self._config


def _config(folder: Path) -> bytes:
    try:
        return (folder / CONFIG_FILE).read_bytes()
    except OSError as error:
        raise ConfigError(f"{folder / CONFIG_FILE}: cannot be read: {error.strerror}; restore it.") from error


def _adapted(layer: Any) -> str:
    """Return the name of a layer's adapted parameter: fused experts have several parameters."""
    return str(getattr(layer, "parameter_name", "weight"))
