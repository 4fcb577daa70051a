"""Functions named in a configuration: built in, or the user's own as `path/to/file.py:name`.

Finds them and reports errors in one line. Their arguments and results are defined by the calling role.
"""

import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from trinity_db.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")

_LIBRARIES = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",  # code without a file, such as <frozen importlib._bootstrap>
)
"""Folders without user code: this package, and those of Python and pip."""


def find(name: str, kind: str, known: Mapping[str, Function]) -> Function:
    """Return the built-in function of a name, or the user's own function.

    Raises:
        ConfigError: if it does not exist; `what` names its purpose.
    """
    if ".py:" in name:
        path, _, attribute = name.rpartition(":")
        return _from_file(path, attribute, f"{kind.capitalize()} '{name}'")  # type: ignore[return-value]
    if name not in known:
        raise ConfigError(
            f"There is no {kind} '{name}'; {_hint(name, known)} Your own: path/to/file.py:name."
        )
    return known[name]


def check_call(
    function: Callable[..., Any], name: str, how: str, args: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Check early that a function can be called with these arguments.

    Raises:
        ConfigError: if it has other parameters; `how` describes the call.
    """
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}; it is called with {how}.") from None


def in_thread(function: Callable[[], Result]) -> Result:
    """Call a user's function in a thread on which a coroutine waits.

    Raises:
        RuntimeError: if the function raised StopIteration, which a future does not accept: the coroutine
            would wait forever.
    """
    try:
        return function()
    except StopIteration as error:
        raise RuntimeError("it raised StopIteration").with_traceback(error.__traceback__) from error


def describe_error(error: BaseException) -> str:
    """Describe an error of a user's function in one line, with the user's file, line and function.

    The location is the deepest one in the user's own files, so that an error inside a library names the
    calling line; it is omitted if only this package and libraries are in the traceback. For an exception
    group, for example from an `asyncio.TaskGroup`, the first error counts.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    try:
        message = str(error)
    except Exception:  # the class is user code too
        message = "its message cannot be shown"
    text = " ".join(f"{type(error).__name__}: {message}".split())
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_LIBRARIES)
    ]
    if not own or isinstance(error, SyntaxError):  # its text has file and line
        return text
    path = os.path.relpath(own[-1].filename)
    path = own[-1].filename if path.startswith("..") else path
    return f"{text} ({path}, line {own[-1].lineno}, in {own[-1].name})"


def _from_file(path: str, attribute: str, name: str) -> Callable[..., Any]:
    # The path is the module's name, so it shadows no other; dataclasses look up their module by name.
    spec = importlib.util.spec_from_file_location(path, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"{name}: there is no file {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path] = module
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that modules next to the file shadow none
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{name}: {path} cannot be loaded: {describe_error(error)}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        own = [
            key
            for key, value in vars(module).items()
            if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == path
        ]
        raise ConfigError(f"{name}: {path} has no function '{attribute}'; {_hint(attribute, own)}")
    return function  # type: ignore[no-any-return]


def _hint(name: str, known: Iterable[str]) -> str:
    nearest = get_close_matches(name, known, n=1)
    return f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(known) or 'none'}."
