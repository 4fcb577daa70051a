"""A file of statements and the module that runs them have one name, so that each is found from the other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import trinity_db.store
from trinity_db.schema.queries import queries

PACKAGE = Path(trinity_db.__file__).parent
FILES = {
    path.stem: set(re.findall(r"^-- name: (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE))
    for path in (PACKAGE / "schema" / "queries").glob("*.sql")
}
STORE = {path.stem for path in (PACKAGE / "store").glob("*.py") if "query(" in path.read_text()}
# All but the schema's, whose models name enums like statements and run none.
MODULES = sorted(
    path
    for folder in (PACKAGE, *(PACKAGE.parent / name for name in ("explorer", "processors", "trainer")))
    for path in folder.rglob("*.py")
    if "schema" not in path.relative_to(PACKAGE.parent).parts
)


def owned(module: Path) -> set[str]:
    """The files whose statements a module may run: the store's and the package's modules have one each.

    Those of another package share one that is named like the package, beside their own.
    """
    if module.parent == PACKAGE / "store":
        return {module.stem}
    packages = {package.name for package in module.parents if package.is_relative_to(PACKAGE.parent)}
    return {*packages, module.stem} - STORE


def named(source: str) -> Iterator[str]:
    """The strings in a module that may name statements; one that is put together stands for all it begins."""
    names = {name for statements in FILES.values() for name in statements}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in names:
            yield str(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "query":
            for argument in node.args:
                if isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
                    beginning = str(argument.values[0].value)
                    yield from (name for name in names if name.startswith(beginning))


def foreign(module: Path, source: str) -> set[str]:
    """The statements that a module names and does not own."""
    return set(named(source)) - {name for file in owned(module) for name in FILES.get(file, ())}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_a_module_runs_no_statement_of_another(module: Path) -> None:
    assert foreign(module, module.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("store/groups.py", 'tx.execute(query("draw_groups"))', {"draw_groups"}),
        ("store/samplers.py", 'tx.execute(query("draw_groups"))', set()),
        ("cli/batches.py", 'tx.execute(query("read_batch"))', {"read_batch"}),
        ("cli/status.py", 'name = "show_rewards"', {"show_rewards"}),
        ("cli/plot.py", 'tx.execute(query(f"doctor_{part}"))', FILES["checks"] - {"limit_checkup"}),
    ],
)
def test_a_statement_of_another_module_is_found(module: str, source: str, found: set[str]) -> None:
    assert foreign(PACKAGE / module, source) == found


def test_every_file_has_a_module_or_a_package_of_its_name() -> None:
    assert set(FILES) - {name for module in MODULES for name in owned(module)} == set()


def test_every_module_of_the_store_has_a_file_of_its_name() -> None:
    assert set(FILES) >= STORE


def test_the_store_lists_its_modules() -> None:
    modules = {path.stem for path in (PACKAGE / "store").glob("*.py")} - {"__init__"}
    assert set(re.findall(r"^    (\w+)  ", trinity_db.store.__doc__ or "", re.MULTILINE)) == modules


def test_every_statement_has_a_comment_that_describes_it() -> None:
    bare = [name for name, text in queries().items() if not text.startswith("-- ")]
    assert bare == []
