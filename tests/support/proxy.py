"""A network that can fail: a socket in front of a server's, which may refuse, cut off, or hold back."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from trinity_db.postgres.embedded.home_paths import SOCKET

CHUNK_BYTES = 65536


class Proxy:
    """Forwards connections to the server of a URL, as long as the network is well."""

    def __init__(self, url: str, folder: Path) -> None:
        (host,) = parse_qs(urlsplit(url).query)["host"]
        self._server = str(Path(host, SOCKET))
        self.url = url.replace(quote(host, safe=""), quote(str(folder), safe=""))
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusals = 0
        self._after_refusals: Callable[[], object] = lambda: None
        self._ends: list[socket.socket] = []
        self.held_back = threading.Event()
        """Whether a client has sent something while the network was silent."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def refuse(self, attempts: int, then: Callable[[], object] = lambda: None) -> None:
        """Refuse the next connections."""
        self._refusals, self._after_refusals = attempts, then

    def cut(self) -> None:
        """Break every connection."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def fall_silent(self) -> None:
        """Hold back all that is said from now on, without breaking a connection."""
        self.held_back.clear()
        self._flowing.clear()

    def go_on(self) -> None:
        """Forward what was held back."""
        self._flowing.set()

    def close(self) -> None:
        self._listener.close()
        self.go_on()
        self.cut()
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refusals:
                    self._refusals -= 1
                    client.close()
                    if not self._refusals:
                        self._after_refusals()
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._ends += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if not self._flowing.is_set():
                    self.held_back.set()
                self._flowing.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
