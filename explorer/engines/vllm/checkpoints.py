"""Shows vLLM the model in a checkpoint, and nothing else.

vLLM reads every safetensors file of a folder, also a value head or a reference that the trainer keeps beside
the model. So it gets a folder of links instead.
"""

from pathlib import Path

from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.vllm.inside.trinity_worker import Tensors, tensors, weight_files

WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}  # endings of files with tensors


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
