"""A conversation, turn by turn."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trinity_db.page import texts
from trinity_db.page.elements import said
from trinity_db.page.texts import LongText

TURNS = 200  # of a conversation that are shown
ROLES = ("assistant", "user", "system", "tool")


def show(
    turns: Iterable[tuple[str, str]], shown: int = texts.SHOWN, on_more: Callable[[], None] | None = None
) -> list[LongText]:
    """A card with turns: of each a role and a text, whole up to so many characters.

    Of more than TURNS turns, the first one and the last ones are shown.
    """
    every = list(turns)
    left_out = max(0, len(every) - TURNS)
    made = []
    with said("div", "", "card turns"):
        for place, (who, text) in enumerate(every):
            if 1 <= place <= left_out:
                if place == 1:
                    said("p", f"{left_out:,} turns are left out here: trinity-db show has them.", "muted")
                continue
            with said("div", "", f"turn {who if who in ROLES else ''}"):
                said("span", who, "who")
                made.append(LongText(text, shown, on_more))
    return made


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
