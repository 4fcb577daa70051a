"""Malformed messages of a visitor's socket: they are ignored, and bounded in the log."""

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.others.page.browser import Served
from tests.others.page.test_access import SOCKET, asked
from trinity_db.postgres.connection import Database

BODIES: tuple[Any, ...] = (
    None, 1, "x", [], {}, {"client_id": 1}, {"client_id": []}, {"client_id": {}},
    {"client_id": "x" * 100_000}, {"client_id": "x", "id": []}, {"client_id": "x", "tab_id": 1},
    {"client_id": "x", "next_message_id": "x"},
)  # fmt: skip
NAMES = ("handshake", "event", "javascript_response", "ack", "log")
LINKS = ("&implicit_handshake=true", "&implicit_handshake=true&client_id=x&next_message_id=x")


def test_malformed_messages_do_nothing_and_are_logged_once(database: Database, page: Served) -> None:
    answer = asked(page, page.address.removeprefix(page.origin))
    cookie = str(answer.headers["set-cookie"]).partition(";")[0]
    headers, place = {"Cookie": cookie}, page.origin.replace("http", "ws", 1) + SOCKET
    own = Origin(page.origin)
    for link in LINKS:
        with connect(place + link, origin=own, additional_headers=headers) as socket:
            socket.send("40")
            assert any(str(message).startswith("44") for message in socket)
    client = of_page(page, cookie)
    with connect(place, origin=own, additional_headers=headers) as socket:
        socket.send("40")
        next(message for message in socket if str(message).startswith("40{"))
        for name in NAMES:
            for body in BODIES:
                assert ask(socket, [name, body]) in ("[false]", "[]")
                if isinstance(body, dict):
                    assert ask(socket, [name, body | {"client_id": client}]) in ("[false]", "[]")
            assert ask(socket, [name]) == "[false]"
        known = {"client_id": client, "id": 1, "listener_id": "x", "args": ["{", 1]}
        assert ask(socket, ["event", known]) in ("[false]", "[]")
    assert asked(page, "/", Cookie=cookie).status == 200
    code, said = page.stop()
    assert code == 0
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if "malformed messages" in line]) == 1, said
    assert len(said) < 1_000


def of_page(page: Served, cookie: str) -> str:
    """The id of a page that the visitor opened."""
    place = urlsplit(page.origin)
    connection = HTTPConnection(place.hostname or "", place.port)
    connection.request("GET", "/sql", headers={"Cookie": cookie})
    text = connection.getresponse().read().decode()
    connection.close()
    return text.partition('"client_id": "')[2].partition('"')[0] or text.partition("client_id=")[2][:36]


def ask(socket: ClientConnection, message: list[Any]) -> str:
    """What the page answers to a message."""
    socket.send(f"427{json.dumps(message)}")
    return next(str(one)[3:] for one in socket if str(one).startswith("437"))
