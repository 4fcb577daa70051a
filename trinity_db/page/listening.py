"""The address and port that the page listens on, and the address that browsers open."""

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
    """Options for listening, validated as far as possible without opening a socket."""

    host: str = HERE
    port: int = 0
    """0: any free port."""
    address: Origin | None = None
    """Address that browsers open, if it differs."""

    def __post_init__(self) -> None:
        if self.address is None and _is_unspecified(self.host):
            raise ConfigError(
                f"{self.host} means all addresses of this machine: name the address that browsers open, "
                f"such as --address http://NAME:{self.port or 'PORT'}."
            )
        if self.address is None:
            self.origin(self.port)

    def origin(self, port: int) -> Origin:
        """Address at which browsers find the page, given its port."""
        if self.address is not None:
            return self.address
        try:
            return Origin("http", host_in_link(self.host), port)
        except ValueError:
            raise ConfigError(f"--host {self.host}: give a name or an address of this machine.") from None

    @property
    def warning(self) -> str | None:
        """Warning to show before keys are sent over the network; None if there is nothing to warn of."""
        origin = self.origin(self.port)
        if origin.is_encrypted or origin.is_of_this_machine:
            return None
        return (
            "Keys and everything that the page shows travel unencrypted: put a TLS proxy in front of the "
            "page, and name the address that browsers open with --address https://..."
        )

    def open(self) -> socket.socket:
        """Open a listening socket.

        Raises:
            ConfigError: if the port is taken, or the machine has no such address.
        """
        try:
            addresses = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = addresses[0]
            return socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except (socket.gaierror, UnicodeError) as error:
            raise ConfigError(f"--host {self.host}: unknown host ({error}).") from error
        except OSError as error:
            reason = os.strerror(error.errno or 0)  # create_server adds the address to its message
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(
                    f"--host {self.host}: this machine has no such address ({reason})."
                ) from error
            raise ConfigError(
                f"Port {self.port} of {self.host} cannot be used ({reason}): choose another with --port, or "
                "--port 0."
            ) from error


def _is_unspecified(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
