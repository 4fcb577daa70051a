"""Access to the page: only browsers that opened it with a key.

`trinity-db page` prints an address that contains the key. A browser that opens it gets a session id in a
cookie and is redirected, so that the key leaves the address bar. Pages, files and sockets all need that
cookie. NiceGUI's sockets accept any origin, so the origin is checked here too.

Only hashes of keys are known here. Each leads to the visitor that the key was made for. When a key is
revoked, its sessions and their sockets end.
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
"""Visitors with access now, by the hashes of their keys."""

CONNECTION = "trinity_db.connection"  # in the state of a request: its `connections.CountedProtocol`
KEY_BYTES = 32
MAX_SESSIONS = 100  # browsers per visitor; beyond that, the oldest session ends
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing is loaded from other sites. NiceGUI's scripts are inline and compile templates."""
# With no-referrer, browsers would send our forms with the origin null, like forms of other sites.
ADDED = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
NO_KEY = (
    "This page needs its key.\n\n"
    "Open the address that trinity-db page printed, including the key. If you followed a link from another\n"
    "site, reload the page.\n"
)
ELSEWHERE = "This page answers only at the address that trinity-db page printed.\n"


def new_key() -> str:
    """Return a new random key, safe to use in a URL."""
    return secrets.token_urlsafe(KEY_BYTES)


def hashed(key: str) -> str:
    """Hash a key. A plain hash is enough: 256 random bits cannot be guessed."""
    return hashlib.sha256(key.encode()).hexdigest()


class Access:
    """ASGI middleware in front of all routes and sockets."""

    def __init__(self, app: App, visitors: Visitors, origin: Origin) -> None:
        self.app = app
        self._visitors = visitors
        self._origin = origin
        # Cookies are not scoped by port: without the port in its name, two pages on one machine would
        # overwrite each other's. Another machine of the domain cannot set a cookie whose name begins with
        # __Host-.
        self._cookie = f"{'__Host-' if origin.is_encrypted else ''}trinity_db_{origin.port}"
        self._sessions: dict[str, str] = {}
        """Hash of the key that each session was opened with."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif not self._is_from_here(scope):
            await _refuse(scope, receive, send, 403, ELSEWHERE)
        elif (key := self._key_of_session(scope)) is not None:
            _accept_key(scope)
            if _is_get(scope) and self._key_brought(scope):
                await _send_on(scope, send)  # removes the key from the address bar; the session continues
                return
            scope[SCOPE] = partial(self._visitor, key)
            await self.app(scope, self._while_it_lasts(key, receive), _with_policy(send))
        elif _is_get(scope) and (key := self._key_brought(scope)):
            _accept_key(scope)
            await self._admit(scope, send, key)
        else:
            await _refuse(scope, receive, send, 401, NO_KEY)

    def _is_from_here(self, scope: Scope) -> bool:
        """Whether a request is for this page's address and not from a page of another origin."""
        host = _header(scope, b"host")
        if any(name == b"origin" for name, _ in scope["headers"]):
            return self._origin.is_from(_header(scope, b"origin"), host)
        # Browsers always send an Origin header for sockets and for requests that write.
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        return reads and self._origin.is_asked(host)

    def _visitor(self, key: str) -> Visitor:
        return self._visitors().get(key, GONE)

    def _key_of_session(self, scope: Scope) -> str | None:
        """Hash of the key that opened the request's session; None without a valid session."""
        for cookie in _header(scope, b"cookie").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self._cookie and (key := self._sessions.get(value)) in self._visitors():
                return key
        return None

    def _key_brought(self, scope: Scope) -> str | None:
        """Hash of the key in an address; None if it is not a visitor's key."""
        keys = [value for name, value in _query(scope) if name == "key"]
        brought = hashed(keys[0]) if len(keys) == 1 else ""
        matches = [known for known in self._visitors() if secrets.compare_digest(known, brought)]
        return matches[0] if matches else None

    def _while_it_lasts(self, key: str, receive: Receive) -> Receive:
        """Wrap `receive` so that a socket is closed once its key is revoked."""

        async def receiving() -> Message:
            message = await receive()
            is_over = message["type"] == "websocket.receive" and key not in self._visitors()
            return {"type": "websocket.disconnect", "code": 1008} if is_over else message

        return receiving

    async def _admit(self, scope: Scope, send: Send, key: str) -> None:
        """Open a session, and redirect the browser to the same page without the key."""
        session = secrets.token_urlsafe(KEY_BYTES)
        known = self._visitors()
        self._sessions = {session_id: by for session_id, by in self._sessions.items() if by in known} | {
            session: key
        }
        of_visitor = [session_id for session_id, by in self._sessions.items() if by == key]
        for session_id in of_visitor[:-MAX_SESSIONS]:
            del self._sessions[session_id]
        cookie = f"{self._cookie}={session}; Path=/; HttpOnly; SameSite=Strict"
        cookie += "; Secure" if self._origin.is_encrypted else ""
        await _send_on(scope, send, (b"set-cookie", cookie.encode()))


async def _send_on(scope: Scope, send: Send, *headers: tuple[bytes, bytes]) -> None:
    """Redirect a browser to the same page without the key."""
    parameters = urlencode([(name, value) for name, value in _query(scope) if name != "key"])
    target = "/" + quote(scope["path"].lstrip("/")) + (f"?{parameters}" if parameters else "")
    headers = ((b"location", target.encode()), *headers, *_PLAIN, *ADDED)
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


def _header(scope: Scope, name: bytes) -> str:
    """Value of a request header; "" if it is missing or sent twice."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1") if len(values) == 1 else ""


def _with_policy(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *ADDED]
        await send(message)

    return sending


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})  # not accepted yet: the browser gets a 403
        return
    await send({"type": "http.response.start", "status": status, "headers": [*_PLAIN, *ADDED]})
    await send({"type": "http.response.body", "body": why.encode()})
