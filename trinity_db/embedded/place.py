"""Where the parts of a home are: the server's data, log, socket, port and passwords, and its addresses."""

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from trinity_db.privileges import PASSWORD_BYTES

DATABASE = "trinity"
SUPERUSER = "postgres"
READER = "reader"  # the login of commands that only look
PORT = 5432  # unless `listen` chose one: part of the socket's name; stated everywhere, whatever PGPORT says
SOCKET = f".s.PGSQL.{PORT}"
LOOPBACK = "127.0.0.1"
SOCKET_BYTES = 103  # the longest socket path on macOS; Linux allows 107


@dataclass(frozen=True)
class Place:
    """A home and the names of what is in it, whether or not it is there."""

    home: Path
    """Absolute and without symbolic links: the socket's place is computed from its spelling."""

    @property
    def data(self) -> Path:
        return self.home / "postgres"

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"

    @property
    def lock(self) -> Path:
        return self.home / "postgres.lock"

    @property
    def pid_file(self) -> Path:
        """A server that was stopped removed it; one that was killed left it."""
        return self.data / "postmaster.pid"

    @property
    def socket(self) -> Path:
        """The socket's folder. One in /tmp where the home's path is too long, or has a comma (which libpq
        reads as a list of hosts); not in TMPDIR, which may differ from process to process.
        """
        inside = self.home / "socket"
        if len(os.fsencode(inside / SOCKET)) <= SOCKET_BYTES and "," not in str(inside):
            return inside
        return Path("/tmp", f"trinity-db-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]}")

    @property
    def port_file(self) -> Path:
        """Holds the TCP port; missing where the server hears none."""
        return self.home / "postgres.port"

    @property
    def tcp_port(self) -> int | None:
        """Where the server listens on the loopback interface too; None: nowhere."""
        try:
            return int(self.port_file.read_text())
        except FileNotFoundError:
            return None

    @property
    def port(self) -> int:
        return self.tcp_port or PORT

    def url(self, database: str = DATABASE, login: str = SUPERUSER) -> str:
        """Where clients connect by the socket, whether or not the server runs."""
        return f"postgresql://{login}@/{database}?host={quote(str(self.socket), safe='')}&port={self.port}"

    def tcp_url(self, login: str = SUPERUSER) -> str | None:
        """Where clients connect that know TCP only, with the password; None: the server hears no port."""
        if self.tcp_port is None:
            return None
        return f"postgresql://{login}:{self.password(login)}@{LOOPBACK}:{self.tcp_port}/{DATABASE}"

    def password(self, login: str) -> str:
        """The password with which a login comes by TCP; made when it is first asked for."""
        path = self.home / f"{login}.password"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(PASSWORD_BYTES))
        except FileExistsError:
            pass
        return path.read_text()
