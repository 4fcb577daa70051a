"""The public address of the page. Requests with another host name, or from another site, are refused."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from trinity_db.errors import ConfigError

PORTS = {"http": 80, "https": 443}
"""Default ports, which browsers leave out."""
NAME = re.compile(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z]([a-z0-9-]*[a-z0-9])?")
LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?")


@dataclass(frozen=True)
class Origin:
    """A scheme, a host and a port, as browsers write them."""

    scheme: str
    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse an address that a person gives.

        Raises:
            ConfigError: if it is not an address, or has more than scheme, host and port.
        """
        try:
            parts = urlsplit(text)
            if parts.scheme not in PORTS or parts.path not in ("", "/"):
                raise ValueError
            if "@" in parts.netloc or parts.query or parts.fragment:
                raise ValueError
            port = PORTS[parts.scheme] if parts.port is None else parts.port
            return cls(parts.scheme, host_in_link(parts.hostname or ""), port)
        except ValueError:
            raise ConfigError(
                f"--address {text}: give what browsers open, without a path: https://page.example.org."
            ) from None

    def __str__(self) -> str:
        return f"{self.scheme}://{self._short}"

    @property
    def is_encrypted(self) -> bool:
        return self.scheme == "https"

    @property
    def is_of_this_machine(self) -> bool:
        """Whether only this machine can reach the page at this address."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    def is_asked(self, host: str) -> bool:
        """Whether a request's `Host` header names the page.

        A page at 127.0.0.1 accepts any port, because a tunnel may use another one. No other site can have
        this name.
        """
        if LOOPBACK.fullmatch(self._short):
            return LOOPBACK.fullmatch(host) is not None
        return host in (self._short, self._long)

    def is_from(self, origin: str, host: str) -> bool:
        """Whether a page of this origin made a request, judging by its `Origin` and `Host` headers."""
        own = f"{self.scheme}://{host}" if LOOPBACK.fullmatch(self._short) else str(self)
        return self.is_asked(host) and origin == own

    @property
    def _short(self) -> str:
        return self.host if self.port == PORTS[self.scheme] else self._long

    @property
    def _long(self) -> str:
        return f"{self.host}:{self.port}"


def host_in_link(host: str) -> str:
    """Write a host name or address as browsers write it in a link.

    Raises:
        ValueError: if browsers do not all write it alike.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if NAME.fullmatch(host.lower()) is None:
            raise
        return host.lower()
    return f"[{address}]" if address.version == 6 else str(address)
