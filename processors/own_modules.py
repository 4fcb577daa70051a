"""The modules of a user's own that the file of a step imports: their code decides too what the step says."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = __name__.partition(".")[0]


def imported(file: Path) -> list[Path]:
    """The files beside this one, or in folders below it, that it imports, and that these import; in order.

    Only import statements count. A name that Python finds elsewhere first, as in its library, counts too if a
    file here has it.
    """
    root = file.resolve().parent
    found: set[Path] = set()
    waiting = [file.resolve()]
    while waiting:
        new = {path for path in _imports(waiting.pop(), root) if path != file.resolve()} - found
        found |= new
        waiting += new
    return sorted(found)


def _imports(file: Path, root: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # it is not there, or Python cannot import it either
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            folder = file.parents[node.level - 1] if node.level else root
            module = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _files(folder, [*module, alias.name])


def _files(folder: Path, names: list[str]) -> Iterator[Path]:
    """The files of a module and of the packages around it; the last name may be of something in a file."""
    if names[:1] == [PACKAGE]:  # a checkout of it may lie in the same folder; its steps have versions
        return
    for depth in range(1, len(names) + 1):
        path = folder.joinpath(*names[:depth])
        for one in (path.with_suffix(".py"), path / "__init__.py"):
            if one.is_file():
                yield one
