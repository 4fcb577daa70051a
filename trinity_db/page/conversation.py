"""A conversation, turn by turn."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trinity_db.page import layout
from trinity_db.page.elements import said

TURNS = 200  # of a conversation that are shown
ROLES = ("assistant", "user", "system", "tool")


def show(turns: Iterable[tuple[str, str]]) -> None:
    """A card with turns: of each a role and a text."""
    with said("div", "", "card turns"):
        for who, text in list(turns)[:TURNS]:
            with said("div", "", f"turn {who if who in ROLES else ''}"):
                said("span", who, "who")
                said("pre", layout.cut(text), "text")


def prompt_turns(messages: Any, prompt: str | None) -> Iterator[tuple[str, str]]:
    """A prompt as pairs of a role and a text; without messages it is one turn."""
    for message in messages or [{"role": "prompt", "content": prompt or ""}]:
        yield str(message.get("role", "message")), _content(message)


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message, with what else it has as JSON."""
    content = message.get("content")
    rest = {key: value for key, value in message.items() if key not in ("role", "content") and value}
    lines = [
        content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""
    ]
    if rest:
        lines.append(json.dumps(rest, ensure_ascii=False, indent=1))
    return "\n".join(line for line in lines if line)
