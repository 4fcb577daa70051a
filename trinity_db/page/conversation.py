"""A conversation, turn by turn."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trinity_db.page import texts
from trinity_db.page.elements import element
from trinity_db.page.texts import LongText

TURNS = 200  # shown per conversation
ROLES = ("assistant", "user", "system", "tool")


def show(
    turns: Iterable[tuple[str, str]], shown: int = texts.SHOWN, on_more: Callable[[], None] | None = None
) -> list[LongText]:
    """Show a card of turns, each with its role and its text, the text cut after so many characters.

    Of more than TURNS turns, only the first and the last ones are shown.
    """
    every = list(turns)
    left_out = max(0, len(every) - TURNS)
    made = []
    with element("div", "", "card turns"):
        for index, (role, text) in enumerate(every):
            if 1 <= index <= left_out:
                if index == 1:
                    element(
                        "p", f"{left_out:,} turns are left out here: trinity-db show prints them.", "muted"
                    )
                continue
            with element("div", "", f"turn {role if role in ROLES else ''}"):
                element("span", role, "who")
                made.append(LongText(text, shown, on_more))
    return made


def prompt_turns(messages: Any, prompt: str | None) -> Iterator[tuple[str, str]]:
    """Yield a prompt as pairs of role and text; a prompt without messages is one turn."""
    for message in messages or [{"role": "prompt", "content": prompt or ""}]:
        yield str(message.get("role", "message")), _content(message)


def _content(message: Mapping[str, Any]) -> str:
    """Text of a message, with its other fields as JSON."""
    content = message.get("content")
    fields = {key: value for key, value in message.items() if key not in ("role", "content") and value}
    lines = [
        content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""
    ]
    if fields:
        lines.append(json.dumps(fields, ensure_ascii=False, indent=1))
    return "\n".join(line for line in lines if line)
