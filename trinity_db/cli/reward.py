"""`trinity-db reward`: a person or a program judges an experience after it was explored.

Every line of a file is checked before the store is changed, and all lines are written in one transaction. So
a rejected file can be fixed and given again.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.errors import ConfigError
from trinity_db.insight.words import cell

if TYPE_CHECKING:
    from trinity_db.store.rewards import Judgement

# A value may be negative: -1 is not an option.
CONTEXT = {"ignore_unknown_options": True}


def reward(
    experience: Annotated[int | None, typer.Argument(metavar="EXPERIENCE", help="Experience id.")] = None,
    value: Annotated[
        float | None, typer.Argument(metavar="VALUE", help="The reward; more is better.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help='JSON lines instead of arguments: {"experience": 12, "value": 0.5}, optionally name, '
            "source, by, weight. Either all are recorded, or none.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the reward. The latest of each name counts.")] = "human",
    source: Annotated[str, typer.Option(help="Kind of judge, which requires_reward may wait for.")] = "human",
    by: Annotated[str | None, typer.Option(metavar="WHO", help="Your name. Default: your login.")] = None,
    weight: Annotated[float, typer.Option(help="The reward is the sum of values times weights.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Record a reward for an experience.

    Rewards may come at any time, even long after the experience was trained on. The reward of an
    experience is the sum over all names. The next draw uses the new reward. A row that has been trained
    on stays trained, and reward_change_view lists it.

    Example:

        trinity-db reward 12 0.5 --by ann
    """
    by_file = file is not None and experience is None and value is None
    by_arguments = file is None and experience is not None and value is not None
    if not by_file and not by_arguments:
        raise typer.BadParameter("give EXPERIENCE and VALUE, or --from FILE")
    from trinity_db.api import rewards
    from trinity_db.postgres.opening import open_database

    common = {"name": name, "source": source, "by": by or login(), "weight": weight}
    if file is None:
        judgements = [rewards.judgement(common | {"experience": experience, "value": value})]
    else:
        judgements = list(_read(file, common))
    with closing(open_database()) as database:
        changes = [vars(change) for change in rewards.record(database, judgements)]
    if as_json:
        output.print_json(changes)
        return
    table = output.table("experience", "reward before", "after", "mean of its group")
    for change in changes:
        table.add_row(*("" if value is None else cell(value) for value in change.values()))
    output.console(sys.stdout).print(table)


def _read(file: Path, common: Mapping[str, Any]) -> "Iterator[Judgement]":
    """Read the judgements in a file.

    Raises:
        ConfigError: names the first invalid line, and what is wrong with it.
        ImportFileError: if the file cannot be read.
    """
    from trinity_db.api.rewards import judgement
    from trinity_db.data.files.readers import read_lines
    from trinity_db.data.rejects import Rejected

    line = 0
    for line, _, row in read_lines(file):
        try:
            if isinstance(row, Rejected):
                raise ConfigError(row.reason)
            yield judgement({**common, **row})
        except ConfigError as error:
            raise ConfigError(f"{file}, line {line}: {error}; nothing was recorded.") from None
    if not line:
        raise ConfigError(f"{file}: is empty.")


def login() -> str | None:
    """Name of the account that runs this command."""
    import getpass

    with suppress(KeyError, OSError, ImportError):  # a container may give the user no name
        return getpass.getuser()
    return None
