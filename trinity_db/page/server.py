"""The web server of the page, which runs until Ctrl-C."""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from trinity_db.io.connections import Connections, CountedProtocol, limit_repeats
from trinity_db.page import (
    compare,
    doctor,
    evaluation,
    experience,
    experiences,
    group,
    layout,
    run,
    runs,
    similar,
    sockets,
    sql,
    start,
    task,
    tasks,
    verdicts,
)
from trinity_db.page.access import CONNECTION, Access, Visitors
from trinity_db.page.launching import Launcher
from trinity_db.page.listening import Listening
from trinity_db.page.manager import Manager
from trinity_db.page.origin import Origin
from trinity_db.page.reader import Reader
from trinity_db.page.writer import Writer
from trinity_db.postgres.connection import Database
from trinity_db.processors.jobs.semantic_search import Models

NICE = 10  # the roles of a run on this machine have priority
LEAVE_SECONDS = 2  # for responses in progress at shutdown
MESSAGES = 50  # kept for a browser that briefly lost its connection
PAGES = (compare, experiences, group, experience, tasks, task, evaluation, sql, doctor)
MANAGED = (runs, run, start)


def serve(
    database: Database,
    writer: Writer | None,
    visitors: Visitors,
    models: Models,
    listening: Listening,
    announce: Callable[[Origin], None],
) -> None:
    """Serve the page of a store until SIGINT or SIGTERM.

    Args:
        database: used for the page's queries.
        writer: stores verdicts and stops runs; None: the page is read-only.
        visitors: returns the visitors with access.
        models: create the vectors of words that visitors search for.
        announce: called with the page's address once browsers can open it.

    Raises:
        ConfigError: if the port is taken, or the machine has no such address.
        KeyboardInterrupt: at the end.
    """
    # Before this process lowers its priority, which processes started later would inherit.
    manager = None if writer is None else Manager(writer, Launcher(Path.cwd()))
    os.nice(NICE)
    with closing(listening.open()) as listener, closing(Reader(database)) as reader:
        origin = listening.origin(listener.getsockname()[1])
        connections = Connections()
        config = uvicorn.Config(
            Access(_application(reader, writer, manager, models), visitors, origin),
            http=_counted(connections, AutoHTTPProtocol),
            ws=_counted(connections, WSProtocol),  # as in NiceGUI's server
            log_level=logging.WARNING,  # lines about requests would contain the key
            timeout_graceful_shutdown=LEAVE_SECONDS,
            server_header=False,
        )
        logging.getLogger("uvicorn.error").addFilter(_is_worth_a_line)
        announce(origin)
        with limit_repeats("asyncio", "uvicorn.error"):
            uvicorn.Server(config).run(sockets=[listener])


def _counted(connections: Connections, protocol: Callable[..., asyncio.Protocol]) -> Any:
    """Return a uvicorn protocol that counts connections. `Access` finds each one in the request's state."""

    def make(*, app_state: dict[str, Any], **options: Any) -> CountedProtocol:
        state = {**app_state}
        state[CONNECTION] = counted = CountedProtocol(connections, protocol(app_state=state, **options))
        return counted

    return make


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Drop records about visitors who left before the response: an error that NiceGUI's middlewares cause."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and str(error) == "No response returned.")


def _application(reader: Reader, writer: Writer | None, manager: Manager | None, models: Models) -> FastAPI:
    layout.dress()
    for page in PAGES:
        page.register(reader)
    for managed in MANAGED:
        managed.register(reader, manager)
    verdicts.register(reader, writer)
    similar.register(reader, models)
    application = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(
        application,
        root=layout.missing,
        title="trinity-db",
        language="en-US",
        tailwind=False,
        binding_refresh_interval=None,
        message_history_length=MESSAGES,
        show_welcome_message=False,
    )
    sockets.guard()
    return application
