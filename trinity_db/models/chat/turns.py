"""Positions of the assistant's turns in a conversation rendered with a chat template, and their end token.

Rendered text has no markers for them. A turn begins where the prompt that asks for it ends, and ends with the
first token behind its parts at which an engine stops. Loads neither torch nor transformers.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from trinity_db.models.chat.parts import Message, Rendering, Span
from trinity_db.models.chat.prompts import ChatRenderer, UntokenizableText

_QUESTION: Message = {"role": "user", "content": "question"}
_ANSWER: Message = {"role": "assistant", "content": "answer"}
_UNFINISHED = re.compile(r"[<\[][^<>\[\]]*\Z")
"""The beginning of a tag at the end of a text."""
_ADVICE = "so that it cannot be learned; give it a weight of 0."


class Turns:
    """Turns of a tokenizer's chat template, or of the plain lines that replace a missing one.

    Attributes:
        end: the special token with which the template ends an assistant turn, such as "<|im_end|>". None
            without a template, if it writes no special token there, or if it rejects a plain question with an
            answer.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        tokenizer = renderer.tokenizer
        added = tokenizer.added_tokens_decoder
        special = [token.content for token in added.values() if token.special]
        self._special = tuple({token for token in (*tokenizer.all_special_tokens, *special) if token})
        self.end = self._behind_answer(_QUESTION, _ANSWER)
        inner = self._behind_answer(_QUESTION, _ANSWER, _QUESTION)
        self._is_ended_by_role = self.end is None and inner is not None
        numbers = {tokenizer.eos_token_id, *renderer.end_tokens}
        configured = [token.content for number, token in added.items() if number in numbers]
        self._ends = {token for token in (self.end, inner, *configured) if token}
        """Tokens at which an engine ends a turn, or by which the template ends it."""

    def taught(
        self, messages: Sequence[Message], rendering: Rendering, tools: Sequence[Message] = ()
    ) -> Iterator[Span]:
        """Yield the positions of the assistant turns to learn from, those with weight 1.

        Each span reaches from the end of the generation prompt to the end of the turn, including its end
        token. The key `weight` follows OpenAI's fine-tuning files. Each turn costs another rendering of all
        messages before it, so callers should iterate only as far as needed.

        Args:
            tools: the tools in the rendering.

        Raises:
            UntokenizableText: as `span`.
        """
        for index, message in enumerate(messages):
            if message["role"] == "assistant" and message.get("weight") == 1:
                yield self.span(index, messages, rendering, tools)

    def span(
        self, index: int, messages: Sequence[Message], rendering: Rendering, tools: Sequence[Message]
    ) -> Span:
        """Return the position of an assistant turn.

        Raises:
            UntokenizableText: if the chat template leaves out a part of the turn, or renders it or the
                messages before it differently once others follow, for example without its thought; or if the
                turn is empty or contains an end token.
        """
        own = rendering.of_message(index)
        if not own:
            raise UntokenizableText(f"Message {index + 1} is empty, {_ADVICE}")
        if end_token := next((end for end in self._ends for part in own if end in part.text), None):
            raise UntokenizableText(
                f"Message {index + 1} holds {end_token}, the token that ends a turn, {_ADVICE}"
            )
        others = [part for part in rendering.parts if part.message != index or part.kind == "tool"]
        begin = self._begin(index, messages, rendering, tools)
        before = [part for part in others if part.message < index or part.kind == "tool"]
        shown = [next((stop for start, stop in part.spans if start >= begin), 0) for part in own]
        if not all(shown) or any(part.spans and part.spans[0][1] > begin for part in before):
            alone = self._renderer.rendering(messages[: index + 1], tools, asks=False)
            if all(part.spans for part in alone.of_message(index)):
                does = f"rewrites message {index + 1} once others follow it"
            else:
                does = f"leaves out or changes a part of message {index + 1}"
            raise UntokenizableText(f"The chat template {does}, {_ADVICE}")
        last = max(shown)
        follows = min(
            (start for part in others for start, _ in part.spans if start >= last),
            default=len(rendering.text),
        )
        end = self._end(index, messages, rendering.text, (last, follows), tools)
        if any(start < end and stop > begin for part in others for start, stop in part.spans):
            raise UntokenizableText(
                f"The chat template shows other parts within message {index + 1}, {_ADVICE}"
            )
        return begin, end

    def outside(self, tool: Message, call: Message, result: Message) -> set[str]:
        """Return the special tokens around messages and at the end of turns.

        Args:
            tool: a tool, a turn that calls it, and its result: such a turn may end by another token.
        """
        tokens: set[str] = set()
        for tools, turns in (
            ((), (_QUESTION, _ANSWER, _QUESTION)),
            ((tool,), (_QUESTION, call, result, _ANSWER)),
        ):
            with suppress(UntokenizableText):
                rendering = self._renderer.rendering(turns, tools, asks=False)
                begin, end = self.span(1, turns, rendering, tools)
                around = [] if tools else [rendering.text[:begin], rendering.text[end:]]
                tokens |= {token for token in self._special if any(token in text for text in around)}
                tokens |= {token for token in self._special if rendering.text.endswith(token, begin, end)}
        return tokens

    def is_ended(self, text: str) -> bool:
        """Whether a text ends with a special token, at which an engine would stop."""
        return text.endswith(self._special)

    def _behind_answer(self, *turns: Message) -> str | None:
        """Return the first special token behind the answer in a conversation."""
        try:
            whole = self._renderer.text(turns, asks=False)
        except UntokenizableText:
            return None
        _, answer, behind = whole.rpartition("answer")
        return self._first_special(behind) if answer else None

    def _first_special(self, text: str) -> str | None:
        """Return the first special token in a text; the longer of two that start at the same character."""
        starts = [(text.index(token), -len(token), token) for token in self._special if token in text]
        return min(starts)[2] if starts else None

    def _begin(
        self, index: int, messages: Sequence[Message], rendering: Rendering, tools: Sequence[Message]
    ) -> int:
        """Return the start of a turn: the end of the prompt that asks for it.

        A generation prompt may open a reasoning block while earlier answers have none. The answer then starts
        where the two texts diverge. They may diverge within a tag, for example after the "<" of "<think>" and
        "<answer>"; it belongs to the answer.
        """
        text = rendering.text
        first = min(
            (part.spans[0][0] for part in rendering.of_message(index) if part.spans), default=len(text)
        )
        if index == 0:  # no prompt asks for it, and templates write a header
            return first
        prompt = self._renderer.text(messages[:index], tools, asks=True)
        begin = shared(prompt, text)
        if begin < len(prompt) and (unfinished := _UNFINISHED.search(text, max(0, begin - 100), begin)):
            begin = unfinished.start()
        return min(begin, first)

    def _end(
        self, index: int, messages: Sequence[Message], text: str, behind: Span, tools: Sequence[Message]
    ) -> int:
        """Return the end of a turn.

        Args:
            behind: from the end of the turn's last part to the next part in the text.
        """
        last = behind[0]
        mark = self._first_special(text[slice(*behind)])
        if mark is not None and mark in self._ends:
            return text.index(mark, last) + len(mark)
        # Tool calls may end with several special tokens, and the turn with one that a plain answer has not.
        whole = self._renderer.text(messages[: index + 1], tools, asks=False)
        edge = shared(whole, text)
        if unfinished := _UNFINISHED.search(text, last, edge):
            edge = unfinished.start()
        closing = text[last:edge].rstrip()
        ends = [(closing.index(end), len(end)) for end in self._ends if end in closing]
        if ends:
            return last + sum(min(ends))
        following = text[edge:].lstrip()
        mark = self._first_special(following) or ""
        is_next = bool(mark) and following.startswith(mark)
        if is_next and (self._is_ended_by_role or not self.is_ended(closing)):
            return len(text) - len(following) + len(mark)
        return last + len(closing)


def shared(text: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    low, high = 0, min(len(text), len(other))
    if text[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
