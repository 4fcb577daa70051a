"""`trinity-db page`: a web page on the store, for this machine alone."""

import importlib.util
from contextlib import closing
from typing import Annotated

import typer


def page(
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any that is free.")
    ] = 8411,
) -> None:
    """Show the store in a browser, until Ctrl-C.

    Runs with their curves, experiences by filters, groups side by side, and each experience with its
    conversation and its tokens. It only reads, by the login that `trinity-db sql` reads by. It answers on
    this machine alone, and only browsers that bring the key in the printed address. For another machine:
    ssh -L 8411:127.0.0.1:8411 HOST, then open the same address there.

    Example:

        trinity-db page
    """
    from trinity_db.errors import MissingExtra

    if importlib.util.find_spec("nicegui") is None:
        raise MissingExtra("page", "nicegui")
    from trinity_db.database import connect
    from trinity_db.opening import open_reader
    from trinity_db.page.reader import STATEMENT_SECONDS
    from trinity_db.page.server import serve
    from trinity_db.privileges import refuse_writer

    def announce(address: str) -> None:
        print(f"Open {address}\nCtrl-C ends it.", flush=True)

    try:
        with closing(open_reader(STATEMENT_SECONDS)) as database:
            with closing(connect(database.url)) as connection:
                refuse_writer(connection, "the page")
            serve(database, port, announce)
    except KeyboardInterrupt:
        return
