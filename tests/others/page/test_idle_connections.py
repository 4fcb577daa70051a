"""Connections without a key: the page closes them, and a flood of them keeps no visitor out."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.others.page.browser import Served, home_of, served
from tests.others.page.test_access import SOCKET, asked
from tests.support.idle_connections import connected, flood, is_closed_by_server
from tests.support.postgres import by_login
from tests.support.rows import Scene
from trinity_db.postgres.connection import Database

PING, PONG = "2", "3"  # of Engine.IO, which ends a socket without them
PROGRAM = (
    "from tests.support.idle_connections import lower_descriptor_limit; lower_descriptor_limit();"
    "from trinity_db.cli import main; main()"
)


@pytest.fixture
def page(database: Database, scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page in a process with few descriptors."""
    home = home_of(tmp_path_factory.mktemp("home"))
    with served(home | {"TRINITY_DB_URL": by_login(database.url)}, program=("-c", PROGRAM)) as page:
        yield page


def test_a_flood_of_idle_connections_keeps_no_visitor_out_and_only_a_socket_with_a_key_stays(
    page: Served,
) -> None:
    path = page.address.removeprefix(page.origin)
    with flood(page.origin) as idle:
        answer = asked(page, path)
        assert answer.status == 303
        assert is_closed_by_server(idle[0]), "the oldest are closed"
    cookie = str(answer.headers["set-cookie"]).partition(";")[0]
    url = f"ws://{urlsplit(page.origin).netloc}{SOCKET}"
    with connect(url, origin=Origin(page.origin), additional_headers={"Cookie": cookie}) as talk:
        with closing(connected(page.origin)) as idle_too, ThreadPoolExecutor(1) as other:
            closed = other.submit(is_closed_by_server, idle_too)
            while not closed.done():
                with suppress(TimeoutError):
                    if talk.recv(timeout=0.5) == PING:
                        talk.send(PONG)
        assert closed.result()
        assert talk.ping().wait(60), "the socket is open"
    _, output = page.stop()
    assert len(output.splitlines()) < 100
