"""Keeps sockets from acting on other visitors' pages, and discards malformed messages.

NiceGUI accepts any socket's message about any page whose id it contains. The id is hard to guess, but it is
part of addresses, which proxies log. So the visitor of each message is compared with the visitor of its page.
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
"""Fields that NiceGUI reads from each kind of message."""
MESSAGES = ("connect", *FIELDS)
LOG_SECONDS = 60.0  # between two log lines about malformed messages, for all sockets together
Handler = Callable[..., Any]


def guard() -> None:
    """Install the checks. Call it once, before the page is served."""
    malformed = Malformed()
    for name in MESSAGES:
        core.sio.on(name, _compared(core.sio.handlers["/"][name], name, malformed))


class Malformed:
    """Counts malformed messages, and logs a line about them at intervals."""

    def __init__(self) -> None:
        self._untold = 0
        self._told_at = -LOG_SECONDS

    def ignore(self, name: str, reason: str) -> None:
        """Count one message of a kind."""
        self._untold += 1
        if time.monotonic() - self._told_at >= LOG_SECONDS:
            logger.warning(
                "Ignored %d malformed messages of sockets; the last was '%s': %s", self._untold, name, reason
            )
            self._untold, self._told_at = 0, time.monotonic()


def _compared(handle: Handler, name: str, malformed: Malformed) -> Handler:
    @wraps(handle)
    async def compared(socket: str, message: Any = None, *arguments: Any) -> Any:
        if reason := _fault(name, message):
            malformed.ignore(name, reason)
            return False
        if not _is_of_visitor(socket, message):
            return False  # as for a page that does not exist
        try:
            answer = handle(socket, message, *arguments[:1])
            return await answer if isinstance(answer, Awaitable) else answer
        except Refused:
            raise
        except Exception as error:  # raised by NiceGUI for a message; our handlers' errors do not get here
            malformed.ignore(name, type(error).__name__)
            return False

    return compared


def _fault(name: str, message: Any) -> str | None:
    """Reason why NiceGUI could not read a message; None if it can."""
    if not isinstance(message, Mapping):
        return "it is not an object"
    for field, kind in FIELDS.get(name, {}).items():
        if not isinstance(message.get(field), kind):
            return f"'{field}' is missing or of another type"
    return None


def _is_of_visitor(socket: str, message: Mapping[str, Any]) -> bool:
    """Whether the socket's visitor opened the page that a message is about."""
    linked = parse_qs(str(message.get("QUERY_STRING", ""))).get("client_id", [None])[0]
    page = Client.instances.get(message.get("client_id", linked))
    if page is None:
        return True  # NiceGUI handles it
    whose = core.sio.get_environ(socket)["asgi.scope"][SCOPE]
    return bool(whose() == page.request.scope[SCOPE]())
