"""Finds the user's own modules that the file of a step imports, since the step's results depend on them."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = __name__.partition(".")[0]


def imported(file: Path) -> list[Path]:
    """Return the files in the same folder or below that a file imports, directly or indirectly, sorted.

    Only import statements count. If a file here has the name of a module that Python finds elsewhere first,
    such as in its standard library, it counts too.
    """
    root = file.resolve().parent
    files: set[Path] = set()
    waiting = [file.resolve()]
    while waiting:
        new = {path for path in _imports(waiting.pop(), root) if path != file.resolve()} - files
        files |= new
        waiting += new
    return sorted(files)


def _imports(file: Path, root: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # missing, or not importable anyway
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
    """Yield the files of a module and its packages; the last name may be a name inside a module."""
    if names[:1] == [PACKAGE]:  # possibly a checkout in the same folder; its steps have versions
        return
    for depth in range(1, len(names) + 1):
        path = folder.joinpath(*names[:depth])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                yield file
