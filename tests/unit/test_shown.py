"""Every command, configuration and piece of Python that README.md and docs/ show is one that works."""

import ast
import importlib
import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.support.documents import LINKED, ROOT, Block, blocks, inline_commands, of_page
from trinity_db.cli import app
from trinity_db.config import base
from trinity_db.explorer.attempt import workflow
from trinity_db.processors.judging.rubric import Rubric
from trinity_db.processors.lists import lists
from trinity_db.run.configuration import RunConfig
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.recipes.recipes import RECIPES

LANGUAGES = {"sh", "yaml", "sql", "python", "json", "text"}
OTHERS = {"bash", "cat", "cd", "cp", "export", "git", "head", "kill", "ls", "pg_dump", "pg_restore", "psql"}
OTHERS |= {
    "python",
    "rm",
    "run.sh",
    "source",
    "tail",
    "tensorboard",
    "sudo",
    "systemctl",
    "initdb",
    "pgbouncer",
    "mv",
}
"""Commands that are not ours, and are taken as they are."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_a_block_says_its_language_or_why_it_is_not_checked(block: Block) -> None:
    assert block.language in LANGUAGES or block.reason


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_a_command_and_its_options_are_there(block: Block) -> None:
    assert block.commands
    assert [word for command in block.commands for word in unknown(command)] == []


@pytest.mark.parametrize(("place", "words"), inline_commands(), ids=[place for place, _ in inline_commands()])
def test_a_command_within_a_sentence_is_there(place: str, words: list[str]) -> None:
    assert unread(words, is_mention=True) == []


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_a_configuration_is_accepted(block: Block) -> None:
    for content in yaml.safe_load_all(block.text):
        if "criteria" in content:
            base.validate(Rubric, content, str(block))
            continue
        whole = completed(content)
        config = base.validate(RunConfig, whole, str(block))
        assert config.model_fields_set >= whole.keys()  # some keys choose defaults of others


@pytest.mark.parametrize("block", [one for one in blocks("yaml") if ".py:" in one.text], ids=str)
def test_a_function_that_a_configuration_names_is_on_its_page_and_fits(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for other in of_page(block.page):
        if other.file:
            Path(other.file).write_text(other.text)
    for content in yaml.safe_load_all(block.text):
        config = base.validate(RunConfig, completed(content), str(block))
        steps = [step.name for of_list in lists.load(config.processors).values() for step in of_list]
        assert steps == [step.name for name in lists.LISTS for step in getattr(config.processors, name)]
        assert callable(workflow.of(config.explorer))
        config.explorer.engine.check()
        create(config.algorithm)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_what_python_imports_of_us_is_there(block: Block) -> None:
    tree = ast.parse(block.text, str(block))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trinity_db"):
            module = importlib.import_module(node.module or "")
            assert [one.name for one in node.names if not hasattr(module, one.name)] == []


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_is_records_one_in_each_line_or_one_over_several(block: Block) -> None:
    records = block.text.splitlines() if "}\n{" in block.text else [block.text]
    assert {type(json.loads(record)) for record in records} == {dict}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_a_link_to_a_file_leads_somewhere(page: Any) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    lost = [one for one in targets if "://" not in one and not (page.parent / one).exists()]
    assert lost == []


def test_the_readme_has_at_most_ninety_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def unknown(words: list[str]) -> list[str]:
    """The words of a command for which there is no command, target or extra; an unknown option raises."""
    name, *arguments = words
    if name == "trinity-db":
        return unread(arguments)
    if name == "torchrun":
        return unread(arguments[arguments.index("trinity_db") + 1 :])
    if name == "make":
        return [one for one in arguments if "=" not in one and one not in TARGETS]
    if name == "pip":
        lists = [extras for one in arguments for extras in re.findall(r"\[([\w,]+)\]", one)]
        named = [extra for extras in lists for extra in extras.split(",")]
        return [extra for extra in named if extra not in PROJECT["optional-dependencies"]]
    return [] if name.rpartition("/")[2] in OTHERS else [name]


def unread(arguments: list[str], *, is_mention: bool = False) -> list[str]:
    """The words that our command line leaves over; what it refuses raises. Mentions may leave some out."""
    if ">" in arguments:
        arguments = arguments[: arguments.index(">")]
    command: Any = typer.main.get_command(app)
    parent, name = None, "trinity-db"
    while hasattr(command, "commands"):
        at = next((n for n, word in enumerate(arguments) if not word.startswith("-")), None)
        if at is None:
            return []
        parent = command.make_context(name, arguments[:at] or ["-v"], parent=parent, resilient_parsing=True)
        name, arguments = arguments[at], arguments[at + 1 :]
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    for key, value in itertools.pairwise(arguments):
        if key == "--set":
            check_override(value)
    left: list[str] = []
    if is_mention:
        context = command.context_class(command, info_name=name, parent=parent)
        _, left, _ = command.make_parser(context).parse_args(list(arguments))
    elif "--help" not in arguments:
        left = command.make_context(name, list(arguments), parent=parent).args
    return left


def check_override(override: str) -> None:
    """Fail where `--set` names a key that is not there, or a value that it cannot have."""
    key, _, value = override.partition("=")
    content = yaml.safe_load(value)
    for name in reversed(key.split(".")):
        content = {name: content}
    base.validate(RunConfig, completed(content), override)


def completed(piece: dict[str, Any]) -> dict[str, Any]:
    """A piece of a configuration, with what the rest of a run needs."""
    content: dict[str, Any] = dict(piece)
    algorithm = content.setdefault("algorithm", "grpo")
    name = algorithm if isinstance(algorithm, str) else algorithm["name"]
    draws = RECIPES[name].draws
    rest: dict[str, Any] = {"name": "a-run", "model": {"path": "model"}}
    if draws != "groups" or name in ("mix", "chord"):
        rest["data"] = ["rows"]
    elif "data" in content:  # it learns from the groups of another run
        return rest | content
    if draws == "groups":
        rest["taskset"] = "tasks"
        content["trainer"] = {"steps": 1} | content.get("trainer", {})
    return rest | content
