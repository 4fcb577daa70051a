"""Shows vLLM the model in a checkpoint, and nothing else.

vLLM reads every safetensors file of a folder, also a value head or a reference that the trainer keeps beside
the model. So it gets a folder of links instead. A server that computes in 16 bits gets a rounded copy of
weights in float32, because vLLM itself rounds to nearest. Of an adapter it gets the whole model, which is
merged here: vLLM's own adapters would leave responses in flight with the old one, and without a GPU, vLLM
0.32 answers wrongly where requests with an adapter and requests without one are in flight together.
"""

import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.vllm.inside.trinity_worker import (
    MODEL_FILE,
    Tensors,
    tensors,
    weight_files,
)
from trinity_db.models.adapter_folder import is_adapter

if TYPE_CHECKING:
    from trinity_db.models.lora import AdaptedModel

WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}  # endings of files with tensors


class Models:
    """The models that a server is shown. The base of adapters stays in main memory, in float32.

    Args:
        dtype: that the server computes in, as torch names it. Merged weights are written in it.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._adapted: AdaptedModel | None = None
        self._written: Path | None = None
        """The file of merged weights that was written last."""
        self._lock = threading.Lock()
        """A server may be started anew while the next version is merged for the one before."""

    def show(self, checkpoint: Path, view: Path) -> Tensors:
        """Make the folder `view` with a model that vLLM loads. Returns the model's tensors.

        What was shown of an adapter before has no weights any more: a server that has loaded them needs none.

        Raises:
            ConfigError: the checkpoint is not there, is damaged, or has no weights that vLLM can load here;
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
        import torch

        from trinity_db.models.lora import AdaptedModel

        if self._adapted is not None and self._adapted.fits(checkpoint):
            self._adapted.load(checkpoint)
        else:
            self._adapted = None  # rather than two in memory
            self._adapted = AdaptedModel(checkpoint)
        self._begin(view)
        self._adapted.write(view, getattr(torch, self._dtype))
        return tensors(view)

    def _round(self, checkpoint: Path, view: Path) -> Tensors:
        import torch

        from trinity_db.models import folder_digest, load_model, load_tokenizer, model_folder

        self._begin(view)
        model = load_model(checkpoint, "cpu")
        unwritten = model_folder.write(model, model.state_dict(), view, getattr(torch, self._dtype))
        load_tokenizer(checkpoint).save_pretrained(view)
        folder_digest.complete(view, unwritten)
        return tensors(view)

    def _begin(self, view: Path) -> None:
        """Make a folder for weights that are written here, of which the disk holds one."""
        if self._written is not None:
            self._written.unlink(missing_ok=True)
        view.mkdir(parents=True)
        self._written = view / MODEL_FILE


def _is_float32(checkpoint: Path) -> bool:
    """Whether a whole model has most of its weights in float32. `show` reports files that cannot be read."""
    try:
        found = tensors(checkpoint).values()
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return 2 * sum(math.prod(shape) for dtype, shape in found if dtype == "F32") > sum(
        math.prod(shape) for _, shape in found
    )


def show(checkpoint: Path, view: Path) -> Tensors:
    """Make the folder `view`, with links to the model's files and to settings. Returns the model's tensors.

    Raises:
        ConfigError: the checkpoint is not there, is damaged, or has no weights that vLLM can load here.
    """
    try:
        found = tensors(checkpoint)
        weights = set(weight_files(checkpoint))
        view.mkdir(parents=True)
        for path in checkpoint.iterdir():
            if path in weights or (path.is_file() and path.suffix not in WEIGHTS):
                (view / path.name).symlink_to(path.resolve())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{checkpoint}: vLLM cannot load it: {' '.join(str(error).split())}") from error
    return found
