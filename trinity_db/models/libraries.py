"""The libraries of the extra `train`, imported when they are needed."""

import importlib
import importlib.util
from typing import Any

from trinity_db.errors import MissingExtra


def default_device() -> str:
    """The device models run on: the first GPU if there is one, else the CPU."""
    return "cuda" if library("torch").cuda.is_available() else "cpu"


def check_libraries(*names: str) -> None:
    """Find out early that a part of the extra is not installed.

    Raises:
        MissingExtra: naming the first that is missing.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra("train", name)


def library(name: str) -> Any:
    """Import one of the extra's libraries; transformers with its progress bars and advice off."""
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra("train", name) from error
    if name == "transformers":
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    return library
