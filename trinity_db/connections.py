"""Limits for the connections of an HTTP server, and for the log lines of errors that repeat."""

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

KEYLESS_SECONDS = 10.0  # a client on a slow line sends its first request within a second or two
MAX_KEYLESS = 256
DESCRIPTORS = 65_536  # more would cost memory in libraries that keep a table of them
BACKLOG = 128  # connections that the kernel keeps until they are accepted
ACCEPTED_AT_ONCE = 8  # asyncio counts a connection two rounds of its loop after it accepted it
REPEAT_SECONDS = 60.0
MAX_KINDS = 256  # of errors that are remembered
NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


class Connections:
    """The open connections of one HTTP server.

    A connection is keyless until the server accepts a key on it. A keyless connection is closed after a
    time-out. There are at most 256 keyless connections, and fewer where the process may open few files: the
    oldest is closed first. All connections together have half of the descriptors that the process may open;
    beyond that every keyless connection is closed. The soft limit of descriptors is raised, up to 65,536.

    Args:
        keyless_seconds: from the start of a keyless connection, or from its last answer.
    """

    def __init__(self, keyless_seconds: float = KEYLESS_SECONDS) -> None:
        self._seconds = keyless_seconds
        self._limit = _raise_descriptor_limit() // 2
        self._max_keyless = min(MAX_KEYLESS, self._limit // 2)
        self._open: set[asyncio.Transport] = set()
        self._keyless: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        """With what closes each; the one that was used last is at the end."""

    async def listen(self, make: Callable[[], asyncio.Protocol], host: str, port: int) -> asyncio.Server:
        """Listen in the running loop of asyncio.

        Args:
            make: makes the server's protocol for each connection.

        Raises:
            OSError: the address is taken, or is none of this machine's.
        """
        loop = asyncio.get_running_loop()
        # One number sets the kernel's queue and how many connections asyncio accepts before it counts them.
        server = await loop.create_server(
            lambda: CountedProtocol(self, make()), host, port, backlog=ACCEPTED_AT_ONCE
        )
        for listener in server.sockets:
            with socket.fromfd(listener.fileno(), listener.family, listener.type) as same:
                same.listen(BACKLOG)
        return server

    def add(self, transport: asyncio.Transport) -> None:
        """Count a connection. One that is counted already stays as it is."""
        if transport in self._open:
            return
        self._open.add(transport)
        self._keyless[transport] = self._closing(transport)
        while self._keyless and (len(self._keyless) > self._max_keyless or len(self._open) > self._limit):
            self._close(next(iter(self._keyless)))

    def remove(self, transport: asyncio.Transport) -> None:
        """Count a connection no more."""
        self._open.discard(transport)
        self.accept_key(transport)

    def accept_key(self, transport: asyncio.Transport | None) -> None:
        """Keep a connection open from now on. None: it is closed already."""
        if transport is not None and (closing := self._keyless.pop(transport, None)) is not None:
            closing.cancel()

    @contextmanager
    def answering(self, transport: asyncio.Transport | None) -> Iterator[None]:
        """Suspend the time-out of a connection while its request is answered: the store may be slow."""
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
        transport.abort()  # close() waits until the client has read all that was written


class CountedProtocol(asyncio.Protocol):
    """A server's protocol for one connection, with the connection counted."""

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
    """How many descriptors this process may open, once the soft limit is as high as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS has a lower limit beside the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return wanted if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS)


@contextmanager
def limit_repeats(*loggers: str) -> Iterator[None]:
    """Let loggers write each kind of warning and error once a minute until the end of the block."""
    repeats = RepeatLimit()
    for name in loggers:
        logging.getLogger(name).addFilter(repeats)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeFilter(repeats)


class RepeatLimit(logging.Filter):
    """Passes one record of each kind a minute, with the number of those that it held back before.

    Records are of one kind if they differ only in numbers, and their exceptions come from the same line.
    """

    def __init__(self, seconds: float = REPEAT_SECONDS) -> None:
        super().__init__()
        self._seconds = seconds
        self._kinds: dict[tuple[object, ...], tuple[float, int]] = {}
        """When a record of each kind passed, and how many did not since; the newest kind is at the end."""

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
    """The type of a record's exception, with the file and the line that raised it."""
    kind, _, traceback = record.exc_info or (None, None, None)
    if not isinstance(traceback, TracebackType):
        return (kind,)
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return kind, traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
