"""The notebooks of docs/notebooks are executed cell by cell, with few steps, in the store of one run."""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Store, new_store
from tests.support.documents import ROOT

FOLDER = ROOT / "docs" / "notebooks"
NUM_STEPS = 4
MAX_SECONDS = 600
pytestmark = [pytest.mark.slow, pytest.mark.timeout(MAX_SECONDS)]


@pytest.fixture(scope="module")
def executed(
    server: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, dict[str, list[Any]]]]:
    """A store, and the values of each notebook's cells. The first notebook makes the run of the others."""
    folder = tmp_path_factory.mktemp("notebooks")
    with new_store(server, template, folder) as store, pytest.MonkeyPatch.context() as patch:
        for name in ("TRINITY_DB_URL", "TRINITY_DB_HOME", "OMP_NUM_THREADS"):
            patch.setenv(name, store.environment[name])
        patch.setenv("MPLBACKEND", "agg")
        patch.chdir(folder)
        names = ("own-loop", "look-at-a-run", "judge-again")
        yield store, {name: execute(FOLDER / f"{name}.ipynb") for name in names}


def execute(notebook: Path) -> list[Any]:
    """Execute all cells. Return what Jupyter would show for each."""
    cells = json.loads(notebook.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    with cleared_away() as names:
        return [
            shown(re.sub(r"STEPS = (.*), \d+", rf"STEPS = \1, {NUM_STEPS}", text), names) for text in texts
        ]


@contextmanager
def cleared_away() -> Iterator[dict[str, Any]]:
    """The names of a notebook, whose store and processes end with it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        yield names
    finally:
        if "roles" in names and names["roles"].poll() is None:
            names["roles"].terminate()
            names["roles"].wait()
        if "store" in names:
            names["store"].close()


def shown(text: str, names: dict[str, Any]) -> Any:
    """Execute a cell. Return its last expression as HTML, or else as an object; None without one."""
    *statements, last = ast.parse(text).body
    if not isinstance(last, ast.Expr):
        exec(text, names)
        return None
    exec(compile(ast.Module(statements, []), text, "exec"), names)
    value: Any = eval(compile(ast.Expression(last.value), text, "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else value


def test_every_notebook_is_executed_and_has_no_outputs() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {"own-loop", "look-at-a-run", "judge-again"}
    for path in FOLDER.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        assert all(cell.get("outputs", []) == [] for cell in cells), f"{path}: clear its outputs"


def test_the_loop_ends_and_used_each_row_once(executed: tuple[Store, dict[str, list[Any]]]) -> None:
    store, values = executed
    assert 0 in values["own-loop"], "trinity-db run ended well"
    assert store.value("SELECT state::text FROM run WHERE name = 'own-loop'") == "finished"
    uses = "SELECT use_count, count(*) FROM experience WHERE state = 'trained' GROUP BY 1"
    assert store.rows(uses) == [{"use_count": 1, "count": 8 * 8 * NUM_STEPS}]
    assert "<td>" in values["own-loop"][-1]


def test_the_tokens_of_the_worst_rollouts_are_coloured(executed: tuple[Store, dict[str, list[Any]]]) -> None:
    _, values = executed
    assert "own-loop" in values["look-at-a-run"]
    tokens = next(text for text in values["look-at-a-run"] if str(text).startswith("<p>"))
    assert tokens.count("rgba(255, 0, 0") == 5 * 2, "two sampled tokens of each of five rollouts"


def test_corrections_are_kept_as_events(executed: tuple[Store, dict[str, list[Any]]]) -> None:
    store, _ = executed
    names = "SELECT DISTINCT name, source::text FROM reward_event ORDER BY 1"
    assert [row["name"] for row in store.rows(names)] == ["correction", "lenient", "workflow"]
    wrong = """
    SELECT count(*) FROM experience e
    WHERE e.reward <> (SELECT sum(p.share) FROM reward_part_view p
                       WHERE p.experience_id = e.id AND p.name IN ('workflow', 'correction'))
    """
    assert store.value(wrong) == 0
