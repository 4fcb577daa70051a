"""What a policy needs of its explorer: that programs may ask it over HTTP, and that its attempt may park."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from trinity_db.store.calls import Call
from trinity_db.store.parks import Point

if TYPE_CHECKING:
    from trinity_db.explorer.policy import Policy


class Address(Protocol):
    """Where a program asks the policy over HTTP, in the protocol of OpenAI or Anthropic."""

    url: str
    """The base URL, without /v1."""
    key: str
    """Names the attempt. Empty where an earlier explorer gave it to the program."""

    async def conclude(self) -> Mapping[str, float]:
        """What the program said to have earned; it raises what the program said to have failed by."""

    def close(self) -> None:
        """Answer no more."""


class Listener(Protocol):
    """Lets programs ask a policy over HTTP, and parks its attempt."""

    async def open(self, policy: "Policy") -> Address:
        """By a new key."""

    async def resume(self, policy: "Policy") -> Address | None:
        """By the key that a program of the same attempt has of an explorer that is gone; None: none has."""

    async def ticket(self) -> int:
        """The number by which the attempt's next park is answered."""

    async def park(self, point: Point, said: Sequence[Call]) -> None:
        """Park the attempt, with the calls that are not stored yet. It is durable when this returns."""
