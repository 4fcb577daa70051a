"""Listens on this machine, and answers until Ctrl-C."""

import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import closing

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from trinity_db.database import Database
from trinity_db.errors import ConfigError
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
    sql,
    task,
    tasks,
    verdicts,
)
from trinity_db.page.access import KEY_BYTES, Access
from trinity_db.page.reader import Reader
from trinity_db.page.writer import Writer

HOST = "127.0.0.1"
LEAVE_SECONDS = 2  # for answers that are under way at the end
MESSAGES = 50  # that are kept for a browser that lost its connection for a moment
PAGES = (
    *(runs, run, compare, experiences, group, experience, similar),
    *(tasks, task, evaluation, sql, doctor),
)


def serve(database: Database, writer: Writer | None, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page on a store until SIGINT or SIGTERM.

    Args:
        database: by which the page reads.
        writer: stores verdicts; None: the page only reads.
        port: to listen on; 0: any that is free.
        announce: is told the address, with the key, once browsers can open it.

    Raises:
        ConfigError: the port is taken.
        KeyboardInterrupt: at the end.
    """
    with closing(_listen(port)) as listener, closing(Reader(database)) as reader:
        port = listener.getsockname()[1]
        key = secrets.token_urlsafe(KEY_BYTES)
        config = uvicorn.Config(
            Access(_application(reader, writer), key, port),
            ws="wsproto",  # as NiceGUI's own server
            log_level=logging.WARNING,  # a line for each request would hold the key
            timeout_graceful_shutdown=LEAVE_SECONDS,
            server_header=False,
        )
        announce(f"http://{HOST}:{port}/?key={key}")
        uvicorn.Server(config).run(sockets=[listener])


def _application(reader: Reader, writer: Writer | None) -> FastAPI:
    layout.dress()
    for page in PAGES:
        page.register(reader)
    verdicts.register(reader, writer)
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
    return application


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Port {port} of {HOST} cannot be used ({error.strerror}): give another by --port, or --port 0."
        ) from error
    return listener
