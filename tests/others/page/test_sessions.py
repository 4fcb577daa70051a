"""Sessions of several visitors, without a browser: whose a request is, and when that ends."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trinity_db.page import access
from trinity_db.page.access import MAX_SESSIONS, Access, Message, Receive, Scope, Send, hashed
from trinity_db.page.origin import Origin
from trinity_db.page.rights import GONE, SCOPE, Right, Visitor

HERE = "127.0.0.1:8411"
ORIGIN = Origin.read(f"http://{HERE}")
ANN, EVE = Visitor("ann", Right.LABEL), Visitor("eve", Right.LOOK)


class Site:
    """A page that notes whose each request is, for visitors who may change at any time."""

    def __init__(self) -> None:
        self.visitors = {hashed("key of ann"): ANN, hashed("key of eve"): EVE}
        self.seen: list[Visitor] = []
        self.heard: list[Message] = []
        self.scope: Scope = {}
        self._access = Access(self._app, lambda: self.visitors, ORIGIN)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.seen.append(scope[SCOPE]())
        if scope["type"] == "websocket":
            while (message := await receive())["type"] == "websocket.receive":
                self.heard.append(message)
            self.heard.append(message)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def get(self, path: str, cookie: str = "") -> Message:
        """The beginning of the answer to a request."""
        path, _, query = path.partition("?")
        return self._asked({"type": "http", "method": "GET", "path": path}, query, cookie, iter(()))[0]

    def talk(self, cookie: str, messages: Iterator[Message]) -> list[Message]:
        """What a socket is told."""
        return self._asked({"type": "websocket", "path": "/"}, "", cookie, messages)

    def enter(self, key: str) -> str:
        """The cookie that a key gives."""
        headers = dict(self.get(f"/?key={key}")["headers"])
        return str(headers[b"set-cookie"].decode().partition(";")[0])

    def _asked(self, kind: Scope, query: str, cookie: str, messages: Iterator[Message]) -> list[Message]:
        given = {"host": HERE, "origin": f"http://{HERE}", "cookie": cookie}
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
        sent: list[Message] = []

        async def receive() -> Message:
            return next(messages)

        async def send(message: Message) -> None:
            sent.append(message)

        scope: dict[str, Any] = {**kind, "query_string": query.encode(), "headers": headers}
        with ThreadPoolExecutor(1) as thread:  # in this one a browser's loop may run
            thread.submit(lambda: asyncio.run(self._access(scope, receive, send))).result()
        return sent


@pytest.fixture
def site() -> Site:
    return Site()


def test_each_key_leads_to_its_visitor(site: Site) -> None:
    ann, eve = site.enter("key of ann"), site.enter("key of eve")
    assert ann != eve
    for cookie in (ann, eve, ann):
        assert site.get("/", cookie)["status"] == 200
    assert site.seen == [ANN, EVE, ANN]
    assert site.get("/?key=key of bob")["status"] == 401


def test_a_key_leaves_the_address_bar_also_in_a_browser_that_has_a_session(site: Site) -> None:
    ann = site.enter("key of ann")
    answer = site.get("/experiences?run=a&key=key of eve", ann)
    assert answer["status"] == 303
    headers = dict(answer["headers"])
    assert headers[b"location"] == b"/experiences?run=a"
    assert b"set-cookie" not in headers, "a link with the key of another person changes no session"
    assert site.get("/tasks?key=no key of the page", ann)["status"] == 200


def test_a_visitor_who_is_removed_is_gone_at_once(site: Site) -> None:
    ann, eve = site.enter("key of ann"), site.enter("key of eve")
    assert site.get("/", eve)["status"] == 200
    page_of_eve = site.scope[SCOPE]
    del site.visitors[hashed("key of eve")]
    assert site.get("/", eve)["status"] == 401
    assert site.get("/?key=key of eve")["status"] == 401
    assert site.get("/", ann)["status"] == 200
    assert page_of_eve() == GONE
    assert not GONE.may(Right.LOOK)


def test_a_right_that_changes_holds_for_pages_that_are_open(site: Site) -> None:
    site.get("/", site.enter("key of eve"))
    page_of_eve = site.scope[SCOPE]
    site.visitors[hashed("key of eve")] = Visitor("eve", Right.MANAGE)
    assert page_of_eve().may(Right.LABEL)
    site.visitors[hashed("key of eve")] = EVE
    assert not page_of_eve().may(Right.LABEL)


def test_a_socket_of_a_visitor_who_is_removed_hears_nothing_more(site: Site) -> None:
    def messages() -> Iterator[Message]:
        yield {"type": "websocket.receive", "text": "before"}
        site.visitors.clear()
        yield {"type": "websocket.receive", "text": "after"}

    site.talk(site.enter("key of eve"), messages())
    assert [one.get("text") for one in site.heard] == ["before", None]
    assert site.heard[-1]["type"] == "websocket.disconnect"


def test_many_browsers_of_one_visitor_push_out_no_one_else(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MAX_SESSIONS", 3)
    assert MAX_SESSIONS > 3
    ann = site.enter("key of ann")
    of_eve = [site.enter("key of eve") for _ in range(5)]
    statuses = [site.get("/", cookie)["status"] for cookie in (ann, *of_eve)]
    assert statuses == [200, 401, 401, 200, 200, 200]


def test_a_right_includes_those_before_it() -> None:
    may = {right.word: [one.word for one in Right if Visitor("x", right).may(one)] for right in Right}
    assert may == {
        "look": ["look"],
        "label": ["look", "label"],
        "manage": ["look", "label", "manage"],
    }
