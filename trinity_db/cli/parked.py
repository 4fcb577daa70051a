"""`trinity-db parked` and `wake`: attempts that wait for a person or an experiment, and their answers."""

import json
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.errors import ConfigError
from trinity_db.inspection.words import printable

CONTEXT = {"ignore_unknown_options": True}  # an answer may be negative: -1 is no option
RETRY_SECONDS = 10  # enough to get past a restart of the server; then the person decides
COLUMNS = ("ticket", "group", "member", "parked", "goes on", "state")
EXPENDABLE = ("member", "group", "goes on")
STATE = 60  # characters of a state in the table; --json has all of it


def parked(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    last: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="How many, the longest parked first.")
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with whole states.")] = False,
) -> None:
    """List the attempts of a run that are parked: they wait for an answer, or for a time.

    Each line has the ticket by which `trinity-db wake` gives the answer, since when the attempt is parked,
    when it goes on without an answer, and the state that its workflow gave. One that is answered waits for an
    explorer.

    Example:

        trinity-db parked my-run --json
    """
    from trinity_db.opening import open_reader
    from trinity_db.store import parks, runs

    with closing(open_reader()) as database, database.transaction(read_only=True) as tx:
        found = parks.parked(tx, runs.find(tx, run).id, last)
    if as_json:
        output.print_json(found)
    elif found:
        console = output.console(sys.stdout)
        console.print(output.fitted(COLUMNS, [_row(one) for one in found], console.width, EXPENDABLE))
    else:
        print(f"No attempt of run '{run}' is parked.")


def wake(
    ticket: Annotated[
        int,
        typer.Argument(
            min=0, max=2**63 - 1, metavar="TICKET", help="Number of a park, as trinity-db parked lists it."
        ),
    ],
    answer: Annotated[
        str | None, typer.Argument(metavar="ANSWER", help="The answer as JSON; null if it is left out.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A file that holds the answer as JSON.")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="WHO", help="Your name; else that of your login.")] = None,
) -> None:
    """Answer a parked attempt, which an explorer of its run then goes on with.

    The workflow reads the answer as policy.parked.answer. The first answer counts; the same one again changes
    nothing. It may come before the attempt parks.

    Example:

        trinity-db wake 17 '{"right": true}' --by ann
    """
    if answer is not None and file is not None:
        raise typer.BadParameter("give ANSWER, or --from FILE")
    from trinity_db.cli.reward import login
    from trinity_db.opening import open_database
    from trinity_db.store import parks

    value = _value(answer, file)
    deadline = time.monotonic() + RETRY_SECONDS
    with closing(open_database()) as database:

        def give() -> parks.Answered:
            with database.transaction() as tx:
                return parks.answer(tx, ticket, value, by or login())

        given = database.retry(give, give_up=lambda: time.monotonic() > deadline)
    if given.run_state != "active":
        then = f"run '{given.run}' is {given.run_state}, so it goes on only if the run does"
    elif given.parked_at is None:
        then = "it goes on as soon as it parks"
    else:
        then = f"an explorer of run '{given.run}' goes on with it"
    print(f"Ticket {ticket} is answered: {then}.")


def _value(answer: str | None, file: Path | None) -> Any:
    """The answer.

    Raises:
        ConfigError: it is no JSON, or the store cannot hold it.
    """
    from trinity_db.store import parks

    what = "The answer" if file is None else f"The answer in {file}"
    try:
        text = ("null" if answer is None else answer) if file is None else file.read_text()
        value = json.loads(text)
        parks.check(value, what)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}.") from None
    except (ValueError, TypeError, RecursionError) as error:
        hint = """; a text has quotes, as in '"yes"'""" if isinstance(error, json.JSONDecodeError) else ""
        said = str(error) if str(error).startswith(what) else f"{what} is no JSON: {error}"
        raise ConfigError(f"{said.rstrip('.')}{hint}.") from None
    return value


def _row(one: dict[str, Any]) -> list[str]:
    now = datetime.now(one["parked_at"].tzinfo)
    state = output.shorten(printable(json.dumps(one["state"], ensure_ascii=False)), STATE)
    if one["answered_at"] is not None:
        goes_on = "answered"
    else:
        goes_on = "" if one["wake_at"] is None else output.clock(one["wake_at"], now)
    head = (str(one[name]) for name in ("ticket", "group_id", "member"))
    return [*head, output.clock(one["parked_at"], now), goes_on, state]
