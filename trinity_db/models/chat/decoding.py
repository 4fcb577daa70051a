"""Decoding of sampled tokens into the text that rewards, tool parsers and programs read."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from trinity_db.models.chat.parts import Message
from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.models.chat.thoughts import marks_in
from trinity_db.models.chat.turns import Turns

_NAMES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"words": {"type": "string"}}},
    },
}
_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "123456789", "type": "function", "function": {"name": "search", "arguments": {"words": "a"}}}
    ],
}
_RESULT: Message = {"role": "tool", "name": "search", "tool_call_id": "123456789", "content": "result"}


def response_text(token_ids: Sequence[int], tokenizer: Any) -> str:
    """Decode tokens without the special tokens around messages, such as "<|im_end|>".

    Other special tokens have a meaning within a message, such as "<think>" and "<tool_call>", and stay.
    """
    hidden = _hidden(tokenizer, tokenizer.chat_template)
    if hidden is not None:
        token_ids = [token for token in token_ids if token not in hidden]
    text: str = tokenizer.decode(token_ids, skip_special_tokens=hidden is None)
    return text


@lru_cache(maxsize=4)
def _hidden(tokenizer: Any, template: str | None) -> frozenset[int] | None:
    """Return the special tokens that are left out; None for all.

    Args:
        template: the tokenizer's template, which a configuration may replace.
    """
    named = {getattr(tokenizer, f"{name}_token", None) for name in _NAMES}
    outside = Turns(ChatRenderer(tokenizer)).outside(_TOOL, _CALL, _RESULT)
    added = tokenizer.added_tokens_decoder
    special = {number: token.content for number, token in added.items() if token.special}
    # A system prompt of the template may explain marks of thoughts, so that they are around messages too.
    shown = set(chain.from_iterable(marks_in(template or "")))
    hidden = frozenset(number for number, text in special.items() if text in (named | outside) - shown)
    return None if len(hidden) == len(special) else hidden
