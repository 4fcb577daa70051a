"""Writes the generated parts of the reference, and the examples of the web page: `make reference`.

A page of `docs/reference/` has parts that are written by hand, and regions between `<!-- generated: NAME
-->` and `<!-- end of NAME -->`. Each NAME has a function here, which makes the region from the code: from
the texts under the settings, the commands' help, the comments of tables and views, or the docstrings of an
algorithm's parts.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sqlalchemy import Table
from sqlalchemy.dialects import postgresql
from typer.testing import CliRunner

from trinity_db import keys, signatures
from trinity_db.cli import app
from trinity_db.configuration import PER_PROCESS, RunConfig
from trinity_db.page import examples
from trinity_db.processors.lists import LISTS, List
from trinity_db.schema.base import Base
from trinity_db.schema.models import metadata
from trinity_db.settings import Change, Kept, marked, sections_below
from trinity_db.store import processing
from trinity_db.trainer.parts.columns import COLUMNS
from trinity_db.trainer.parts.kinds import KINDS, readable
from trinity_db.trainer.recipes import RECIPES, Composition, choices

PAGES = Path(__file__).parent / "reference"
VIEWS = Path(__file__).parents[1] / "schema" / "views.sql"
COOKBOOK = Path(__file__).parent / "guides" / "sql-cookbook.md"
DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
REGION = re.compile(
    r"(<!-- generated: (?P<name>[a-z ]+) -->\n).*?(<!-- end of (?P=name) -->)",
    re.DOTALL,
)
ENTRY = re.compile(
    r"^## ([^\n]+)$|^\*\*(\d+\. [^\n]+?)\*\*.*?^```sql\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def main() -> None:
    """Bring every page up to date."""
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text()
        if (now := brought_up_to_date(text)) != text:
            path.write_text(now)
            print(f"{path.relative_to(Path.cwd())} changed", flush=True)
    if examples.FILE.read_text() != (now := cookbook()):
        examples.FILE.write_text(now)
        print(f"{examples.FILE.name} changed", flush=True)


def brought_up_to_date(page: str) -> str:
    """A page with its generated regions as the code has them now."""
    return REGION.sub(lambda region: f"{region[1]}\n{REGIONS[region['name']]()}\n{region[3]}", page)


def cookbook() -> str:
    """The questions of the cookbook with their statements, as trinity_db/page/examples.py reads them."""
    parts = [f"-- Written by docs/generate.py from {COOKBOOK.name}.\n-- Parts, each with its questions."]
    for heading, question, statement in ENTRY.findall(COOKBOOK.read_text()):
        if heading:
            parts.append(f"-- {heading}")
        else:
            assert "\n\n" not in statement, f"{question} has an empty line in its statement"
            parts.append(f"-- {question}\n{statement.strip().rstrip(';')}")
    return "\n\n".join(parts) + "\n"


# Configuration


def configuration() -> str:
    """Every section of the configuration with its keys."""
    return "\n".join(_section(RunConfig, ""))


def _section(section: type[BaseModel], prefix: str) -> Iterator[str]:
    name = prefix.rstrip(".")
    yield f"### `{name}`\n" if name else "### At the top\n"
    yield f"{_text(section.__doc__)}\n"
    if name == "algorithm":
        return
    yield from _keys(section, prefix)
    for key in section.model_fields:
        for below in sections_below(section, key):
            if f"{prefix}{key}" == "algorithm":
                break
            title = f"{prefix}{key}"
            if (chosen := keys.alternative(below)) is not None:
                title += f": {chosen}"
            if chosen is None or keys.options_of(below):
                yield from _section(below, f"{title}.")


def _keys(section: type[BaseModel], prefix: str, leave_out: tuple[str, ...] = ("name",)) -> Iterator[str]:
    fields = {
        key: field
        for key, field in section.model_fields.items()
        if prefix == "" or key not in leave_out or get_origin(field.annotation) is not Literal
    }
    if not fields:
        return
    yield "| key | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for key, field in fields.items():
        yield f"| `{key}` | {keys.type_of(field)} | {_default(field)} | {_text(field.description)} |"
    yield ""


def _default(field: FieldInfo) -> str:
    default = keys.default_of(field)
    return default if default in (keys.REQUIRED, "null", "") else f"`{default}`"


def may_change() -> str:
    """Which keys may differ when a run goes on: always, with --change, and never, with the reason."""
    return "\n".join(
        [
            "Each process has its own value of:\n",
            *(f"- `{key}`" for key in PER_PROCESS),
            "\nWith `--change`, for all steps and rows that follow:\n",
            *(f"- `{key}`" for key in marked(RunConfig, Change.DATED)),
            "\nNot at all, since rows that the run has written depend on them:\n",
            *(
                f"- `{key}`: {mark.because}{' (before the first step it may)' if mark.once_trained else ''}"
                for key, mark in _kept(RunConfig, "")
            ),
        ]
    )


def _kept(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, Kept]]:
    for key, field in section.model_fields.items():
        marks = [mark for mark in field.metadata if isinstance(mark, Kept)]
        yield from ((f"{prefix}{key}", mark) for mark in marks)
        if not marks:
            for below in sections_below(section, key):
                yield from _kept(below, f"{prefix}{key}.")


# Commands


def commands() -> str:
    """Every command with its help."""
    return "\n".join(_commands(typer.main.get_command(app), []))


def _commands(command: Any, path: list[str]) -> Iterator[str]:
    if path:
        yield f"{'#' * (len(path) + 1)} {' '.join(path)}\n"
    shown = CliRunner().invoke(app, [*path, "--help"], prog_name="trinity-db", env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    yield f"```text\n{shown.output.strip()}\n```\n"
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, [*path, name])


# Tables and views


def tables() -> str:
    """Every table with its columns."""
    return "\n".join(
        line for table in sorted(metadata.tables.values(), key=lambda one: one.name) for line in _table(table)
    )


def _table(table: Table) -> Iterator[str]:
    (mapped,) = (one.class_ for one in Base.registry.mappers if one.local_table is table)
    yield f"### {table.name}\n"
    yield f"{_text(table.comment or inspect.getdoc(mapped))}\n"
    yield "| column | type | meaning |"
    yield "| --- | --- | --- |"
    for column in table.columns:
        kind = column.type.compile(dialect=DIALECT).lower().removeprefix("trinity.")
        null = "" if column.nullable else ", not null"
        tables = sorted({key.column.table.name for key in column.foreign_keys})
        points_to = ", ".join(f"→ {name}" for name in tables)
        meaning = ". ".join(filter(None, (_text(column.comment), points_to)))
        yield f"| `{column.name}` | {kind}{null} | {meaning} |"
    yield ""


def views() -> str:
    """Every view and function, with its comment."""
    return "\n".join(_views(VIEWS.read_text().partition("-- create")[2]))


def _views(text: str) -> Iterator[str]:
    said = {
        (of, name): " ".join(comment.replace("''", "'").split())
        for of, name, comment in re.findall(
            r"COMMENT ON (VIEW|FUNCTION|COLUMN) trinity\.([\w.]+)(?:\([^)]*\))?\s+IS\s+'((?:[^']|'')*)'", text
        )
    }
    made = re.findall(
        r"((?:^--.*\n)+)CREATE (?:OR REPLACE )?(VIEW|FUNCTION) trinity\.(\w+)(\([^)]*\))?", text, re.M
    )
    for above, of, name, takes in made:
        yield f"### {name}{_text(takes)}\n"
        yield f"{_text(said.get((of, name)) or re.sub(r'^-- ?', '', above, flags=re.M))}\n"
        columns = {
            key.partition(".")[2]: text
            for (kind, key), text in said.items()
            if kind == "COLUMN" and key.startswith(f"{name}.")
        }
        if columns:
            yield "| column | meaning |"
            yield "| --- | --- |"
            yield from (f"| `{column}` | {_text(meaning)} |" for column, meaning in columns.items())
            yield ""


# Algorithms


def recipes() -> str:
    """Every recipe with the parts that it chooses."""
    rows = [f"| `{name}` | {recipe.draws} | {_chosen(recipe)} |" for name, recipe in RECIPES.items()]
    return "\n".join(["| recipe | a batch holds | parts and options |", "| --- | --- | --- |", *rows, ""])


def _chosen(recipe: Composition) -> str:
    """The parts of a recipe, with the options that it sets."""
    return ", ".join(
        f"{key}: {' + '.join(_spelled(one) for one in (value if isinstance(value, list) else [value]))}"
        for key, value in choices(recipe).items()
    )


def _spelled(value: Any) -> str:
    if not isinstance(value, dict):
        return f"`{str(value).lower() if isinstance(value, bool) else value}`"
    given = ", ".join(f"{key} {one}" for key, one in value.items() if key != "name")
    return f"`{value['name']}`" + (f" ({given})" if given else "")


def compositions() -> str:
    """The options of an algorithm that are not those of a part."""
    return "\n".join(
        line
        for section in dict.fromkeys(type(recipe) for recipe in RECIPES.values())
        for line in (
            f"### {section().name}\n",
            f"{_text(section.__doc__)}\n",
            *_keys(section, "algorithm.", leave_out=("name",)),
        )
    )


def parts() -> str:
    """Every part with its formula and its options."""
    return "\n".join(line for kind in KINDS for line in _kind_of_part(kind))


def _kind_of_part(kind: str) -> Iterator[str]:
    yield f"### {kind[0].upper()}{kind[1:]}\n"
    module = KINDS[kind].module
    yield f"{_docstring(module.__doc__)}\n"
    yield f"A part of your own may read: {', '.join(f'`{column}`' for column in readable(kind))}.\n"
    for name, function in KINDS[kind].functions.items():
        section = function.options  # type: ignore[attr-defined]
        yield f"#### {name}\n"
        yield f"{_docstring(inspect.getdoc(function), leave_out=tuple(section.model_fields))}\n"
        yield from _keys(section, "part.")


def columns() -> str:
    """Every column that parts may read."""
    rows = [
        f"| `{column.name}` | {_text(column.shape)} | {_text(column.meaning)} |"
        for column in COLUMNS.values()
    ]
    return "\n".join(["| column | shape | meaning |", "| --- | --- | --- |", *rows])


# Processing steps


def steps() -> str:
    """Every built-in step with its options."""
    return "\n".join(line for processor, kind in LISTS.items() for line in _list(processor, kind))


def _list(processor: str, kind: List) -> Iterator[str]:
    yield f"### {processor}\n"
    if kind.defaults:
        yield f"The word `defaults` stands for {', '.join(f'`{name}`' for name in kind.defaults)}.\n"
    for name, function in kind.known.items():
        yield f"#### {name}\n"
        yield f"{_docstring(inspect.getdoc(function))}\n"
        reads = inspect.signature(function.__call__ if inspect.isclass(function) else function).parameters
        columns = [one for one in reads if one in processing.columns()]
        yield f"Reads {', '.join(f'`{column}`' for column in columns)}.\n"
        if options := signatures.declared(function, columns):
            yield "| option | type | default |"
            yield "| --- | --- | --- |"
            yield from (
                f"| `{option}` | {keys.type_of(field)} | {_default(field)} |"
                for option, field in options.items()
            )
            yield ""


def step_columns() -> str:
    """Every column that a step may read."""
    rows = [f"| `{name}` | {_text(meaning)} |" for name, meaning in processing.columns().items()]
    return "\n".join(["| column | what it holds |", "| --- | --- |", *rows, ""])


REGIONS: dict[str, Callable[[], str]] = {
    "configuration": configuration,
    "may change": may_change,
    "commands": commands,
    "tables": tables,
    "views": views,
    "recipes": recipes,
    "columns": columns,
    "compositions": compositions,
    "parts": parts,
    "steps": steps,
    "step columns": step_columns,
}


# Markdown


def _text(text: str | None) -> str:
    """One line of text, escaped so that Markdown shows it as it stands, in a table too."""
    return _escaped(" ".join((text or "").split())).replace("|", "\\|")


def _docstring(text: str | None, leave_out: tuple[str, ...] = ()) -> str:
    """A docstring: its paragraphs, and its arguments as a list, except those left out."""
    written = (
        _arguments(paragraph, leave_out) if paragraph.startswith("Args:") else _escaped(paragraph)
        for paragraph in inspect.cleandoc(text or "").split("\n\n")
        if not paragraph.startswith("Sources are")
    )
    return "\n\n".join(filter(None, written))


def _arguments(paragraph: str, leave_out: tuple[str, ...]) -> str:
    return "\n".join(
        f"- `{name}`: {_escaped(text)}"
        for name, text in signatures.arguments(paragraph).items()
        if name not in leave_out
    )


def _escaped(text: str) -> str:
    code = re.compile(r"(`[^`]*`)")
    return "".join(
        piece if code.match(piece) else re.sub(r"([*_\[\]])", r"\\\1", piece).replace("<", "&lt;")
        for piece in code.split(text)
    )


if __name__ == "__main__":
    main()
