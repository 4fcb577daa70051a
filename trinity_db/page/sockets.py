"""Sees to it that a socket speaks for no other visitor's page.

NiceGUI takes what any socket says of any page whose id it knows. The id is hard to guess, but it stands in
addresses, which proxies write down. So each message is compared with the page that it is about.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any
from urllib.parse import parse_qs

from nicegui import Client, core

from trinity_db.page.rights import SCOPE

MESSAGES = ("connect", "handshake", "event", "javascript_response", "ack", "log")
Handler = Callable[..., Any]


def guard() -> None:
    """Compare from now on. Call it once, before the page is served."""
    for name in MESSAGES:
        core.sio.on(name, _compared(core.sio.handlers["/"][name]))


def _compared(handle: Handler) -> Handler:
    @wraps(handle)
    async def compared(socket: str, said: Mapping[str, Any], *rest: Any) -> Any:
        if not _is_of_visitor(socket, said):
            return False  # as where there is no such page
        answer = handle(socket, said, *rest)
        return await answer if isinstance(answer, Awaitable) else answer

    return compared


def _is_of_visitor(socket: str, said: Mapping[str, Any]) -> bool:
    """Whether the page that a message is about was opened by the visitor whose socket it is."""
    linked = parse_qs(str(said.get("QUERY_STRING", ""))).get("client_id", [None])[0]
    page = Client.instances.get(said.get("client_id", linked))
    if page is None:
        return True  # NiceGUI knows what to do
    whose = core.sio.get_environ(socket)["asgi.scope"][SCOPE]
    return bool(whose() == page.request.scope[SCOPE]())
