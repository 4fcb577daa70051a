"""Sees to it that a socket speaks for no other visitor's page, and that malformed messages do nothing.

NiceGUI takes what any socket says of any page whose id it knows. The id is hard to guess, but it stands in
addresses, which proxies write down. So each message is compared with the page that it is about.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any
from urllib.parse import parse_qs

from nicegui import Client, core
from socketio.exceptions import ConnectionRefusedError as Refused  # type: ignore[import-untyped]

from trinity_db.page.rights import SCOPE

logger = logging.getLogger(__name__)

FIELDS: Mapping[str, Mapping[str, type]] = {
    "handshake": {"client_id": str, "tab_id": str},
    "event": {"client_id": str, "id": int},
    "javascript_response": {"client_id": str, "request_id": str},
    "ack": {"client_id": str, "next_message_id": int},
    "log": {"client_id": str, "level": str, "message": str},
}
"""What NiceGUI reads of each kind of message."""
MESSAGES = ("connect", *FIELDS)
LOG_SECONDS = 60.0  # between two lines about malformed messages, of all sockets together
Handler = Callable[..., Any]


def guard() -> None:
    """Compare from now on. Call it once, before the page is served."""
    malformed = Malformed()
    for name in MESSAGES:
        core.sio.on(name, _compared(core.sio.handlers["/"][name], name, malformed))


class Malformed:
    """Counts messages that no browser sends, and logs a line about them from time to time."""

    def __init__(self) -> None:
        self._untold = 0
        self._told_at = -LOG_SECONDS

    def ignore(self, name: str, reason: str) -> None:
        """Note one message of a kind."""
        self._untold += 1
        if time.monotonic() - self._told_at >= LOG_SECONDS:
            logger.warning(
                "Ignored %d malformed messages of sockets; the last was '%s': %s", self._untold, name, reason
            )
            self._untold, self._told_at = 0, time.monotonic()


def _compared(handle: Handler, name: str, malformed: Malformed) -> Handler:
    @wraps(handle)
    async def compared(socket: str, said: Any = None, *rest: Any) -> Any:
        if reason := _fault(name, said):
            malformed.ignore(name, reason)
            return False
        if not _is_of_visitor(socket, said):
            return False  # as where there is no such page
        try:
            answer = handle(socket, said, *rest[:1])
            return await answer if isinstance(answer, Awaitable) else answer
        except Refused:
            raise
        except Exception as error:  # NiceGUI's, of a message: those of our handlers do not come here
            malformed.ignore(name, type(error).__name__)
            return False

    return compared


def _fault(name: str, said: Any) -> str | None:
    """Why a message is none that NiceGUI can read; None: it is one."""
    if not isinstance(said, Mapping):
        return "it is not an object"
    for field, kind in FIELDS.get(name, {}).items():
        if not isinstance(said.get(field), kind):
            return f"'{field}' is missing or of another type"
    return None


def _is_of_visitor(socket: str, said: Mapping[str, Any]) -> bool:
    """Whether the page that a message is about was opened by the visitor whose socket it is."""
    linked = parse_qs(str(said.get("QUERY_STRING", ""))).get("client_id", [None])[0]
    page = Client.instances.get(said.get("client_id", linked))
    if page is None:
        return True  # NiceGUI knows what to do
    whose = core.sio.get_environ(socket)["asgi.scope"][SCOPE]
    return bool(whose() == page.request.scope[SCOPE]())
