"""A flood of idle connections, and the process that it meets."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

DESCRIPTORS = 256  # of the process under attack
FLOOD = 330


def lower_descriptor_limit() -> None:
    """Let this process and what it starts open few files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def connected(url: str) -> socket.socket:
    place = urlsplit(url)
    return socket.create_connection((place.hostname or "", place.port or 0), timeout=60)


@contextmanager
def flood(url: str) -> Iterator[list[socket.socket]]:
    """Connections that send nothing, the oldest first, held until the end of the block."""
    with ExitStack() as held:
        yield [held.enter_context(connected(url)) for _ in range(FLOOD)]


def is_closed_by_server(idle: socket.socket) -> bool:
    """Wait until the server closes a connection; False: it sends something."""
    try:
        return idle.recv(1) == b""
    except ConnectionResetError:
        return True
