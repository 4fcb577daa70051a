"""A real PgBouncer in front of a server."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from tests.support.postgres import new_home
from trinity_db.postgres.embedded.accounts import as_account, server_account
from trinity_db.postgres.embedded.home_paths import READER, SOCKET, SUPERUSER

WAIT_SECONDS = 20.0
POOL_SIZE = 4  # server connections for each database: fewer than a run has clients
CLIENTS = 100  # as by default

CONFIG = """
[databases]
* = host={server}
[pgbouncer]
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = {clients}
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users.txt
admin_users = {admin}
logfile = {folder}/log
server_login_retry = 0.2
"""


class Pooler:
    """A running PgBouncer in a folder of its own; `url` leads through it to the database of another URL."""

    def __init__(
        self, url: str, mode: str, folder: Path, size: int = POOL_SIZE, clients: int = CLIENTS
    ) -> None:
        command = installed()
        if command is None:
            pytest.skip("no PgBouncer found; install Debian's package pgbouncer")
        (host,) = parse_qs(urlsplit(url).query)["host"]
        folder.mkdir(exist_ok=True)
        self.url = url.replace(quote(host, safe=""), quote(str(folder), safe=""))
        config = CONFIG.format(
            server=host, mode=mode, size=size, clients=clients, folder=folder, admin=SUPERUSER
        )
        (folder / "pgbouncer.ini").write_text(config)
        logins = (SUPERUSER, READER)
        (folder / "users.txt").write_text("".join(f'"{login}" ""\n' for login in logins))
        account = server_account(folder / "data")  # it refuses to run as root
        if account is not None:
            os.chown(folder, account.uid, account.gid)
        self._command, self._folder, self._account = command, folder, account
        self.start()

    def start(self) -> None:
        """Start it, also after `kill`, and wait until it answers."""
        output = self._folder / "output"
        with output.open("ab") as log:
            self._process = subprocess.Popen(
                [self._command, self._folder / "pgbouncer.ini"],
                stdout=log,
                stderr=log,
                **as_account(self._account),
            )
        deadline = time.monotonic() + WAIT_SECONDS
        while not _answers(self._folder / SOCKET):
            assert self._process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a power cut would; its clients lose their connections, and its address is gone."""
        self._process.kill()
        self._process.wait()

    def cut_clients(self) -> int:
        """Take their connections from all clients of the database; how many there were."""
        parts = urlsplit(self.url)
        name, console = parts.path[1:], parts._replace(path="/pgbouncer").geturl()
        # The console knows neither transactions nor parameters.
        with closing(psycopg.connect(console, autocommit=True, row_factory=dict_row)) as connection:
            cursor = psycopg.ClientCursor(connection)
            clients = cursor.execute("SHOW CLIENTS").fetchall()
            count: int = sum(client["database"] == name for client in clients)
            if count:  # without a client the pooler may not know the database
                cursor.execute(SQL("KILL {}").format(Identifier(name)))
                cursor.execute(SQL("RESUME {}").format(Identifier(name)))
        return count


@contextmanager
def pooled(
    url: str, mode: str = "transaction", size: int = POOL_SIZE, clients: int = CLIENTS
) -> Iterator[str]:
    """The URL of the same database through a PgBouncer of this block's own."""
    folder = new_home()
    pooler = Pooler(url, mode, folder, size, clients)
    try:
        yield pooler.url
    finally:
        pooler.kill()
        shutil.rmtree(folder, ignore_errors=True)


def installed() -> str | None:
    """The command, if it is on this machine."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0
