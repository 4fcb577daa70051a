"""`trinity-db page`: the web page of a store, on this machine only or for named people."""

import importlib.util
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from trinity_db.page.access import Visitors
    from trinity_db.page.keyring import Keyring
    from trinity_db.page.listening import Listening
    from trinity_db.page.origin import Origin
    from trinity_db.page.writer import Writer
    from trinity_db.processors.jobs.semantic_search import Models

Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free port.")]
By = Annotated[
    str | None,
    typer.Option(
        metavar="WHO", help="Your name: give verdicts, start and stop runs, with the login of TRINITY_DB_URL."
    ),
]
People = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File with a line per person, such as ann: label. Rights: look, label, manage."
    ),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on, instead of 127.0.0.1.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Address that browsers open, if not http://HOST:PORT: a proxy's."),
]
NewKey = Annotated[
    str | None,
    typer.Option(metavar="WHO", help="Replace a person's key, print the address, and exit."),
]

Configs = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration of a run whose step embed names the model for searches by words; "
        "may be repeated.",
    ),
]


def page(
    port: Port = 8411,
    by: By = None,
    people: People = None,
    host: Host = None,
    address: Address = None,
    new_key: NewKey = None,
    config: Configs = None,
) -> None:
    """Show the store in a browser, until Ctrl-C.

    Shows runs with their curves, experiences by filters, groups side by side, each experience with its
    conversation and its tokens, and what waits for people. It reads with the same login as `trinity-db sql`.
    With --by you can also give verdicts, and start runs in this folder and stop them. The page listens on
    this machine only, and only for browsers that open the printed address with its key. From another machine:
    ssh -L 8411:127.0.0.1:8411 HOST, then open the same address there. With --people each person has a key and
    a right, and --host admits other machines.

    Example:

        trinity-db page
    """
    if importlib.util.find_spec("nicegui") is None:
        raise MissingExtra("page", "nicegui")
    from trinity_db.cli.search import embedding_models
    from trinity_db.config.base import home
    from trinity_db.page.keyring import Keyring

    _check_people(people, by, {"--host": host, "--address": address, "--new-key": new_key})
    listening = _listening(host, port, address)
    keyring = None if people is None else Keyring(people, home())
    if keyring is not None and new_key is not None:
        _renew(keyring, listening, new_key)
        return
    models = embedding_models(config or ())
    try:
        if keyring is None:
            _serve_one(by, models, listening)
        else:
            _serve_people(keyring, models, listening)
    except KeyboardInterrupt:
        return


def _check_people(people: Path | None, by: str | None, options: dict[str, str | None]) -> None:
    """Refuse options that do not go together.

    Raises:
        ConfigError: explains what to write instead.
    """
    if people is not None and by is not None:
        raise ConfigError("--by is for a page of one person: with --people, write your name into that file.")
    if people is None and (only := [name for name, value in options.items() if value is not None]):
        raise ConfigError(
            f"{only[0]} needs named people: write a file with a line for each, such as 'ann: manage', and "
            "name it with --people FILE."
        )


def _listening(host: str | None, port: int, address: str | None) -> "Listening":
    from trinity_db.page.listening import HERE, Listening
    from trinity_db.page.origin import Origin

    origin = None if address is None else Origin.read(address)
    return Listening(HERE if host is None else host, port, origin)


def _renew(keyring: "Keyring", listening: "Listening", name: str) -> None:
    """Make a new key, whether or not the page is running."""
    if listening.address is None and listening.port == 0:
        raise ConfigError("--new-key prints an address: give the page's --port, or its --address.")
    print(_line(name, listening.origin(listening.port), keyring.renew(name)))


def _serve_one(by: str | None, models: "Models", listening: "Listening") -> None:
    """Serve the page to the person who starts it."""
    from trinity_db.page.access import hashed, new_key
    from trinity_db.page.rights import Right, Visitor
    from trinity_db.store.rewards import check_words

    if by is not None:
        check_words([by], "'--by'")
    key = new_key()
    visitors = {hashed(key): Visitor(by, Right.LOOK if by is None else Right.MANAGE)}

    def announce(origin: "Origin") -> None:
        print(f"Open {origin}/?key={key}\nPress Ctrl-C to end the page.", flush=True)

    _serve(lambda: visitors, by is not None, models, listening, announce)


def _serve_people(keyring: "Keyring", models: "Models", listening: "Listening") -> None:
    """Serve the page to people, each with a separate key."""
    from trinity_db.page.rights import Right

    def announce(origin: "Origin") -> None:
        for name, key in keyring.complete().items():
            print(_line(name, origin, key))
        people = [
            f"{visitor.name} ({visitor.right.word})"
            for visitor in keyring.visitors().values()
            if visitor.right
        ]
        print(f"{origin} is open to {', '.join(people)}.\nPress Ctrl-C to end the page.", flush=True)

    if listening.warning is not None:
        print(listening.warning, file=sys.stderr, flush=True)
    _serve(keyring.visitors, keyring.has(Right.LABEL), models, listening, announce)


def _line(name: str, origin: "Origin", key: str) -> str:
    """Line for one person, which nobody else may see."""
    return f"For {name}: {origin}/?key={key}"


def _serve(
    visitors: "Visitors",
    writes: bool,
    models: "Models",
    listening: "Listening",
    announce: "Callable[[Origin], None]",
) -> None:
    from trinity_db.page.reader import STATEMENT_SECONDS
    from trinity_db.page.server import serve
    from trinity_db.postgres.connection import connect
    from trinity_db.postgres.logins import refuse_writer
    from trinity_db.postgres.opening import open_reader

    with ExitStack() as opened:
        database = opened.enter_context(closing(open_reader(STATEMENT_SECONDS)))
        with closing(connect(database.url)) as connection:
            refuse_writer(connection, "the page")
        writer = opened.enter_context(closing(_writer())) if writes else None
        serve(database, writer, visitors, models, listening, announce)


def _writer() -> "Writer":
    """Open the writer, with a login that may store verdicts."""
    from trinity_db.page.writer import WRITE_SECONDS, Writer
    from trinity_db.postgres.connection import connect
    from trinity_db.postgres.logins import check_labeller
    from trinity_db.postgres.opening import open_database

    database = open_database(statement_seconds=WRITE_SECONDS)
    with closing(connect(database.url)) as connection:
        check_labeller(connection)
    return Writer(database)
