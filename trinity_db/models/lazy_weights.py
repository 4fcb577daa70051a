"""A lazily loaded model: its weights are read from disk module by module and sharded immediately.

So a rank never holds a whole model, but at most its shard, the weights of one layer, and those outside
layers.
"""

import json
from pathlib import Path
from typing import Any

import torch

from trinity_db.errors import ConfigError
from trinity_db.models.libraries import FROM_FOLDER, library
from trinity_db.models.loading import load_model, model_class, prepared
from trinity_db.models.stored_weights import Stored, stored_weights

WEIGHTS = "model.safetensors"  # transformers' name


class UnreadModel:
    """A causal language model in float32 and in evaluation mode, whose weights are loaded with `read`.

    Until then each weight takes the memory of one number. If the installed transformers does not reveal which
    file has which weights, the whole model is read onto the CPU at once.

    Raises:
        ConfigError: if the folder has no model that transformers can read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        files = _files(path)
        model = _without_weights(path) if files else None
        self._unread = {} if model is None else _by_weight(model, files)
        self.is_whole = not self._unread
        """Whether the whole model was read at once."""
        self.model: Any = load_model(path, "cpu") if self.is_whole else model
        """The model. Reading keeps its tensor objects, so that tied weights stay tied."""

    def read(self, module: torch.nn.Module, device: str) -> None:
        """Load the weights of a module that are not loaded yet onto the device.

        Raises:
            ConfigError: if a stored weight does not fit this model.
        """
        for tensor in (*module.parameters(), *module.buffers()):
            if stored := self._unread.get(id(tensor)):
                self._take(stored, device)

    def _take(self, stored: Stored, device: str) -> None:
        read = stored.read(self.model)
        for name, weight in read.items():
            own = _tensor(self.model, name)
            if own.shape != weight.shape:
                raise ConfigError(
                    f"{self._path}: {name} has the shape {list(weight.shape)} in the files, and "
                    f"{list(own.shape)} by config.json: take both from one place."
                )
            own.data = weight.to(device, own.dtype)
            del self._unread[id(own)]


def weight_files(path: Path) -> set[Path]:
    """Return the weight files of the model in a folder; empty if they are not safetensors."""
    return set(_files(path).values())


def _files(path: Path) -> dict[str, Path]:
    """Map tensor names to their files; empty without safetensors files."""
    from safetensors import SafetensorError, safe_open

    index = path / f"{WEIGHTS}.index.json"  # transformers' name for several files
    try:
        if index.is_file():
            files = json.loads(index.read_bytes())["weight_map"]
            return {tensor: path / file for tensor, file in files.items()}
        with safe_open(path / WEIGHTS, "pt") as opened:
            return dict.fromkeys(opened.keys(), path / WEIGHTS)
    except (OSError, ValueError, KeyError, SafetensorError):
        return {}


def _without_weights(path: Path) -> Any:
    """Build a folder's model with each weight expanded from one number. None if that is impossible."""
    from accelerate import init_empty_weights

    transformers = library("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(path, **FROM_FOLDER)
        if getattr(config, "quantization_config", None) is not None:
            return None
        with init_empty_weights(include_buffers=False):
            model = model_class(config).from_config(config, dtype=torch.float32, trust_remote_code=False)
        if (path / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    except (OSError, ValueError):  # load_model reports the cause
        return None
    model.tie_weights()
    known: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight.is_meta:
                number = torch.zeros((), dtype=weight.dtype).expand(weight.shape)
                module._parameters[name] = known.setdefault(
                    id(weight), torch.nn.Parameter(number, weight.requires_grad)
                )
    return prepared(model).eval()


def _by_weight(model: Any, files: dict[str, Path]) -> dict[int, Stored]:
    """Map the ids of a model's weights to their places in files; empty if any is unknown."""
    try:
        weights = stored_weights(model, files)
        own = {id(_tensor(model, name)): stored for stored in weights for name in stored.names}
    except (ImportError, AttributeError, TypeError, LookupError):  # another transformers, or another model
        return {}
    return own if own.keys() == {id(weight) for weight in model.state_dict(keep_vars=True).values()} else {}


def _tensor(model: Any, name: str) -> torch.Tensor:
    """Return a weight or buffer by name."""
    module, _, own = name.rpartition(".")
    tensor: torch.Tensor = getattr(model.get_submodule(module), own)
    return tensor
