"""Who may see the page: a browser that was given a key.

The key is in the address that `trinity-db page` prints. A browser that brings it gets a session id of its own
in a cookie, and the key leaves its address bar. Everything else needs that cookie: pages, files, sockets.
NiceGUI's sockets take any origin, so the origin is checked here too.

A key is known by its hash alone, and leads to the visitor that it was made for. When it does so no more, its
sessions have ended, and so do their sockets.
"""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from trinity_db.page.origin import Origin
from trinity_db.page.rights import GONE, SCOPE, Visitor

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
Visitors = Callable[[], Mapping[str, Visitor]]
"""Who may come now, by the hashes of their keys."""

CONNECTION = "trinity_db.connection"  # in the state of a request: its `connections.CountedProtocol`
KEY_BYTES = 32
MAX_SESSIONS = 100  # browsers of a visitor at a time; the oldest has to bring the key again
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing is fetched from elsewhere. NiceGUI's own scripts stand in the page and compile templates."""
# Under no-referrer, browsers send a form with the origin null, as a form of another site may have.
ADDED = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
NO_KEY = (
    "This page needs its key.\n\n"
    "Open the address that trinity-db page printed, with the key in it. If you came by a link from another\n"
    "site, load the page once more.\n"
)
ELSEWHERE = "This page answers only at the address that trinity-db page printed.\n"


def new_key() -> str:
    """A key as it stands in an address."""
    return secrets.token_urlsafe(KEY_BYTES)


def hashed(key: str) -> str:
    """By what a key is known. A plain hash is enough: no one guesses 256 bits of chance."""
    return hashlib.sha256(key.encode()).hexdigest()


class Access:
    """Stands before the whole application, in front of all routes and sockets."""

    def __init__(self, app: App, visitors: Visitors, origin: Origin) -> None:
        self.app = app
        self._visitors = visitors
        self._origin = origin
        # Cookies know no ports: two pages on one machine would overwrite each other's. One that begins with
        # __Host- can be set by no other name, as by another machine of the same domain.
        self._cookie = f"{'__Host-' if origin.is_encrypted else ''}trinity_db_{origin.port}"
        self._sessions: dict[str, str] = {}
        """The hash of the key that each session began with."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif not self._is_from_here(scope):
            await _refuse(scope, receive, send, 403, ELSEWHERE)
        elif (key := self._key_of_session(scope)) is not None:
            _accept_key(scope)
            if _is_get(scope) and self._key_brought(scope):
                await _send_on(scope, send)  # so that no key stays in the address bar; the session goes on
                return
            scope[SCOPE] = partial(self._visitor, key)
            await self.app(scope, self._while_it_lasts(key, receive), _with_policy(send))
        elif _is_get(scope) and (key := self._key_brought(scope)):
            _accept_key(scope)
            await self._admit(scope, send, key)
        else:
            await _refuse(scope, receive, send, 401, NO_KEY)

    def _is_from_here(self, scope: Scope) -> bool:
        """Whether a request names the page, and no page of another origin made it."""
        host = _header(scope, b"host")
        if any(name == b"origin" for name, _ in scope["headers"]):
            return self._origin.is_from(_header(scope, b"origin"), host)
        # A browser always says where a socket comes from, and whatever else may write.
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        return reads and self._origin.is_asked(host)

    def _visitor(self, key: str) -> Visitor:
        return self._visitors().get(key, GONE)

    def _key_of_session(self, scope: Scope) -> str | None:
        """The hash of the key that opened the session of a request; None: it has none that lasts."""
        for cookie in _header(scope, b"cookie").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self._cookie and (key := self._sessions.get(value)) in self._visitors():
                return key
        return None

    def _key_brought(self, scope: Scope) -> str | None:
        """The hash of the key in an address; None: it is the key of no visitor."""
        given = [value for name, value in _query(scope) if name == "key"]
        brought = hashed(given[0]) if len(given) == 1 else ""
        found = [known for known in self._visitors() if secrets.compare_digest(known, brought)]
        return found[0] if found else None

    def _while_it_lasts(self, key: str, receive: Receive) -> Receive:
        """What a browser sends; that its socket is closed, once the key leads to no visitor any more."""

        async def receiving() -> Message:
            message = await receive()
            is_over = message["type"] == "websocket.receive" and key not in self._visitors()
            return {"type": "websocket.disconnect", "code": 1008} if is_over else message

        return receiving

    async def _admit(self, scope: Scope, send: Send, key: str) -> None:
        """Give a session, and send the browser on to the same page without the key."""
        session = secrets.token_urlsafe(KEY_BYTES)
        known = self._visitors()
        self._sessions = {one: by for one, by in self._sessions.items() if by in known} | {session: key}
        of_visitor = [one for one, by in self._sessions.items() if by == key]
        for one in of_visitor[:-MAX_SESSIONS]:
            del self._sessions[one]
        cookie = f"{self._cookie}={session}; Path=/; HttpOnly; SameSite=Strict"
        cookie += "; Secure" if self._origin.is_encrypted else ""
        await _send_on(scope, send, (b"set-cookie", cookie.encode()))


async def _send_on(scope: Scope, send: Send, *headers: tuple[bytes, bytes]) -> None:
    """Send a browser to the same page without the key."""
    rest = urlencode([(name, value) for name, value in _query(scope) if name != "key"])
    place = "/" + quote(scope["path"].lstrip("/")) + (f"?{rest}" if rest else "")
    headers = ((b"location", place.encode()), *headers, *_PLAIN, *ADDED)
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _accept_key(scope: Scope) -> None:
    """Keep the connection of a request open, if the server limits connections without a key."""
    if (connection := scope.get("state", {}).get(CONNECTION)) is not None:
        connection.accept_key()


def _is_get(scope: Scope) -> bool:
    return bool(scope["type"] == "http" and scope["method"] == "GET")


_PLAIN = ((b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store"))


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)


def _header(scope: Scope, wanted: bytes) -> str:
    """A header of a request; "" where it is not there, or there twice."""
    found = [value for name, value in scope["headers"] if name == wanted]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def _with_policy(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *ADDED]
        await send(message)

    return sending


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the answer is 403
        return
    await send({"type": "http.response.start", "status": status, "headers": [*_PLAIN, *ADDED]})
    await send({"type": "http.response.body", "body": why.encode()})
