"""`trinity-db config`: create, explain, show, check and complete configurations."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.cli.roles import Config, Overrides
from trinity_db.insight.words import printable, scalar

app = typer.Typer(help="Create, explain, show and check configurations.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Kind(StrEnum):
    """Lists of `config list`."""

    RECIPES = "recipes"
    PARTS = "parts"


class Purpose(StrEnum):
    """Purposes of a starting file."""

    GRPO = "grpo"
    DPO = "dpo"
    AGENT = "agent"


def _keys(incomplete: str) -> list[str]:
    """Keys that the shell offers as completions."""
    from trinity_db.cli.explained import names

    return [name for name in names() if name.startswith(incomplete)]


@app.command()
def new(
    purpose: Annotated[
        Purpose,
        typer.Option("--for", help="grpo: tasks and a reward; dpo: pairs; agent: a workflow of your own."),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="New file. Default: stdout.")
    ] = None,
) -> None:
    """Write a starting configuration in which each key is explained.

    The file is complete: it lists what to import first, and then it runs. An existing file is not
    overwritten.

    Example:

        trinity-db config new --for grpo --output first-run.yaml
    """
    from trinity_db.run import starting_file

    text = starting_file.text(purpose.value, f"my-{purpose.value}" if name is None else name)
    if out is None:
        print(text, end="")
    else:
        starting_file.write(text, out)


@app.command()
def explain(
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="Path of a key, or a recipe or part.", autocompletion=_keys),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain a key: text, type, default, sub-keys, and whether it may change during a run.

    KEY is a path such as trainer.reference, or the name of a recipe or part, such as grpo or ppo_clip. A name
    that occurs in several sections is explained for each. Without KEY: the top-level keys.

    Example:

    \b
        trinity-db config explain trainer.reference
        trinity-db config explain algorithm.kl.coefficient
    """
    from trinity_db.cli import explained

    explanations = explained.explain(key) if key is not None else explained.top()
    if as_json:
        output.print_json([explanation.to_json() for explanation in explanations])
    else:
        print("\n\n".join("\n".join(explanation.lines()) for explanation in explanations))


@app.command("list")
def list_(
    kind: Annotated[
        Kind | None, typer.Argument(metavar="[recipes|parts]", help="Which list. Default: both.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List recipes with their parts, and parts with their options.

    Example:

        trinity-db config list recipes
    """
    from trinity_db.cli import explained

    wanted = [kind] if kind is not None else list(Kind)
    tables = {
        kind.value: explained.recipes() if kind is Kind.RECIPES else explained.parts() for kind in wanted
    }
    if as_json:
        output.print_json(tables)
        return
    for index, (title, rows) in enumerate(tables.items()):
        if index:
            print()
        if len(tables) > 1:
            print(f"{title}\n")
        _table(rows)


@app.command()
def show(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG|RUN", help="A YAML file, or the name of a run in the store.")
    ],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Print the value of each key, and where it comes from.

    A value comes from the file, from --set, from the recipe, or is the default. For a run: its stored
    configuration, and what was changed when.

    Example:

    \b
        trinity-db config show configs/gsm8k/explore.yaml
        trinity-db config show gsm8k-explore
    """
    from trinity_db.run import value_origins

    values = value_origins.of(config, overrides or ())
    if as_json:
        output.print_json({entry.key: {"value": entry.value, "from": entry.origin} for entry in values})
    else:
        _table(
            [{"key": entry.key, "value": _in_a_line(entry.value), "from": entry.origin} for entry in values]
        )


@app.command()
def check(config: Config, overrides: Overrides = None) -> None:
    """Check a configuration, as run does before it starts.

    Checks the keys, the model's folder and your functions. It opens no store: whether data sets and tasks are
    imported is checked when the run starts. Prints one line on stderr for each mistake, with exit code 1.
    Without mistakes it prints a sample question as the model reads it, with its special tokens and the tokens
    that end a response.

    Example:

        trinity-db config check configs/gsm8k/explore.yaml
    """
    from trinity_db.run import checks, first_task

    mistakes = checks.mistakes(config, overrides or ())
    for mistake in mistakes:
        print(f"error: {config}: {' '.join(mistake.split())}", file=sys.stderr)
    if mistakes:
        raise typer.Exit(1)
    lines, warning = first_task.of_file(config, overrides or ())
    print("\n".join(lines))
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{config}: no mistakes found")


@app.command()
def schema() -> None:
    """Print a JSON schema of configurations, for completion and checks in editors.

    In VS Code with the YAML extension, and in other editors with yaml-language-server, name it in the first
    line of a configuration: # yaml-language-server: $schema=trinity-db.schema.json

    Example:

        trinity-db config schema > trinity-db.schema.json
    """
    from trinity_db.run.json_schema import schema as made

    print(json.dumps(made(), indent=2, ensure_ascii=False))


def _table(rows: list[dict[str, Any]]) -> None:
    """Print rows with the same keys as a table, with lists in one cell."""
    table = output.table(*rows[0])
    for row in rows:
        table.add_row(*(printable(_cell(value)) for value in row.values()))
    output.console(sys.stdout).print(table)


def _in_a_line(value: Any) -> str:
    text = scalar(value)
    return text if text.isprintable() else json.dumps(value, ensure_ascii=False)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {output.spelled(item)}" for key, item in value.items())
    return str(value)
