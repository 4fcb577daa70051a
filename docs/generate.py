"""Generates parts of the reference, and the examples of the web page: `make reference`.

A page of `docs/reference/` has hand-written parts, and regions between `<!-- generated: NAME -->` and `<!--
end of NAME -->`. Each NAME has a function here that generates the region from the code: docstrings of
settings, the commands' help, comments of tables and views, or docstrings of an algorithm's parts.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sqlalchemy import Table
from sqlalchemy.dialects import postgresql
from typer.testing import CliRunner

from trinity_db.cli import app
from trinity_db.config import keys, signatures
from trinity_db.config.base import Change, Kept, marked, sections_below
from trinity_db.data.records.columns import COLUMNS as IMPORTED_COLUMNS
from trinity_db.data.records.forms import CONVERTED, REFUSED
from trinity_db.explorer.config import RequestsConfig
from trinity_db.explorer.http.dialects import DIALECTS
from trinity_db.explorer.http.dialects.dialect import AgentDialect
from trinity_db.explorer.http.dialects.options import Effect, Option
from trinity_db.page import examples
from trinity_db.processors.config import DEFAULTS
from trinity_db.processors.lists.lists import LISTS, List
from trinity_db.run.configuration import PER_PROCESS, RunConfig
from trinity_db.schema.tables.base import Base
from trinity_db.schema.tables.models import metadata
from trinity_db.schema.views import create_sql
from trinity_db.store import processing
from trinity_db.trainer.recipes.parts.columns import COLUMNS
from trinity_db.trainer.recipes.parts.kinds import KINDS, readable
from trinity_db.trainer.recipes.recipes import RECIPES, Composition, choices

PAGES = Path(__file__).parent / "reference"
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
    """Update every page."""
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text()
        if (now := brought_up_to_date(text)) != text:
            path.write_text(now)
            print(f"{path.relative_to(Path.cwd())} changed", flush=True)
    if examples.FILE.read_text() != (now := cookbook()):
        examples.FILE.write_text(now)
        print(f"{examples.FILE.name} changed", flush=True)


def brought_up_to_date(page: str) -> str:
    """Return a page with its regions generated again."""
    return REGION.sub(lambda region: f"{region[1]}\n{REGIONS[region['name']]()}\n{region[3]}", page)


def cookbook() -> str:
    """Return the cookbook's questions and statements in the form that trinity_db/page/examples.py reads."""
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
    """Return every section of the configuration with its keys."""
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
    """List the keys that may differ when a run continues: always, with --change, and never, with the
    reason."""
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
    """Return every command with its help."""
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
    """Return every table with its columns."""
    return "\n".join(
        line
        for table in sorted(metadata.tables.values(), key=lambda table: table.name)
        for line in _table(table)
    )


def _table(table: Table) -> Iterator[str]:
    (mapped,) = (mapper.class_ for mapper in Base.registry.mappers if mapper.local_table is table)
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
    """Return every view and function with its comment."""
    return "\n".join(_views(create_sql()))


def _views(text: str) -> Iterator[str]:
    comments = {
        (object_type, name): " ".join(comment.replace("''", "'").split())
        for object_type, name, comment in re.findall(
            r"COMMENT ON (VIEW|FUNCTION|COLUMN) trinity\.([\w.]+)(?:\([^)]*\))?\s+IS\s+'((?:[^']|'')*)'", text
        )
    }
    made = re.findall(
        r"((?:^--.*\n)+)CREATE (?:OR REPLACE )?(VIEW|FUNCTION) trinity\.(\w+)(\([^)]*\))?", text, re.M
    )
    for above, object_type, name, takes in made:
        yield f"### {name}{_text(takes)}\n"
        yield f"{_text(comments.get((object_type, name)) or re.sub(r'^-- ?', '', above, flags=re.M))}\n"
        columns = {
            key.partition(".")[2]: text
            for (kind, key), text in comments.items()
            if kind == "COLUMN" and key.startswith(f"{name}.")
        }
        if columns:
            yield "| column | meaning |"
            yield "| --- | --- |"
            yield from (f"| `{column}` | {_text(meaning)} |" for column, meaning in columns.items())
            yield ""


# Algorithms


def recipes() -> str:
    """Return every recipe with its parts."""
    rows = [f"| `{name}` | {recipe.draws} | {_chosen(recipe)} |" for name, recipe in RECIPES.items()]
    return "\n".join(["| recipe | a batch holds | parts and options |", "| --- | --- | --- |", *rows, ""])


def _chosen(recipe: Composition) -> str:
    """Format the parts of a recipe, with the options that it sets."""
    return ", ".join(
        f"{key}: {' + '.join(_spelled(part) for part in (value if isinstance(value, list) else [value]))}"
        for key, value in choices(recipe).items()
    )


def _spelled(value: Any) -> str:
    if not isinstance(value, dict):
        return f"`{str(value).lower() if isinstance(value, bool) else value}`"
    options = ", ".join(f"{key} {option}" for key, option in value.items() if key != "name")
    return f"`{value['name']}`" + (f" ({options})" if options else "")


