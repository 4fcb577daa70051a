"""`trinity-db label`: people judge rows and pairs of a run, here or in another program."""

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity_db.cli import label_files, output
from trinity_db.errors import ConfigError, LeaseLost, NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from trinity_db.cli.label_screen import Keys
    from trinity_db.people.session import Session
    from trinity_db.postgres.connection import Database
    from trinity_db.store.reviews import Question
    from trinity_db.store.runs import Run
    from trinity_db.store.verdicts import ReviewClaim

QUIT = {"q": "quit"}


def label(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run or data set.")],
    pairs: Annotated[bool, typer.Option("--pairs", help="Compare two responses per group.")] = False,
    ask: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Add rows to the queue, and exit: an SQL condition on the columns of experience_view.",
        ),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(metavar="FORM", help="Write the queue for another program: label_studio or argilla."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for --export. Default: stdout.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Read verdicts from an export of that program."),
    ] = None,
    verdicts: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Verdicts per item. Default: people.verdicts."),
    ] = None,
    grades: Annotated[
        str | None,
        typer.Option(metavar="N-N", help="Grades of rows, such as 1-5. Default: those in people."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the reward.")] = "human",
    weight: Annotated[float, typer.Option(help="Weight of the verdicts in the reward; 0: none.")] = 1.0,
    scores: Annotated[bool, typer.Option("--scores", help="Show rewards before the verdict.")] = False,
    by: Annotated[str | None, typer.Option(metavar="WHO", help="Your name. Default: your login.")] = None,
) -> None:
    """Label rows or pairs of a run with single keystrokes.

    Shows rows that a run with requires_reward waits for, and rows that --ask added to the queue. With --pairs
    it shows two responses to a prompt, in random order. Each verdict is stored at once and affects the next
    draw. Several people may judge at the same time. Without a TTY it reads one key per line from stdin. The
    options from --verdicts to --weight apply to items that enter the queue now.

    Example:

        trinity-db label my-run --by ann
    """
    if (ask is not None) + (export is not None) + (file is not None) > 1:
        raise typer.BadParameter("give one of --ask, --export and --from")
    if export is not None and export not in label_files.FORMS:
        raise typer.BadParameter(f"--export supports {' and '.join(label_files.FORMS)}, not '{export}'")
    if to is not None and export is None:
        raise typer.BadParameter("--to needs --export")
    if ask is not None and pairs:
        raise typer.BadParameter("--pairs selects its pairs itself: leave out --ask")
    from trinity_db.postgres.opening import open_database
    from trinity_db.store import runs

    with closing(open_database()) as database:
        with database.transaction() as tx:
            run_row = runs.find(tx, run)
        runs.check_stays(run_row)
        options = {"verdicts": verdicts, "name": name, "weight": weight, **_grades(grades)}
        question = _question(run_row.config, options)
        if ask is not None:
            _ask(database, run_row, ask, question)
        elif export is not None:
            label_files.export(database, run_row, export, to, pairs, question)
        elif file is not None:
            label_files.import_(database, run_row, file)
        else:
            _judge(database, run_row, pairs, question, _author(by), scores)


def _grades(grades: str | None) -> dict[str, int]:
    if grades is None:
        return {}
    lowest, _, highest = grades.partition("-")
    if not (len(lowest) == len(highest) == 1 and (lowest + highest).isdecimal() and lowest < highest):
        raise typer.BadParameter(f"--grades {grades}: give two digits, the worst grade first, such as 1-5")
    return {"lowest": int(lowest), "highest": int(highest)}


def _question(config: Mapping[str, Any], options: Mapping[str, Any]) -> "Question":
    """Return what people are asked: from the command's options, or else from the run's configuration.

    Raises:
        ConfigError: if the name or the weight is invalid.
    """
    from trinity_db.people.question import question
    from trinity_db.store.rewards import MAX_REWARD, check_words

    check_words([options["name"]], "'--name'")
    if not abs(options["weight"]) <= MAX_REWARD / 10:
        raise ConfigError(f"--weight must be a number up to {MAX_REWARD / 10:g}.")
    return question(config, options)


def _author(by: str | None) -> str:
    from trinity_db.cli.reward import login
    from trinity_db.store.rewards import check_words

    author = by or login()
    if author is None:
        raise ConfigError("Your login has no name: give your name with --by.")
    check_words([author], "'--by'")
    return author


def _ask(database: "Database", run: "Run", condition: str, question: "Question") -> None:
    from trinity_db.store import reviews

    with database.transaction(read_only=True) as tx:
        ids = reviews.find_rows(tx, run, condition)
    with database.transaction() as tx:
        num_new = reviews.ask_rows(tx, run.id, ids, question)
    print(f"{len(ids)} rows of '{run.name}' meet the condition; {num_new} of them are new in the queue.")


def _judge(
    database: "Database", run: "Run", pairs: bool, question: "Question", author: str, scores: bool
) -> None:
    from trinity_db.cli.label_screen import Keys
    from trinity_db.people.session import Session

    session = Session(database, run, author, pairs, question)
    keys = Keys()
    with _ending(keys, session):
        while True:
            claim = session.current()
            if claim is None:
                goes_on = _at_the_end(session, keys)
            else:
                goes_on = _judge_claim(output.console(sys.stdout), session, keys, claim, scores)
            if not goes_on:
                break
    left = session.progress()
    print(f"Verdicts: {max(session.verdicts, 0)}. Left to judge: {left.waiting} of {left.open}.")


@contextmanager
def _ending(keys: "Keys", session: "Session") -> Iterator[None]:
    """Context that restores the terminal and releases the claims, however it ends."""

    def end(number: int, _: Any) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        keys.restore()
        for number, handler in before.items():
            signal.signal(number, handler)
        session.close()


def _judge_claim(
    console: "Console", session: "Session", keys: "Keys", claim: "ReviewClaim", scores: bool
) -> bool:
    """Let the person judge one claim, or undo the last verdict; False to quit."""
    from trinity_db.cli.label_screen import END, print_claim
    from trinity_db.people import keys as known

    kind = "pair" if claim.is_pair else "row"
    print_claim(console, claim, f"{kind} {'/'.join(map(str, sorted(claim.experience_ids)))}, {claim.name}")
    if scores:
        _print_rewards(console, session, claim)
    words = {**known.answers(claim), **known.MOVES, **QUIT}
    keys.listen()
    console.print("  ".join(f"{key}:{word}" if word else key for key, word in words.items()))
    session.begin()
    session.prepare()
    while True:
        key = keys.wait(5)
        if key is None:
            session.renew()
        elif key in ("q", END):
            return False
        elif key == known.REWARDS:
            _print_rewards(console, session, claim)
        elif key == known.UNDO:
            _undo(session)
            if session.current() is not claim:
                return True
        elif known.is_verdict(claim, key):
            _decide(session, claim, key)
            return True
        elif not keys.is_terminal:
            raise ConfigError(
                f"Line {keys.line} of the input: {key!a:.40} is not a key; use one of: {', '.join(words)}."
            )


def _undo(session: "Session") -> None:
    """Undo the last verdict if possible, and print the outcome."""
    try:
        taken_back = session.undo()
    except ConfigError as error:
        print(f"It was not undone. {error}")
        return
    print("The last verdict was undone." if taken_back else "There is no verdict to undo.")


def _at_the_end(session: "Session", keys: "Keys") -> bool:
    """Print that the queue is empty, and let the person undo the last verdict; False to quit."""
    from trinity_db.cli.label_screen import END

    waits = "judged everything that waited for you" if session.verdicts else "have nothing to judge"
    print(f"You {waits} in '{session.run.name}': {label_files.remedy(session.run, session.pairs)}.")
    if not session.verdicts and not session.progress().verdicts:
        return False
    keys.listen()
    print("u:undo  q:quit", flush=True)
    while True:
        key = keys.wait(5)
        if key == "u":
            _undo(session)
            if session.current() is not None:
                return True
        elif key in ("q", END) or (key is not None and not keys.is_terminal):
            return False


def _decide(session: "Session", claim: "ReviewClaim", key: str) -> None:
    from trinity_db.people import keys

    try:
        session.decide(session.verdict(key))
    except (LeaseLost, NotFound) as error:
        print(f"It was not stored. {error}")
        return
    print(keys.description(claim, key))


def _print_rewards(console: "Console", session: "Session", claim: "ReviewClaim") -> None:
    from trinity_db.cli.label_screen import print_rewards

    print_rewards(console, claim, session.rewards())
