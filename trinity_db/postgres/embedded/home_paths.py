"""Paths of a home: the server's data, log, socket, port and passwords, and its addresses."""

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from trinity_db.postgres.logins import PASSWORD_BYTES

DATABASE = "trinity"
SUPERUSER = "postgres"
READER = "reader"  # the login of read-only commands
PORT = 5432  # unless set by `listen`; part of the socket's name; always explicit, whatever PGPORT is
SOCKET = f".s.PGSQL.{PORT}"
LOOPBACK = "127.0.0.1"
SOCKET_BYTES = 103  # longest socket path on macOS; Linux allows 107


@dataclass(frozen=True)
class HomePaths:
    """A home and the paths in it, whether or not they exist."""

    home: Path
    """Absolute and without symbolic links, as the socket's path is derived from it."""

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
        """Removed by a clean stop; left behind when the server is killed."""
        return self.data / "postmaster.pid"

    @property
    def socket(self) -> Path:
        """Folder of the socket. In /tmp if the home's path is too long, or has a comma (which libpq treats as
        a list of hosts); not in TMPDIR, which may differ between processes.
        """
        inside = self.home / "socket"
        if len(os.fsencode(inside / SOCKET)) <= SOCKET_BYTES and "," not in str(inside):
            return inside
        return Path("/tmp", f"trinity-db-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]}")

    @property
    def port_file(self) -> Path:
        """Contains the TCP port; missing if the server listens on none."""
        return self.home / "postgres.port"

    @property
    def tcp_port(self) -> int | None:
        """TCP port on the loopback interface; None: no port."""
        try:
            return int(self.port_file.read_text())
        except FileNotFoundError:
            return None

    @property
    def port(self) -> int:
        return self.tcp_port or PORT

    def url(self, database: str = DATABASE, login: str = SUPERUSER) -> str:
        """Return the URL for connections over the socket, whether or not the server is running."""
        return f"postgresql://{login}@/{database}?host={quote(str(self.socket), safe='')}&port={self.port}"

    def tcp_url(self, login: str = SUPERUSER) -> str | None:
        """Return the URL for TCP-only clients, with the password; None: the server listens on no port."""
        if self.tcp_port is None:
            return None
        return f"postgresql://{login}:{self.password(login)}@{LOOPBACK}:{self.tcp_port}/{DATABASE}"

    def password(self, login: str) -> str:
        """Return the password of a login for TCP, creating it on first use."""
        path = self.home / f"{login}.password"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(PASSWORD_BYTES))
        except FileExistsError:
            pass
        return path.read_text()
