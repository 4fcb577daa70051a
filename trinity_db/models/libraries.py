"""Imports the libraries of the extra `train` on demand."""

import importlib
import importlib.util
from typing import Any

from trinity_db.errors import MissingExtra

FROM_FOLDER = {"local_files_only": True, "trust_remote_code": False}
"""Options with which transformers reads a folder: without network, and without code from the folder. Without
the second option, transformers would ask on the terminal whether to run that code.
"""


def default_device() -> str:
    """Return the device for models: the first GPU if there is one, else the CPU."""
    return "cuda" if library("torch").cuda.is_available() else "cpu"


def computing_dtype(name: str, device: str) -> Any:
    """Return the torch dtype for a `dtype` key on a device.

    Args:
        name: float32, bfloat16, float16 or auto: bfloat16 on a GPU that supports it, else float32.
    """
    torch = library("torch")
    if name != "auto":
        return getattr(torch, name)
    # Older GPUs only emulate it, more slowly than float32.
    is_native = torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(
        including_emulation=False
    )
    return torch.bfloat16 if is_native else torch.float32


def check_libraries(*names: str) -> None:
    """Check early that libraries of the extra are installed.

    Raises:
        MissingExtra: if a library is missing; the message names the first one.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra("train", name)


def library(name: str) -> Any:
    """Import a library of the extra, with transformers' progress bars and advice switched off."""
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra("train", name) from error
    if name == "transformers":
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    return library
