"""Where the response begins in the conversation of an attempt."""

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]


def parted(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """What was asked, and the response: all from the first turn of the assistant on.

    So attempts at one task have the same prompt, however many turns they took.
    """
    roles = [message.get("role") for message in messages]
    place = roles.index("assistant") if "assistant" in roles else len(roles)
    return list(messages[:place]), list(messages[place:])
