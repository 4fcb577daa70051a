"""Where the page listens, and by which address browsers find it there."""

import errno
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from trinity_db.errors import ConfigError
from trinity_db.page.origin import Origin, host_in_link

HERE = "127.0.0.1"
BACKLOG = 128


@dataclass(frozen=True)
class Listening:
    """What the page is told of it, checked as far as it can be without listening."""

    host: str = HERE
    port: int = 0
    """0: any that is free."""
    address: Origin | None = None
    """What browsers open, where that is something else."""
    certificate: Path | None = None
    private_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("--certificate and --private-key belong together: give both.")
        if self.certificate is not None:
            _check_pair(self.certificate, self.private_key)
            if self.address is not None and not self.address.is_encrypted:
                raise ConfigError("With --certificate browsers speak TLS: begin --address with https://.")
        if self.address is None and _is_unspecified(self.host):
            raise ConfigError(
                f"{self.host} stands for all addresses of this machine: say by --address what browsers open, "
                f"as http://NAME:{self.port or 'PORT'}."
            )
        if self.address is None:
            self.origin(self.port)

    def origin(self, port: int) -> Origin:
        """Where browsers find the page, if it listens at a port."""
        if self.address is not None:
            return self.address
        try:
            return Origin("http" if self.certificate is None else "https", host_in_link(self.host), port)
        except ValueError:
            raise ConfigError(f"--host {self.host}: give a name or an address of this machine.") from None

    @property
    def warning(self) -> str | None:
        """What a person should know before keys travel."""
        origin = self.origin(self.port)
        if origin.is_encrypted or origin.is_of_this_machine:
            return None
        return (
            "Keys and all that the page shows travel unencrypted: give --certificate and --private-key, or "
            "let a proxy speak TLS and name it by --address https://..."
        )

    def open(self) -> socket.socket:
        """A socket that listens.

        Raises:
            ConfigError: the port is taken, or the machine has no such address.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, place = found[0]
            return socket.create_server(place[:2], family=family, backlog=BACKLOG)
        except (socket.gaierror, UnicodeError) as error:
            raise ConfigError(f"--host {self.host}: no machine has this name ({error}).") from error
        except OSError as error:
            reason = os.strerror(error.errno or 0)  # create_server adds the address to what it says
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(
                    f"--host {self.host}: this machine has no such address ({reason})."
                ) from error
            raise ConfigError(
                f"Port {self.port} of {self.host} cannot be used ({reason}): give another by --port, or "
                "--port 0."
            ) from error


def _check_pair(certificate: Path, private_key: Path | None) -> None:
    """Refuse files with which no server can speak TLS.

    Raises:
        ConfigError: naming what is wrong with them.
    """

    def ask() -> str:
        raise ConfigError(f"--private-key {private_key}: has a passphrase; give a key without one.")

    for path in (certificate, private_key):
        try:
            assert path is not None
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key, ask)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"--certificate {certificate} and --private-key {private_key} are no pair in PEM: {error}"
        ) from None


def _is_unspecified(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
