"""Who may see the page: a browser that was given the key.

The key is in the address that `trinity-db page` prints. A browser that brings it gets a session id of its own
in a cookie, and the key leaves its address bar. Everything else needs that cookie: pages, files, sockets.
NiceGUI's sockets take any origin, so the origin is checked here too.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

KEY_BYTES = 32
MAX_SESSIONS = 100  # browsers at a time; the oldest has to bring the key again
LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?")
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing is fetched from elsewhere. NiceGUI's own scripts stand in the page and compile templates."""
ADDED = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
NO_KEY = (
    "This page needs its key.\n\n"
    "Open the address that trinity-db page printed, with the key in it. If you came by a link from another\n"
    "site, load the page once more.\n"
)
ELSEWHERE = "This page answers only at the address that trinity-db page printed.\n"


class Access:
    """Stands before the whole application, in front of all routes and sockets."""

    def __init__(self, app: App, key: str, port: int) -> None:
        self.app = app
        self._key = key.encode()
        # Cookies know no ports: two pages on one machine would overwrite each other's.
        self._cookie = f"trinity_db_{port}"
        self._sessions: dict[str, None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif not self._is_from_here(scope):
            await _refuse(scope, receive, send, 403, ELSEWHERE)
        elif self._has_session(scope):
            await self.app(scope, receive, _with_policy(send))
        elif scope["type"] == "http" and scope["method"] == "GET" and self._brings_key(scope):
            await self._admit(scope, send)
        else:
            await _refuse(scope, receive, send, 401, NO_KEY)

    def _is_from_here(self, scope: Scope) -> bool:
        """Whether a request names this machine, and no page of another origin made it."""
        host = _header(scope, b"host")
        if LOOPBACK.fullmatch(host) is None:
            return False
        if any(name == b"origin" for name, _ in scope["headers"]):
            return _header(scope, b"origin") == f"http://{host}"
        # A browser always says where a socket comes from, and whatever else may write.
        reads: bool = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        return reads

    def _has_session(self, scope: Scope) -> bool:
        for cookie in _header(scope, b"cookie").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self._cookie and value in self._sessions:
                return True
        return False

    def _brings_key(self, scope: Scope) -> bool:
        given = [value for name, value in _query(scope) if name == "key"]
        return len(given) == 1 and secrets.compare_digest(given[0].encode(), self._key)

    async def _admit(self, scope: Scope, send: Send) -> None:
        """Give a session, and send the browser on to the same page without the key."""
        session = secrets.token_urlsafe(KEY_BYTES)
        self._sessions[session] = None
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        rest = urlencode([(name, value) for name, value in _query(scope) if name != "key"])
        place = "/" + quote(scope["path"].lstrip("/")) + (f"?{rest}" if rest else "")
        cookie = f"{self._cookie}={session}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", place.encode()), (b"set-cookie", cookie.encode()), *_PLAIN, *ADDED]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


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
