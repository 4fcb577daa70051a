"""Extension of vLLM's workers (`--worker-extension-cls`). Imports only the standard library."""

import json
from pathlib import Path
from typing import Any

MODEL_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Data type and shape of each tensor, by name."""


class Worker:
    """Methods added to vLLM's worker. `/collective_rpc` calls them by name on all workers."""

    reload_weights: Any
    """vLLM's method, which reads a folder into the model in place."""
    get_model: Any

    def trinity_load(self, weights_path: str) -> dict[str, str]:
        """Load the weights in a folder.

        Never raises: an exception in a worker brings the server down at the next request.

        Returns:
            {} on success; {"refused": why} if nothing was changed; {"failed": why} if part of the weights may
            be new. Then the server must not sample until another folder has been loaded.
        """
        try:
            tensors(Path(weights_path))
        except Exception as error:
            return {"refused": _line(error)}
        try:
            self.reload_weights(weights_path=weights_path)
            _pack_heads(self.get_model())
        except Exception as error:
            return {"failed": _line(error)}
        return {}


def _pack_heads(model: Any) -> None:
    """Update output embeddings that are tied to the input embeddings.

    On the CPU, vLLM multiplies by a packed copy of the weights. A reload repacks only layers that have
    weights in the files, and a tied output embedding has none there (vLLM 0.32).
    """
    for layer in model.modules():
        if type(layer).__name__ == "ParallelLMHead" and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)


def tensors(folder: Path) -> Tensors:
    """Return the tensors of the model in a folder from its files' headers, without reading weights.

    Raises:
        OSError: if a file is missing.
        ValueError: if a file is corrupted or truncated.
    """
    headers: Tensors = {}
    for path in weight_files(folder):
        headers |= _header(path)
    return headers


def weight_files(folder: Path) -> list[Path]:
    """Return the files with the model's weights. A checkpoint may have other tensors in other files.

    Raises:
        OSError: if the index cannot be read.
        ValueError: if the index is corrupted, or the folder has no weights in this format.
    """
    if (folder / INDEX_FILE).is_file():
        index = json.loads((folder / INDEX_FILE).read_bytes())
        return [folder / name for name in sorted(set(index["weight_map"].values()))]
    if (folder / MODEL_FILE).exists():
        return [folder / MODEL_FILE]
    raise ValueError(f"{folder} has neither {MODEL_FILE} nor {INDEX_FILE}")


def _header(path: Path) -> Tensors:
    """Read the header of a safetensors file: its length in 8 bytes, then JSON."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"{path.name} is corrupted: it has no header")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != 8 + length + end:
        raise ValueError(f"{path.name} is corrupted: {size} bytes, not {8 + length + end}")
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
