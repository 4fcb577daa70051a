"""The documents tell the truth: what they must name is read from the code."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from docs import generate
from trinity_db.cli import app
from trinity_db.config import base
from trinity_db.page import examples
from trinity_db.run.configuration import RunConfig
from trinity_db.schema.states import ExperienceState
from trinity_db.schema.views import create_sql
from trinity_db.trainer.recipes.recipes import RECIPES

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A section of the configuration and all below it."""
    yield model
    for field in model.model_fields.values():
        pending = [field.annotation]
        while pending:
            annotation = pending.pop()
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                yield from sections(annotation)
            pending.extend(get_args(annotation))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert base.load(RunConfig, path).name


def test_there_are_configurations_to_load() -> None:
    assert CONFIGS


def test_the_text_of_the_setting_names_every_algorithm() -> None:
    text = RunConfig.model_fields["algorithm"].description or ""
    assert set(RECIPES) <= set(re.findall(r"\w+", text))


def test_every_key_of_the_configuration_is_explained() -> None:
    silent = [
        f"{section.__name__}.{name}"
        for section in set(sections(RunConfig))
        for name, field in section.model_fields.items()
        if not field.description and get_origin(field.annotation) is not Literal  # an algorithm's own name
    ]
    assert silent == []


def test_the_page_of_states_names_every_state() -> None:
    text = (ROOT / "docs" / "how-it-works" / "states.md").read_text()
    assert {state.value for state in ExperienceState if f"`{state.value}`" not in text} == set()


@pytest.mark.parametrize("page", sorted(generate.PAGES.glob("*.md")), ids=lambda page: page.name)
def test_what_is_generated_of_a_page_is_what_the_code_says_now(page: Path) -> None:
    text = page.read_text()
    assert generate.brought_up_to_date(text) == text, "run: make reference"


def test_the_examples_of_the_page_are_the_questions_of_the_cookbook() -> None:
    assert generate.cookbook() == examples.FILE.read_text(), "run: make reference"
    numbered = re.findall(r"^\*\*\d+\. (.+?)\*\*", generate.COOKBOOK.read_text(), re.MULTILINE)
    assert [one.question for one in examples.examples(None)] == numbered
    assert all("'larger'" not in one.statement for one in examples.examples("o'run"))


def test_the_glossary_defines_each_word_once() -> None:
    words = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert [word for word in words if words.count(word) > 1] == []


def test_the_page_of_algorithms_says_what_other_trainers_call_each() -> None:
    text = (generate.PAGES / "algorithms.md").read_text()
    table = text.partition("## What other trainers call them")[2].partition("Options and defaults")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(RECIPES)


def test_the_page_of_the_configuration_names_every_environment_variable() -> None:
    text = (generate.PAGES / "configuration.md").read_text()
    code = (path.read_text() for path in (ROOT / "trinity_db").rglob("*.py"))
    read = {name for one in code for name in re.findall(r"TRINITY_DB_[A-Z_]+", one)}
    assert {name for name in read if f"`{name}`" not in text} == {
        *("TRINITY_DB_SUPERVISOR", "TRINITY_DB_INTERRUPTED")
    }  # between processes


def test_every_part_that_is_generated_stands_on_a_page() -> None:
    named = [
        region["name"]
        for page in generate.PAGES.glob("*.md")
        for region in generate.REGION.finditer(page.read_text())
    ]
    assert sorted(named) == sorted(generate.REGIONS)


def test_examples_that_sort_by_reward_put_rows_without_one_last() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "trinity_db/cli").glob("*.py")]
    examples = [found for path in texts for found in _sorted_by_reward(path.read_text())]
    views = [line for line in create_sql().splitlines() if line.startswith("--")]
    examples += _sorted_by_reward(" ".join(line.removeprefix("--") for line in views))
    assert examples, "there is one at least"
    assert [found for found in examples if "nulls last" not in found] == []


def _sorted_by_reward(text: str) -> list[str]:
    return re.findall(r"order by [\w., ]*\breward\w* desc(?: nulls last)?", text.lower())


def test_the_page_of_the_installation_names_every_extra_for_users() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", page, re.M) for name in re.findall("`([a-z-]+)`", row)
    }
    assert declared.keys() - {"dev", "docs"} <= named


def test_the_changelog_names_every_command() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    commands = {command.name for command in app.registered_commands} | {g.name for g in app.registered_groups}
    assert {
        name for name in commands if f"`{name}`" not in text and f"trinity-db {name}" not in text
    } == set()


def test_no_example_names_a_configuration_that_does_not_exist() -> None:
    named = {
        word.strip("`'\",.:")
        for path in [ROOT / "README.md", *(ROOT / "trinity_db" / "cli").glob("*.py")]
        for word in path.read_text().split()
        if word.startswith(("configs/", "`configs/")) and word.rstrip("`").endswith((".yaml", ".sh"))
    }
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()
