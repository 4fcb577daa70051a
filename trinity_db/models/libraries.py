"""Imports the libraries of the extra `train` when they are needed."""

import importlib
import importlib.util
from typing import Any

from trinity_db.errors import MissingExtra

FROM_FOLDER = {"local_files_only": True, "trust_remote_code": False}
"""How transformers reads a folder: without network, and without code that the folder holds or names.

If the second option were left out, transformers would ask on the terminal whether to run that code.
"""


def default_device() -> str:
    """The device that models run on: the first GPU if there is one, else the CPU."""
    return "cuda" if library("torch").cuda.is_available() else "cpu"


def computing_dtype(name: str, device: str) -> Any:
    """The torch dtype that a `dtype` key means on a device.

    Args:
        name: float32, bfloat16, float16 or auto: bfloat16 on a GPU that computes in it, else float32.
    """
    torch = library("torch")
    if name != "auto":
        return getattr(torch, name)
    # Older GPUs only emulate it, which is slower than float32.
    is_native = torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(
        including_emulation=False
    )
    return torch.bfloat16 if is_native else torch.float32


def check_libraries(*names: str) -> None:
    """Check early that libraries of the extra are installed.

    Raises:
        MissingExtra: a library is missing. The message names the first one.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra("train", name)


def library(name: str) -> Any:
    """Import a library of the extra. Progress bars and advice of transformers are switched off."""
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra("train", name) from error
    if name == "transformers":
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    return library
