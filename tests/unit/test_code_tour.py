"""The tour of the code names files, functions and statements that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-it-works" / "code-tour.md"
STOPS = re.findall(r"^\d+\. .*\n(?:^ +\S.*\n)+", PAGE.read_text(), re.MULTILINE)
MOST_STOPS = 25


class Place(NamedTuple):
    """One place in the code, as the page names it: `file`: `name`."""

    file: str
    name: str


def places(text: str) -> list[Place]:
    return [Place(*found) for found in re.findall(r"`([\w/.]+\.(?:py|sql))`: `([\w.]+)`", text)]


def functions(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Yield the functions of a module, and the methods of its classes as Class.method."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}"
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")


def names(file: Path) -> set[str]:
    """Return the functions that a Python file defines, or the statements of an SQL file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".sql":
        return set(re.findall(r"^-- name: (\w+)$", text, re.MULTILINE))
    return set(functions(ast.parse(text).body))


def test_the_stops_are_numbered_and_few() -> None:
    numbers = [int(stop.partition(".")[0]) for stop in STOPS]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 0 < len(numbers) <= MOST_STOPS


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.partition(".")[0])
def test_a_stop_names_a_function_and_no_place_in_another_form(stop: str) -> None:
    found = places(stop)
    assert any(place.file.endswith(".py") for place in found)
    assert len(found) == len(re.findall(r"\.(?:py|sql)\b", stop))


@pytest.mark.parametrize("place", dict.fromkeys(places(PAGE.read_text())), ids=lambda place: ":".join(place))
def test_a_named_place_exists(place: Place) -> None:
    assert not (ROOT / place.file.partition("/")[0]).is_symlink()
    assert place.name in names(ROOT / place.file)


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.partition(".")[0])
def test_a_statement_stands_next_to_the_module_that_runs_it(stop: str) -> None:
    modules = {place.file for place in places(stop) if place.file.endswith(".py")}
    for file, statement in (place for place in places(stop) if place.file.endswith(".sql")):
        module = f"trinity_db/store/{Path(file).stem}.py"
        assert module in modules
        assert f'"{statement}"' in (ROOT / module).read_text()


def test_a_missing_name_is_found() -> None:
    text = "1. **A.** `trinity_db/store/groups.py`: `claims`; `schema/queries/groups.sql`: `start`.\n"
    assert [place for place in places(text) if place.name not in names(ROOT / place.file)] == places(text)
    assert names(ROOT / "trinity_db/store/samplers.py") >= {"Sampler.pick", "_snapshot"}
