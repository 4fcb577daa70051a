"""A real PgBouncer in front of a server."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from tests.postgres import new_home
from trinity_db import embedded

WAIT_SECONDS = 20.0
POOL_SIZE = 4  # server connections for each database: fewer than a run has clients

CONFIG = """
[databases]
* = host={server}
[pgbouncer]
pool_mode = {mode}
default_pool_size = {size}
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users.txt
logfile = {folder}/log
server_login_retry = 0.2
"""


class Pooler:
    """A running PgBouncer in a folder of its own; `url` leads through it to the database of another URL."""

    def __init__(self, url: str, mode: str, folder: Path, size: int = POOL_SIZE) -> None:
        command = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if command is None:
            pytest.skip("no PgBouncer found; install Debian's package pgbouncer")
        (host,) = parse_qs(urlsplit(url).query)["host"]
        self.url = url.replace(quote(host, safe=""), quote(str(folder), safe=""))
        config = CONFIG.format(server=host, mode=mode, size=size, folder=folder)
        (folder / "pgbouncer.ini").write_text(config)
        logins = (embedded.SUPERUSER, embedded.READER)
        (folder / "users.txt").write_text("".join(f'"{login}" ""\n' for login in logins))
        account = embedded.server_account(folder / "data")  # it refuses to run as root
        if account is not None:
            os.chown(folder, account.uid, account.gid)
        self._log = (folder / "output").open("wb")
        self._process = subprocess.Popen(
            [command, folder / "pgbouncer.ini"],
            stdout=self._log,
            stderr=self._log,
            **embedded.as_account(account),
        )
        deadline = time.monotonic() + WAIT_SECONDS
        while not _answers(folder / embedded.SOCKET):
            assert self._process.poll() is None, (folder / "output").read_text()
            assert time.monotonic() < deadline, (folder / "output").read_text()
            time.sleep(0.01)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


@contextmanager
def pooled(url: str, mode: str = "transaction", size: int = POOL_SIZE) -> Iterator[str]:
    """The URL of the same database through a PgBouncer of this block's own."""
    folder = new_home()
    pooler = Pooler(url, mode, folder, size)
    try:
        yield pooler.url
    finally:
        pooler.close()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0
