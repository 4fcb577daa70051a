"""Prepares folders from which vLLM loads the model of a checkpoint, and nothing else.

vLLM reads every safetensors file of a folder, including a value head or a reference that the trainer stores
next to the model. So it gets a folder of links instead. A server that computes in 16 bits gets a rounded
copy of float32 weights, because vLLM itself would round to nearest. For an adapter it gets the merged model:
with vLLM's own adapters, responses in flight would keep the old one, and without a GPU, vLLM 0.32 answers
wrongly when requests with and without an adapter are in flight together.
"""

import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.vllm.inside.trinity_worker import (
    MODEL_FILE,
    Tensors,
    tensors,
    weight_files,
)
from trinity_db.models.adapter_folder import is_adapter

if TYPE_CHECKING:
    from torch import Tensor

    from trinity_db.models.lora import AdaptedModel

WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}  # suffixes of files with tensors


class Models:
    """Models for a server to load. The base of adapters stays in main memory, in float32.

    Args:
        dtype: torch name of the server's number format. Merged weights are written in it.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._adapted: AdaptedModel | None = None
        self._written: Path | None = None
        """Latest file of merged weights."""
        self._lock = threading.Lock()
        """A server may be restarted while the next version is being merged for the previous server."""

    def show(self, checkpoint: Path, view: Path) -> Tensors:
        """Create the folder `view` with a model that vLLM can load, and return the model's tensors.

        Deletes the previous merged weights of an adapter: a server that has loaded them does not need the
        file.

        Raises:
            ConfigError: if the checkpoint is missing, corrupted, or has no weights that vLLM can load here;
                or the view cannot be written.
        """
        if is_adapter(checkpoint):
            with self._lock:
                try:
                    return self._merge(checkpoint, view)
                except OSError as error:
                    raise ConfigError(f"{checkpoint}: cannot be merged with its base: {error}") from error
        if self._dtype == "float32" or not _is_float32(checkpoint):
            return show(checkpoint, view)
        with self._lock:
            try:
                return self._round(checkpoint, view)
            except OSError as error:
                raise ConfigError(f"{checkpoint}: cannot be rounded to {self._dtype}: {error}") from error

    def _merge(self, checkpoint: Path, view: Path) -> Tensors:
        from trinity_db.models import load_adapted, load_tokenizer

        if self._adapted is not None and self._adapted.fits(checkpoint):
            self._adapted.load(checkpoint)
        else:
            self._adapted = None  # free it first: two may not fit in memory
            self._adapted = load_adapted(checkpoint)
        tokenizer = load_tokenizer(self._adapted.base)
        return self._write(view, self._adapted.model, self._adapted.merged(), tokenizer)

    def _round(self, checkpoint: Path, view: Path) -> Tensors:
        from trinity_db.models import load_model, load_tokenizer

        model = load_model(checkpoint, "cpu")
        return self._write(view, model, model.state_dict(), load_tokenizer(checkpoint))

    def _write(self, view: Path, model: Any, state: "dict[str, Tensor]", tokenizer: Any) -> Tensors:
        """Write weights into a new folder, after deleting the previous ones: the disk holds one copy."""
        import torch

        from trinity_db.models.model_folder import write_with_tokenizer

        if self._written is not None:
            self._written.unlink(missing_ok=True)
        view.mkdir(parents=True)
        self._written = view / MODEL_FILE
        write_with_tokenizer(model, state, view, getattr(torch, self._dtype), tokenizer)
        return tensors(view)


def _is_float32(checkpoint: Path) -> bool:
    """Whether most weights of a whole model are float32. False for unreadable files: `show` reports them."""
    try:
        headers = tensors(checkpoint).values()
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return 2 * sum(math.prod(shape) for dtype, shape in headers if dtype == "F32") > sum(
        math.prod(shape) for _, shape in headers
    )


def show(checkpoint: Path, view: Path) -> Tensors:
    """Create the folder `view` with links to the model's weights and settings, and return its tensors.

    Raises:
        ConfigError: if the checkpoint is missing, corrupted, or has no weights that vLLM can load here.
    """
    try:
        headers = tensors(checkpoint)
        weights = set(weight_files(checkpoint))
        view.mkdir(parents=True)
        for path in checkpoint.iterdir():
            if path in weights or (path.is_file() and path.suffix not in WEIGHTS):
                (view / path.name).symlink_to(path.resolve())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{checkpoint}: vLLM cannot load it: {' '.join(str(error).split())}") from error
    return headers
