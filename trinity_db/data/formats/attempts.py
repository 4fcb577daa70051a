"""Split of an attempt's conversation into prompt and response."""

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]


def parted(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Return the prompt, and the response: everything from the first assistant turn on.

    So attempts at one task have the same prompt, regardless of their number of turns.
    """
    roles = [message.get("role") for message in messages]
    start = roles.index("assistant") if "assistant" in roles else len(roles)
    return list(messages[:start]), list(messages[start:])
