"""Names in the text of a test: which of them the code of a response has to define."""

import ast
import builtins
from collections.abc import Collection
from typing import Any, Literal

# Modules that tests use without importing them: in other graders the imports of the solution are visible.
MODULES = {"math", "cmath", "re", "itertools", "collections", "functools", "random", "string", "json", "copy"}
ALIASES = {"np": "numpy"}


def parsed(text: str, mode: Literal["exec", "eval"] = "exec") -> Any:
    """Parse a test.

    Raises:
        ValueError: if it is not Python.
    """
    try:
        return ast.parse(text, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the unit test {text.strip()[:100]!r} is not Python: {error}") from None


def free_names(tree: ast.AST) -> frozenset[str]:
    """Return the names that are read but not bound; if there are none, the called built-in functions.

    A test such as `assert sorted(x) == y`, which calls nothing else, expects the response to define sorted.
    """
    nodes = [*ast.walk(tree)]
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    if free := read - _bound(nodes) - vars(builtins).keys():
        return frozenset(free)
    called = {
        node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return frozenset(called & vars(builtins).keys())


def omitted_imports(module: ast.Module) -> list[ast.stmt]:
    """Return imports of the modules that a test uses without importing them, such as math in math.isclose."""
    nodes = [*ast.walk(module)]
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id in MODULES | ALIASES.keys()]
    others = {node.id for node in names if id(node) not in bases}
    used = {node.id for node in names} - others - _bound(nodes)
    return [ast.Import([ast.alias(ALIASES.get(name, name), name)]) for name in sorted(used)]


def _bound(nodes: Collection[ast.AST]) -> set[str]:
    """Return the names that any part of a test binds."""
    names: set[str] = set()
    for node in nodes:
        match node:
            case ast.Name(name, ast.Store()) | ast.arg(name):
                names.add(name)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                names.add(name)
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.Import(aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
    return names
