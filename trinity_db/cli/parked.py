"""`trinity-db parked` and `wake`: attempts that wait for a person or an experiment, and their answers."""

import json
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import output
from trinity_db.errors import ConfigError
from trinity_db.insight.words import printable

if TYPE_CHECKING:
    from trinity_db.schema.typed_rows import ParkedAttempt

CONTEXT = {"ignore_unknown_options": True}  # an answer may be negative: -1 is not an option
RETRY_SECONDS = 10  # enough for a server restart; then the command fails
COLUMNS = ("ticket", "group", "member", "parked", "continues", "state")
EXPENDABLE = ("member", "group", "continues")
STATE = 60  # characters of a state in the table; --json prints it whole


def parked(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")],
    last: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Number of attempts, longest parked first.")
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with full states.")] = False,
) -> None:
    """List the parked attempts of a run.

    They wait for an answer or for a time. Each line has the ticket for `trinity-db wake`, the time when
    the attempt was parked, the time when it continues without an answer, and the state that its workflow
    saved. An answered attempt waits for an explorer.

    Example:

        trinity-db parked my-run --json
    """
    from trinity_db.postgres.opening import open_reader
    from trinity_db.store import parks, runs

    with closing(open_reader()) as database, database.transaction(read_only=True) as tx:
        attempts = parks.parked(tx, runs.find(tx, run).id, last)
    if as_json:
        output.print_json(attempts)
    elif attempts:
        console = output.console(sys.stdout)
        console.print(
            output.fitted(COLUMNS, [_row(attempt) for attempt in attempts], console.width, EXPENDABLE)
        )
    else:
        print(f"No attempt of run '{run}' is parked.")


def wake(
    ticket: Annotated[
        int,
        typer.Argument(min=0, max=2**63 - 1, metavar="TICKET", help="Ticket number from trinity-db parked."),
    ],
    answer: Annotated[
        str | None, typer.Argument(metavar="ANSWER", help="Answer as JSON. Default: null.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="File with the answer as JSON.")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="WHO", help="Your name. Default: your login.")] = None,
) -> None:
    """Answer a parked attempt, so that an explorer continues it.

    The workflow reads the answer as policy.parked.answer. The first answer counts; repeating the same one
    changes nothing. The answer may come before the attempt is parked.

    Example:

        trinity-db wake 17 '{"right": true}' --by ann
    """
    if answer is not None and file is not None:
        raise typer.BadParameter("give ANSWER, or --from FILE")
    from trinity_db.cli.reward import login
    from trinity_db.postgres.opening import open_database
    from trinity_db.store import parks

    value = _value(answer, file)
    deadline = time.monotonic() + RETRY_SECONDS
    with closing(open_database()) as database:

        def give() -> parks.Answered:
            with database.transaction() as tx:
                return parks.answer(tx, ticket, value, by or login())

        answered = database.retry(give, give_up=lambda: time.monotonic() > deadline)
    if answered.run_state != "active":
        then = f"run '{answered.run}' is {answered.run_state}, so the attempt continues only if the run does"
    elif answered.parked_at is None:
        then = "the attempt continues as soon as it is parked"
    else:
        then = f"an explorer of run '{answered.run}' continues the attempt"
    print(f"Ticket {ticket} is answered: {then}.")


def _value(answer: str | None, file: Path | None) -> Any:
    """Read the answer.

    Raises:
        ConfigError: if it is not JSON, or the store cannot hold it.
    """
    from trinity_db.store import parks

    subject = "The answer" if file is None else f"The answer in {file}"
    try:
        text = ("null" if answer is None else answer) if file is None else file.read_text()
        value = json.loads(text)
        parks.check(value, subject)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}.") from None
    except (ValueError, TypeError, RecursionError) as error:
        hint = """; quote a text: '"yes"'""" if isinstance(error, json.JSONDecodeError) else ""
        reason = str(error) if str(error).startswith(subject) else f"{subject} is not JSON: {error}"
        raise ConfigError(f"{reason.rstrip('.')}{hint}.") from None
    return value


def _row(attempt: "ParkedAttempt") -> list[str]:
    now = datetime.now(attempt["parked_at"].tzinfo)
    state = output.shorten(printable(json.dumps(attempt["state"], ensure_ascii=False)), STATE)
    if attempt["answered_at"] is not None:
        goes_on = "answered"
    else:
        goes_on = "" if attempt["wake_at"] is None else output.clock(attempt["wake_at"], now)
    head = (str(number) for number in (attempt["ticket"], attempt["group_id"], attempt["member"]))
    return [*head, output.clock(attempt["parked_at"], now), goes_on, state]
