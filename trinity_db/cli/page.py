"""`trinity-db page`: a web page on the store, for this machine alone."""

import importlib.util
from contextlib import ExitStack, closing
from typing import Annotated

import typer


def page(
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any that is free.")
    ] = 8411,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WHO", help="Your name: give verdicts on the page, by the login of TRINITY_DB_URL."
        ),
    ] = None,
) -> None:
    """Show the store in a browser, until Ctrl-C.

    Runs with their curves, experiences by filters, groups side by side, each experience with its
    conversation and its tokens, and what waits for people. It reads by the login that `trinity-db sql` reads
    by, and writes nothing but the verdicts of the person that --by names. It answers on this machine alone,
    and only browsers that bring the key in the printed address. For another machine:
    ssh -L 8411:127.0.0.1:8411 HOST, then open the same address there.

    Example:

        trinity-db page
    """
    from trinity_db.errors import MissingExtra

    if importlib.util.find_spec("nicegui") is None:
        raise MissingExtra("page", "nicegui")
    from trinity_db.cli.reward import check_words
    from trinity_db.database import connect
    from trinity_db.opening import open_database, open_reader
    from trinity_db.page.reader import STATEMENT_SECONDS
    from trinity_db.page.server import serve
    from trinity_db.page.writer import Writer
    from trinity_db.privileges import check_labeller, refuse_writer

    if by is not None:
        check_words([by], "'--by'")

    def announce(address: str) -> None:
        print(f"Open {address}\nCtrl-C ends it.", flush=True)

    try:
        with ExitStack() as opened:
            database = opened.enter_context(closing(open_reader(STATEMENT_SECONDS)))
            with closing(connect(database.url)) as connection:
                refuse_writer(connection, "the page")
            writer = None
            if by is not None:
                writer = opened.enter_context(closing(Writer(open_database(), by)))
                with closing(connect(writer.database.url)) as connection:
                    check_labeller(connection)
            serve(database, writer, port, announce)
    except KeyboardInterrupt:
        return
