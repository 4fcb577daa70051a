"""Limits on the connections of an HTTP server and on repeated log lines."""

import asyncio
import logging
import math
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import cast

KEYLESS_SECONDS = 10.0  # even on a slow line, a client's first request takes one or two seconds
MAX_KEYLESS = 256
DESCRIPTORS = 65_536  # more would cost memory in libraries that allocate a table of descriptors
BACKLOG = 128  # connections that the kernel queues
ACCEPTED_AT_ONCE = 8  # asyncio reports a connection two loop iterations after accepting it
REPEAT_SECONDS = 60.0
MAX_KINDS = 256  # kinds of errors that are tracked
NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


class Connections:
    """The open connections of one HTTP server.

    A connection is keyless until the server accepts a key on it; keyless connections time out. There are at
    most 256 of them, fewer if the process may open few files; the oldest is closed first. All connections
    together may use half of the process's descriptors; above that every keyless connection is closed. The
    soft limit of descriptors is raised, up to 65,536.

    Args:
        keyless_seconds: timeout of a keyless connection since its start or its last response.
    """

    def __init__(self, keyless_seconds: float = KEYLESS_SECONDS) -> None:
        self._seconds = keyless_seconds
        self._limit = _raise_descriptor_limit() // 2
        self._max_keyless = min(MAX_KEYLESS, self._limit // 2)
        self._open: set[asyncio.Transport] = set()
        self._keyless: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        """Keyless connections and the timers that close them, least recently used first."""

    async def listen(self, make: Callable[[], asyncio.Protocol], host: str, port: int) -> asyncio.Server:
        """Listen in the running asyncio loop.

        Args:
            make: creates the server's protocol for each connection.

        Raises:
            OSError: if the address is in use, or does not belong to this machine.
        """
        loop = asyncio.get_running_loop()
        # One parameter sets both the kernel's queue and the connections that asyncio accepts before reporting
        # them.
        server = await loop.create_server(
            lambda: CountedProtocol(self, make()), host, port, backlog=ACCEPTED_AT_ONCE
        )
        for listener in server.sockets:
            with socket.fromfd(listener.fileno(), listener.family, listener.type) as same:
                same.listen(BACKLOG)
        return server

    def add(self, transport: asyncio.Transport) -> None:
        """Count a connection, unless it is already counted."""
        if transport in self._open:
            return
        self._open.add(transport)
        self._keyless[transport] = self._closing(transport)
        while self._keyless and (len(self._keyless) > self._max_keyless or len(self._open) > self._limit):
            self._close(next(iter(self._keyless)))

    def remove(self, transport: asyncio.Transport) -> None:
        """Stop counting a connection."""
        self._open.discard(transport)
        self.accept_key(transport)

    def accept_key(self, transport: asyncio.Transport | None) -> None:
        """Exempt a connection from the timeout. None: it is already closed."""
        if transport is not None and (closing := self._keyless.pop(transport, None)) is not None:
            closing.cancel()

    @contextmanager
    def answering(self, transport: asyncio.Transport | None) -> Iterator[None]:
        """Suspend a connection's timeout while its request is processed: the store may be slow."""
        if transport is not None and transport in self._keyless:
            self._keyless[transport].cancel()
        try:
            yield
        finally:
            if transport is not None and transport in self._keyless:
                del self._keyless[transport]
                self._keyless[transport] = self._closing(transport)

    def _closing(self, transport: asyncio.Transport) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._seconds, self._close, transport)

    def _close(self, transport: asyncio.Transport) -> None:
        self.remove(transport)
        transport.abort()  # close() would wait until the client has read everything


class CountedProtocol(asyncio.Protocol):
    """Wraps a server's protocol and counts its connection."""

    def __init__(self, connections: Connections, protocol: asyncio.Protocol) -> None:
        self._connections = connections
        self._protocol = protocol
        self._transport: asyncio.Transport | None = None

    def accept_key(self) -> None:
        self._connections.accept_key(self._transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._protocol.connection_made(transport)
        self._connections.add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._connections.remove(self._transport)
        self._protocol.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def _raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors as far as allowed and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has a limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return wanted if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS)


@contextmanager
def limit_repeats(*loggers: str) -> Iterator[None]:
    """Limit loggers to one warning or error of each kind per minute within the block."""
    repeats = RepeatLimit()
    for name in loggers:
        logging.getLogger(name).addFilter(repeats)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeFilter(repeats)


class RepeatLimit(logging.Filter):
    """Passes one record of each kind per minute, with the number suppressed before.

    Records are of one kind if they differ only in numbers and their exceptions come from the same line.
    """

    def __init__(self, seconds: float = REPEAT_SECONDS) -> None:
        super().__init__()
        self._seconds = seconds
        self._kinds: dict[tuple[object, ...], tuple[float, int]] = {}
        """Time of the last record of each kind, and number suppressed since; most recent kind last."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        first_line = str(record.msg).partition("\n")[0]
        kind = record.name, NUMBERS.sub("#", first_line), *_raised_at(record)
        now = time.monotonic()
        passed_at, held_back = self._kinds.get(kind, (-math.inf, 0))
        if now - passed_at < self._seconds:
            self._kinds[kind] = passed_at, held_back + 1
            return False
        if held_back:
            record.msg = f"{record.getMessage()} ({held_back} more like this were not logged)"
            record.args = ()
        self._kinds.pop(kind, None)
        self._kinds[kind] = now, 0
        if len(self._kinds) > MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        return True


def _raised_at(record: logging.LogRecord) -> tuple[object, ...]:
    """Return the type of a record's exception, with the file and line that raised it."""
    kind, _, traceback = record.exc_info or (None, None, None)
    if not isinstance(traceback, TracebackType):
        return (kind,)
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return kind, traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
