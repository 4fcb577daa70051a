"""Where the page listens, and by which address browsers find it there."""

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

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

    def __post_init__(self) -> None:
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
            return Origin("http", host_in_link(self.host), port)
        except ValueError:
            raise ConfigError(f"--host {self.host}: give a name or an address of this machine.") from None

    @property
    def warning(self) -> str | None:
        """What a person should know before keys travel."""
        origin = self.origin(self.port)
        if origin.is_encrypted or origin.is_of_this_machine:
            return None
        return (
            "Keys and all that the page shows travel unencrypted: put a proxy that speaks TLS in front of "
            "the page, and name what browsers open by --address https://..."
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


def _is_unspecified(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