def compositions() -> str:
    """Return the options of an algorithm outside its parts."""
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
    """Return every part with its formula and options."""
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
    """Return every column that parts may read."""
    rows = [
        f"| `{column.name}` | {_text(column.shape)} | {_text(column.meaning)} |"
        for column in COLUMNS.values()
    ]
    return "\n".join(["| column | shape | meaning |", "| --- | --- | --- |", *rows])


# Imported data


def imported_columns() -> str:
    """Return the columns that an import reads, with the kinds in which they have a meaning."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for kind, fields in IMPORTED_COLUMNS.items():
        for name, groups in fields.items():
            columns = ", else ".join(" or ".join(f"`{column}`" for column in group) for group in groups)
            kinds.setdefault((name, columns), []).append(kind)
    rows = [
        f"| `{name}` | {columns} | {'all' if len(names) == len(IMPORTED_COLUMNS) else ', '.join(names)} |"
        for (name, columns), names in sorted(kinds.items())
    ]
    return "\n".join(["| field | columns | kinds |", "| --- | --- | --- |", *rows, ""])


def converted_forms() -> str:
    """Return the forms that an import converts."""
    rows = [f"| {form.name} | {_text(form.input)} | {_text(form.becomes)} |" for form in CONVERTED]
    return "\n".join(["| form | given | becomes |", "| --- | --- | --- |", *rows, ""])


def refused_data() -> str:
    """Return the data that an import refuses, with the reason that it prints."""
    rows = [f"| {_text(refusal.input)} | {_text(refusal.reason.format('a', 'b'))} |" for refusal in REFUSED]
    return "\n".join(["| given | reason, with `a` and `b` for columns |", "| --- | --- |", *rows, ""])


# Processing steps


def steps() -> str:
    """Return every built-in step with its options."""
    return "\n".join(line for processor, kind in LISTS.items() for line in _list(processor, kind))


def _list(processor: str, kind: List) -> Iterator[str]:
    yield f"### {processor}\n"
    if processor in DEFAULTS:
        yield f"The word `defaults` stands for {', '.join(f'`{name}`' for name in DEFAULTS[processor])}.\n"
    for name, function in kind.known.items():
        yield f"#### {name}\n"
        yield f"{_docstring(inspect.getdoc(function))}\n"
        reads = inspect.signature(function.__call__ if inspect.isclass(function) else function).parameters
        columns = [parameter for parameter in reads if parameter in processing.columns()]
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
    """Return every column that a step may read."""
    rows = [f"| `{name}` | {_text(meaning)} |" for name, meaning in processing.columns().items()]
    return "\n".join(["| column | what it holds |", "| --- | --- |", *rows, ""])


def request_rules() -> str:
    """Return the section explorer.requests with each key, its default and its other values."""
    lines = ["```yaml", "explorer:", "  requests:"]
    for key, field in RequestsConfig.model_fields.items():
        values = [value for part in get_args(field.annotation) for value in get_args(part) or [part]]
        texts = ["[names]" if not isinstance(value, str) else value for value in values]
        others = [text for text in texts if text != field.default]
        lines.append(f"    {f'{key}: {field.default}':27} # or {', '.join(dict.fromkeys(others))}")
    return "\n".join([*lines, "```"])


def request_options() -> str:
    """Return the table of options of each protocol."""
    return "\n".join(line for dialect in DIALECTS for line in _protocol(dialect))


def _protocol(dialect: AgentDialect) -> Iterator[str]:
    """Yield a protocol's table. Options with the same result share a row."""
    rows: dict[tuple[Effect, str], list[str]] = {}
    for path, option in sorted(dialect.options.options.items()):
        rows.setdefault((option.effect, _result(option)), []).append(f"`{path}`")
    yield f"## `POST {dialect.path}`\n"
    yield "| options | result | |"
    yield "| --- | --- | --- |"
    effects = [*Effect]
    for (effect, text), paths in sorted(rows.items(), key=lambda row: effects.index(row[0][0])):
        yield f"| {', '.join(paths)} | {effect} | {_text(text)} |"
    yield ""


def _result(option: Option) -> str:
    """Return the values that are followed, and why others are not."""
    kind = f" (`{option.kind}`)" if option.effect is Effect.REPLACED else ""
    if option.values:
        return f"followed: {option.values}. Otherwise{kind}: {option.text}"
    return f"{kind.strip()} {option.text}".strip()


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
    "imported columns": imported_columns,
    "converted forms": converted_forms,
    "refused data": refused_data,
    "steps": steps,
    "step columns": step_columns,
    "request rules": request_rules,
    "request options": request_options,
}


# Markdown


def _text(text: str | None) -> str:
    """Return a text in one line, escaped for Markdown, also in tables."""
    return _escaped(" ".join((text or "").split())).replace("|", "\\|")


def _docstring(text: str | None, leave_out: tuple[str, ...] = ()) -> str:
    """Format a docstring: its paragraphs, and its arguments as a list, except those in `leave_out`."""
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
