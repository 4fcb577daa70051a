"""Servers of objects of a test's own, each behind a port that can be closed or fall silent.

s3 is moto. gs is moto too: the emulators of Google's store lack requests that the library makes, and these
are nearly those of S3. moto does not know Google's condition of a creation, and takes any login. az is
Azurite, an emulator by Microsoft, which `make test-objects` installs.
"""

import base64
import email.utils
import hmac
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from trinity_db.weights.bucket import Bucket

BUCKET = "weights"
KEY = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}
SERVER = "from moto.server import main; main()"  # the installed script may name another interpreter
AZURITE = Path(__file__).parents[2] / ".azurite/node_modules/azurite/dist/src/blob/main.js"
ACCOUNT, ACCOUNT_KEY = "tests", base64.b64encode(b"key of tests").decode()  # of Azurite

AZURE = pytest.param("az", marks=pytest.mark.azurite)
on_each_server = pytest.mark.parametrize("server_of_objects", ["s3", "gs", AZURE], indirect=True)
on_azure = pytest.mark.parametrize("server_of_objects", [AZURE], indirect=True)


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
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment
        )
        self._ends: list[socket.socket] = []
        self._listener: socket.socket | None = None
        try:
            wait_until(self._answers, "the object store answers")
        except BaseException:
            self.stop()
            raise
        with urllib.request.urlopen(self._creation()):
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

    @property
    def _command(self) -> list[str]:
        return [sys.executable, "-c", SERVER, "-H", "127.0.0.1", "-p", str(self._server)]

    def _creation(self) -> urllib.request.Request:
        """The request that makes the bucket."""
        return urllib.request.Request(f"http://127.0.0.1:{self._server}/{BUCKET}", method="PUT")

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
            socket.create_connection(("127.0.0.1", self._server), timeout=5).close()
        except OSError:
            return False
        return True

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                self._ends += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


class GoogleObjects(ObjectStore):
    """The same server for a client of Google's store."""

    address = f"gs://{BUCKET}/versions"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "GOOGLE_BASE_URL": f"http://127.0.0.1:{self._port}",
            "GOOGLE_ALLOW_HTTP": "true",
            "GOOGLE_BEARER_TOKEN": "tests/20260101/us-east-1/s3/aws4_request",  # moto looks for S3's scope
        }


class AzureObjects(ObjectStore):
    """Azurite, whose bucket is a container."""

    address = f"az://{BUCKET}/versions"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self._port}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    @property
    def _command(self) -> list[str]:
        options = ["--silent", "--inMemoryPersistence", "--disableProductStyleUrl"]
        accounts = f"AZURITE_ACCOUNTS={ACCOUNT}:{ACCOUNT_KEY}"
        return ["env", accounts, "node", str(AZURITE), "--blobPort", str(self._server), *options]

    def _creation(self) -> urllib.request.Request:
        headers = {
            "x-ms-date": email.utils.formatdate(usegmt=True),
            "x-ms-version": "2021-12-02",
            "Content-Type": "",
        }
        signed = [
            *("PUT", *[""] * 11),
            *(f"{name}:{headers[name]}" for name in ("x-ms-date", "x-ms-version")),
            *(f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}", "restype:container"),
        ]
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signature(signed)}"
        address = f"http://127.0.0.1:{self._server}/{ACCOUNT}/{BUCKET}?restype=container"
        return urllib.request.Request(address, headers=headers, method="PUT")


def token_of_azure(rights: str) -> str:
    """A signature that gives rights in the container, by their letters: to read, write, delete or list."""
    version, end = "2020-12-06", "2100-01-01T00:00:00Z"
    signed = [rights, "", end, f"/blob/{ACCOUNT}/{BUCKET}", "", "", "", version, "c", *[""] * 7]
    values = {"sv": version, "se": end, "sr": "c", "sp": rights, "sig": _signature(signed)}
    return urllib.parse.urlencode(values)


def _signature(lines: list[str]) -> str:
    key = base64.b64decode(ACCOUNT_KEY)
    return base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), "sha256")).decode()


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
def new_object_store(scheme: str = "s3", **environment: str) -> Iterator[ObjectStore]:
    """A server with an empty bucket."""
    if scheme == "az" and not AZURITE.exists():
        pytest.skip("Azurite is not installed: `make test-objects` installs it")
    server = {"s3": ObjectStore, "gs": GoogleObjects, "az": AzureObjects}[scheme](**environment)
    try:
        yield server
    finally:
        server.stop()
