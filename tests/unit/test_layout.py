"""The roles are top-level folders and import as parts of trinity_db, never under their bare names."""

import ast
import importlib
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import trinity_db
from trinity_db.insight.checks.installation import EXTRAS

PACKAGE = Path(trinity_db.__file__).parent
ROOT = PACKAGE.parent
LINKED = ("explorer", "processors", "schema", "trainer")


@pytest.mark.parametrize("name", LINKED)
def test_a_role_is_linked_into_the_package_by_a_relative_path(name: str) -> None:
    link = PACKAGE / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT / name


@pytest.mark.skipif(not (shutil.which("git") and (ROOT / ".git").exists()), reason="needs git and a clone")
def test_the_links_are_committed_as_links() -> None:
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "--stage", "trinity_db"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    entries = [line.split() for line in listed.splitlines()]
    assert {path for mode, _, _, path in entries if mode == "120000"} == {f"trinity_db/{n}" for n in LINKED}


@pytest.mark.parametrize("name", LINKED)
def test_every_folder_below_a_role_is_a_package(name: str) -> None:
    folders = {path.parent for path in (ROOT / name).rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()


def test_the_schema_cannot_be_imported_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ImportError, match=r"Import trinity_db\.schema"):
        importlib.import_module("schema")


def test_the_doctor_looks_for_all_packages_of_an_extra() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, names in EXTRAS.items():
        assert sorted(names) == sorted(
            re.split(r"[<>=]", one)[0] for one in declared[extra] if not one.startswith("trinity-db[")
        )


def test_two_classes_of_one_package_never_share_a_name() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for folder in (PACKAGE, *(ROOT / name for name in LINKED)):
        for path in folder.rglob("*.py"):
            package = folder.name if folder != PACKAGE else path.relative_to(PACKAGE).parts[0]
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    places.setdefault((package, node.name), []).append(path.name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
