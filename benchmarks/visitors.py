"""Visitors of the page, in a process of their own: each with a session and tabs as a browser has them.

A tab asks for a page over HTTP, connects the socket that NiceGUI's script connects, answers its pings, and
lets a page that follows the store look again as often as the script does. A view is timed from the request
until its content is there, in the answer or in what the socket brings. Drawing it is not timed.
"""

import asyncio
import html
import json
import os
import random
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Self

import aiohttp
from yarl import URL

from trinity_db.page.layout import REFRESH_SECONDS

READING_SECONDS = 3.0  # mean, from a view that is shown to the next one
NICE = 19  # visitors stand for other machines, so they take what is left of this one
GIVE_UP_SECONDS = 30.0  # a view that is not shown by then counts as failed
ELEMENTS = re.compile(r"parseElements\(String\.raw`(.*?)`\)", re.DOTALL)
CLIENT = re.compile(r"['\"]client_id['\"]: ['\"]([0-9a-f-]{36})['\"]")


@dataclass(frozen=True)
class View:
    """A place on the page, and how to know that it is shown."""

    kind: str
    paths: Sequence[str]
    """One is chosen by chance each time."""
    shown: str
    """A text that comes with its content, in the page or by the socket, and not before."""


@dataclass(frozen=True)
class Shown:
    """A view that a visitor opened, and in how many seconds it was there; None: it was not."""

    kind: str
    seconds: float | None


class Tab:
    """A tab of a browser on one page."""

    def __init__(self, session: aiohttp.ClientSession, origin: str, path: str) -> None:
        self._session, self._origin, self._path = session, origin, path
        self._tasks: list[asyncio.Task[None]] = []
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._wanted = ""
        self._came = asyncio.Event()

    async def open(self, view: View, *, is_seen: bool) -> float | None:
        """Ask for the page, connect its socket; seconds until the content was there, None where it is not."""
        begun = time.perf_counter()
        async with self._session.get(self._origin + self._path) as answer:
            raw = await answer.text()
        seconds = time.perf_counter() - begun
        page = html.unescape(raw)
        client = CLIENT.search(page)
        if answer.status != 200 or client is None:
            return None
        self._wanted = view.shown
        socket = await self._connect(client[1])
        if is_seen:
            self._tasks.append(asyncio.create_task(_beat(socket, client[1], page)))
        if view.shown in page:
            return seconds
        await self._came.wait()
        return time.perf_counter() - begun

    async def close(self) -> None:
        """As a browser that leaves the page."""
        for task in self._tasks:
            task.cancel()
        if self._socket is not None:
            await self._socket.close()

    async def _connect(self, client: str) -> aiohttp.ClientWebSocketResponse:
        query = {
            "EIO": "4", "transport": "websocket", "client_id": client, "next_message_id": "0",
            "implicit_handshake": "true", "document_id": str(uuid.uuid4()), "tab_id": str(uuid.uuid4()),
        }  # fmt: skip
        place = URL(self._origin).with_path("/_nicegui_ws/socket.io/").with_query(query)
        socket = self._socket = await self._session.ws_connect(place, origin=self._origin, max_msg_size=0)
        await socket.receive()  # engine.io opens
        await socket.send_str("40")
        self._tasks.append(asyncio.create_task(self._listen(socket)))
        return socket

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.data == "2":
                await socket.send_str("3")  # a ping
            elif self._wanted in message.data:
                self._came.set()


async def _beat(socket: aiohttp.ClientWebSocketResponse, client: str, page: str) -> None:
    """What components/pulse.js does in a tab that is seen."""
    found = ELEMENTS.search(page)
    elements: dict[str, Any] = json.loads(found[1]) if found else {}
    pulses = [
        {"id": int(id), "client_id": client, "listener_id": event["listener_id"], "args": []}
        for id, element in elements.items()
        for event in element.get("events", ())
        if event["type"] == "beat"
    ]
    assert pulses
    while True:
        await asyncio.sleep(REFRESH_SECONDS)
        for pulse in pulses:
            await socket.send_str("42" + json.dumps(["event", pulse]))


@dataclass
class Visitor:
    """A person: one tab stays on a page that follows the store, another goes from view to view."""

    session: aiohttp.ClientSession
    origin: str
    chance: random.Random
    shown: list[Shown] = field(default_factory=list)
    tabs: list[Tab] = field(default_factory=list)

    @classmethod
    async def come(cls, address: str, number: int) -> Self:
        """Open the printed address, which gives a session."""
        session = aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=aiohttp.ClientTimeout(GIVE_UP_SECONDS)
        )
        async with session.get(address, allow_redirects=False) as answer:
            assert answer.status == 303, answer.status
        return cls(session, str(URL(address).origin()), random.Random(number))

    async def leave(self) -> None:
        for tab in self.tabs:
            await tab.close()
        await self.session.close()

    async def open(self, view: View, *, is_seen: bool = True) -> Tab:
        """Open a view in a tab that stays, and note how long it took."""
        tab = Tab(self.session, self.origin, self.chance.choice(view.paths))
        self.tabs.append(tab)
        seconds = None
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(GIVE_UP_SECONDS):  # wait_for may swallow a cancellation
                seconds = await tab.open(view, is_seen=is_seen)
        self.shown.append(Shown(view.kind, seconds))
        return tab

    async def look_around(self, views: Sequence[View]) -> None:
        """Go from view to view, until cancelled: all kinds in an order by chance, again and again."""
        await asyncio.sleep(self.chance.uniform(0, READING_SECONDS))
        while True:
            for view in self.chance.sample(views, len(views)):
                tab = await self.open(view)
                await asyncio.sleep(self.chance.expovariate(1 / READING_SECONDS))
                await tab.close()
                self.tabs.remove(tab)


def serve(address: str, views: Sequence[View], count: int, pipe: Connection) -> None:
    """In a process of its own: so many visitors do what comes by the pipe, until "stop", again and again.

    - "look": a tab of each stays on the first view, another goes from view to view;
    - "hide": each opens a view, by turns of all kinds, in a tab that is not seen;
    - "end": end.

    It says "begun" when every tab is open; after "stop", with all of them closed, it sends the views.
    """
    os.nice(NICE)
    asyncio.run(_serve(address, views, count, pipe))


async def _serve(address: str, views: Sequence[View], count: int, pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    while (order := await loop.run_in_executor(None, pipe.recv)) != "end":
        visitors = [await Visitor.come(address, number) for number in range(count)]
        walks: list[asyncio.Task[None]] = []
        for number, visitor in enumerate(visitors):
            if order == "hide":
                await visitor.open(views[number % len(views)], is_seen=False)
            else:
                await visitor.open(views[0])
        if order == "look":
            walks = [asyncio.create_task(visitor.look_around(views)) for visitor in visitors]
        pipe.send("begun")
        await loop.run_in_executor(None, pipe.recv)
        for walk in walks:
            walk.cancel()
        ended = await asyncio.gather(*walks, return_exceptions=True)
        for visitor in visitors:
            await visitor.leave()
        for error in ended:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error
        pipe.send([shown for visitor in visitors for shown in visitor.shown])


async def first_view(address: str, view: View) -> Shown:
    """What a visitor sees who opens the printed address."""
    visitor = await Visitor.come(address, 0)
    await visitor.open(view)
    await visitor.leave()
    return visitor.shown[0]
