"""`trinity-db reward`: a person, or a program, judges an experience after it was explored.

Every line of a file is checked before the store is touched, and all lines are written in one transaction. So
a file that is refused can be mended and given again.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.errors import ConfigError
from trinity_db.inspection.words import cell

if TYPE_CHECKING:
    from trinity_db.store.rewards import Judgement

# A value may be negative: -1 is no option.
CONTEXT = {"ignore_unknown_options": True}
RETRY_SECONDS = 10  # enough to get past a deadlock or a restart of the server; then the person decides
KEYS = ("experience", "value", "name", "source", "by", "weight")


def reward(
    experience: Annotated[int | None, typer.Argument(metavar="EXPERIENCE", help="Its id.")] = None,
    value: Annotated[
        float | None, typer.Argument(metavar="VALUE", help="The reward; more is better.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help='JSON lines in place of arguments: {"experience": 12, "value": 0.5}, also with name, '
            "source, by, weight. All are recorded, or none.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What is judged. Of each name the latest counts.")] = "human",
    source: Annotated[str, typer.Option(help="Who judges: what requires_reward waits for.")] = "human",
    by: Annotated[str | None, typer.Option(metavar="WHO", help="Your name; else that of your login.")] = None,
    weight: Annotated[float, typer.Option(help="The reward is the sum of values times weights.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Record how good an experience is, at any time, even long after it was trained on.

    The reward of an experience is the sum over all names. The next draw uses the new reward. A row that was
    trained on before stays trained, and reward_change_view lists it.

    Example:

        trinity-db reward 12 0.5 --by ann
    """
    if (experience is None or value is None) == (file is None) or (file and experience is not None):
        raise typer.BadParameter("give EXPERIENCE and VALUE, or --from FILE")
    common = {"name": name, "source": source, "by": by or login(), "weight": weight}
    if file is None:
        judgements = [_judgement(common | {"experience": experience, "value": value})]
    else:
        judgements = list(_read(file, common))
    changes = _record(judgements)
    if as_json:
        output.print_json(changes)
        return
    table = output.table("experience", "reward before", "after", "mean of its group")
    for change in changes:
        table.add_row(*("" if value is None else cell(value) for value in change.values()))
    output.console(sys.stdout).print(table)


def _record(judgements: "list[Judgement]") -> list[dict[str, Any]]:
    """Write them in one transaction, again where the database undid it; returns what changed."""
    from trinity_db.opening import open_database
    from trinity_db.store import rewards

    deadline = time.monotonic() + RETRY_SECONDS
    with closing(open_database()) as database:

        def record() -> list[dict[str, Any]]:
            # What is said twice, because a commit was unclear, counts once: of each name the latest.
            with database.transaction() as tx:
                return [vars(change) for change in rewards.judge(tx, judgements)]

        return database.retry(record, give_up=lambda: time.monotonic() > deadline)


def _read(file: Path, common: Mapping[str, Any]) -> "Iterator[Judgement]":
    """The judgements in a file.

    Raises:
        ConfigError: naming the first line that cannot be used, and what is wrong with it.
        ImportFileError: the file cannot be read.
    """
    from trinity_db.imports.readers import read_lines
    from trinity_db.imports.rejects import Rejected

    line = 0
    for line, _, row in read_lines(file):
        try:
            if isinstance(row, Rejected):
                raise ConfigError(row.reason)
            yield _judgement({**common, **row})
        except ConfigError as error:
            raise ConfigError(f"{file}, line {line}: {error}; nothing was recorded.") from None
    if not line:
        raise ConfigError(f"{file}: holds no lines.")


def _judgement(row: Mapping[str, Any]) -> "Judgement":
    """A checked judgement.

    Raises:
        ConfigError: a key is unknown or missing, or its value is of no use.
    """
    from trinity_db.imports.records import Unfit, number, text
    from trinity_db.store.rewards import MAX_REWARD, Judgement, check_words

    for key in row:
        if key not in KEYS:
            raise ConfigError(f"unknown key '{key}'; known: {', '.join(KEYS)}")
    for key in ("experience", "value"):
        if key not in row:
            raise ConfigError(f"'{key}' is missing")
    experience, by = row["experience"], row["by"]
    if type(experience) is not int:
        raise ConfigError("'experience' must be the id of an experience, a whole number")
    try:
        value, weight = number(row["value"], "value"), number(row["weight"], "weight")
        words = [text(row[key], key) for key in ("name", "source")]
        words += [] if by is None else [text(by, "by")]
    except Unfit as error:
        raise ConfigError(str(error)) from None
    if abs(value) * max(abs(weight), 1.0) > MAX_REWARD:
        raise ConfigError(f"'value' times 'weight' is beyond {MAX_REWARD:g}")
    check_words(words, "'name', 'source' and 'by'")
    return Judgement(experience, value, row["name"], row["source"], by, weight)


def login() -> str | None:
    """The name of the account that runs this command."""
    import getpass

    with suppress(KeyError, OSError, ImportError):  # a container may give the user no name
        return getpass.getuser()
    return None
