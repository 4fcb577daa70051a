"""A model whose weights still lie on disk: they are read module by module, and sharded at once.

So a rank never holds a whole model: at most its part, the weights of one layer, and those outside of layers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinity_db.models.libraries import library
from trinity_db.models.loading import load_model, sees_as_well
from trinity_db.models.time_steps import limit_as_configured

WEIGHTS, INDEX = (
    "model.safetensors",
    "model.safetensors.index.json",
)  # transformers' names: one file, or several


class UnreadModel:
    """A causal language model in float32 and in evaluation mode, whose weights `read` reads.

    Until then each weight takes the memory of one number. Some folders name their weights otherwise than the
    model does: transformers fuses the experts of mixtures when it loads them. Then the whole model is read
    onto the CPU at once.

    Args:
        exact: name of a file that holds parameters more exactly, if it is in the folder.

    Raises:
        ConfigError: there is no model in the folder that transformers can read.
    """

    def __init__(self, path: Path, exact: str | None = None) -> None:
        self._files = _files(path, WEIGHTS)
        if exact is not None:
            self._files |= _files(path, exact)
        model = _without_weights(path) if self._files else None
        self._unread = {} if model is None else _by_tensor(model, self._files)
        self.is_whole = not self._unread
        """Whether all was read at once, without the more exact file."""
        self.model: Any = load_model(path, "cpu") if self.is_whole else model
        """Its tensors stay the same objects when they are read, so that tied weights stay tied."""

    def read(self, module: torch.nn.Module, device: str) -> None:
        """Read the weights of a module that are not read yet, onto the device."""
        from safetensors import safe_open

        for tensor in (*module.parameters(), *module.buffers()):
            _, name = self._unread.pop(id(tensor), (None, None))
            if name is not None:
                with safe_open(self._files[name], "pt") as file:
                    tensor.data = file.get_tensor(name).to(device, tensor.dtype)


def weight_files(path: Path) -> set[Path]:
    """The files with the weights of the model in a folder. Empty if they are not in safetensors."""
    return set(_files(path, WEIGHTS).values())


def _files(path: Path, name: str) -> dict[str, Path]:
    """The file of each tensor, by the tensor's name. Empty if there is no such file of safetensors."""
    from safetensors import SafetensorError, safe_open

    index = path / f"{name}.index.json"  # transformers' name, where there are several files
    try:
        if index.is_file():
            files = json.loads(index.read_bytes())["weight_map"]
            return {tensor: path / file for tensor, file in files.items()}
        with safe_open(path / name, "pt") as opened:
            return dict.fromkeys(opened.keys(), path / name)
    except (OSError, ValueError, KeyError, SafetensorError):
        return {}


def _without_weights(path: Path) -> Any:
    """The model of a folder, each weight one number that stands for all. None if that cannot be built."""
    from accelerate import init_empty_weights

    transformers = library("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        if getattr(config, "quantization_config", None) is not None or sees_as_well(config):
            return None
        with init_empty_weights(include_buffers=False):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if (path / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    except (OSError, ValueError):  # load_model says what is wrong
        return None
    limit_as_configured(model)
    model.tie_weights()
    known: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight.is_meta:
                number = torch.zeros((), dtype=weight.dtype).expand(weight.shape)
                module._parameters[name] = known.setdefault(
                    id(weight), torch.nn.Parameter(number, weight.requires_grad)
                )
    return model.eval()


def _by_tensor(model: Any, files: Mapping[str, Path]) -> dict[int, tuple[Tensor, str]]:
    """The tensors of a model by their id, and the name of each on disk. Empty if names or shapes differ."""
    from safetensors import safe_open

    named = model.state_dict(keep_vars=True)
    if not files.keys() <= named.keys():
        return {}
    found = {id(named[name]): (named[name], name) for name in files}
    if found.keys() != {id(tensor) for tensor in named.values()}:
        return {}
    for file in set(files.values()):
        with safe_open(file, "pt") as opened:
            for tensor, name in found.values():
                if files[name] == file and opened.get_slice(name).get_shape() != list(tensor.shape):
                    return {}
    return found
