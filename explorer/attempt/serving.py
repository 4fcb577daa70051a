"""Services that an explorer provides to a policy: access for programs over HTTP, and parking."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from trinity_db.store.calls import Call
from trinity_db.store.parks import Point

if TYPE_CHECKING:
    from trinity_db.explorer.attempt.policy import Policy


class Address(Protocol):
    """HTTP address at which a program queries the policy, using the protocol of OpenAI or Anthropic."""

    url: str
    """Base URL, without /v1."""
    key: str
    """Key that identifies the attempt. Empty if an earlier explorer gave it to the program."""

    async def conclude(self) -> Mapping[str, float]:
        """Return the rewards that the program reported. Raises the failure that it reported, if any."""

    def close(self) -> None:
        """Stop serving the program."""


class Listener(Protocol):
    """Serves a policy to programs over HTTP, and parks its attempt."""

    async def open(self, policy: "Policy") -> Address:
        """Admit a program with a new key."""

    async def resume(self, policy: "Policy") -> Address | None:
        """Readmit the attempt's program, with the key from an earlier explorer, or return None."""

    async def ticket(self) -> int:
        """Return the ticket number that an answer to the attempt's next park must name."""

    async def park(self, point: Point, calls: Sequence[Call]) -> None:
        """Park the attempt, with its unstored calls. It is durable when this returns."""
