"""A real S3 server of a test's own, by moto, behind a port that can be closed or fall silent."""

import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.error import URLError

from tests.waiting import wait_until
from trinity_db.weights.bucket import Bucket

BUCKET = "weights"
KEY = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}
SERVER = "from moto.server import main; main()"  # the installed script may name another interpreter


class ObjectStore:
    """A server with one bucket. What it has is gone when it stops.

    Args:
        environment: of the server, which names its settings.
    """

    address = f"s3://{BUCKET}/versions"
    """What `trainer.weights` says."""

    def __init__(self, **environment: str) -> None:
        self._server = _free_port()
        self._port = _free_port()
        command = [sys.executable, "-c", SERVER, "-H", "127.0.0.1", "-p", str(self._server)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment
        )
        self._ends: list[socket.socket] = []
        self._listener: socket.socket | None = None
        try:
            wait_until(self._answers, "the object store answers")
        except BaseException:
            self.stop()
            raise
        request = urllib.request.Request(f"http://127.0.0.1:{self._server}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(request):
            pass
        self.come_back()

    @property
    def environment(self) -> dict[str, str]:
        """How processes find the server."""
        return KEY | {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }

    def stop(self) -> None:
        self.go_away()
        self._process.kill()
        self._process.wait()

    def go_away(self) -> None:
        """Refuse connections, and break those that are there."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()

    def fall_silent(self) -> None:
        """Accept connections, and answer nothing."""
        self.go_away()
        self._listener = socket.create_server(("127.0.0.1", self._port), reuse_port=False)

    def is_asked(self) -> bool:
        """Whether a client waits for an answer of a server that has fallen silent."""
        assert self._listener is not None
        self._listener.settimeout(0)
        with suppress(BlockingIOError):
            self._ends.append(self._listener.accept()[0])
        return bool(self._ends)

    def come_back(self) -> None:
        self.go_away()
        self._listener = socket.create_server(("127.0.0.1", self._port), reuse_port=False)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def names(self) -> list[str]:
        """All objects, by their names behind the address. The environment names the server."""
        return sorted(Bucket(self.address).names())

    def versions(self) -> list[int]:
        """The numbers of the versions that are whole."""
        found = [re.search(r"/version-(\d+)-\w+/manifest\.json$", name) for name in self.names()]
        return sorted(int(one[1]) for one in found if one)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._server}/moto-api/", timeout=5):
                return True
        except (URLError, OSError):
            return False

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                self._ends += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def new_object_store(**environment: str) -> Iterator[ObjectStore]:
    """A server with an empty bucket."""
    server = ObjectStore(**environment)
    try:
        yield server
    finally:
        server.stop()
