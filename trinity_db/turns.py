"""Where the turns of the assistant lie in a conversation as a chat template shows it, and what ends them.

Nothing marks them there, so each is found by what the template shows of the messages up to it. Loads neither
torch nor transformers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trinity_db.prompts import ChatRenderer, UntokenizableText, function_of, plain

Message = Mapping[str, Any]
Span = tuple[int, int]
"""The first character of a part of a text, and the one behind its last."""


class Turns:
    """The turns of a tokenizer's chat template, or of the lines that stand for one.

    Attributes:
        end: the special token by which the template ends a turn of the assistant, such as "<|im_end|>". None
            where there is no template, where it writes no special token there, or refuses a plain question
            with an answer.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        tokenizer = renderer.tokenizer
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._special = tuple({token for token in (*tokenizer.all_special_tokens, *added) if token})
        self.end = self._end() if renderer.has_template else None

    def taught(self, messages: Sequence[Message], text: str, tools: Sequence[Message] = ()) -> Iterator[Span]:
        """Where the turns of the assistant lie that are to be learned: those of weight 1.

        Each goes from the end of what the model is asked then to the end of the turn, with the token that
        ends it. The key `weight` is that of OpenAI's fine-tuning files. The template shows all messages
        before a turn again to find it, so the caller asks for no more turns than it needs.

        Args:
            text: the messages as the chat template shows them, perhaps with more behind them.
            tools: those that the text shows.

        Raises:
            UntokenizableText: the chat template shows a turn otherwise once others follow it, as some leave
                out what a model thought; or a turn holds the token that ends it.
        """
        for number, message in enumerate(messages, 1):
            if message["role"] == "assistant" and message.get("weight") == 1:
                holds_end = self._holds_end(message)
                span = None if holds_end else self.last(messages[:number], text, tools)
                if span is None:
                    if holds_end or (self.end and self.end in plain(message)["content"]):
                        raise UntokenizableText(
                            f"Message {number} holds {self.end}, the token that ends a turn, so that it "
                            "cannot be learned whole; give it a weight of 0."
                        )
                    does = "leaves out a part of" if number == len(messages) else "rewrites"
                    when = "" if number == len(messages) else " once others follow it"
                    raise UntokenizableText(
                        f"The chat template {does} message {number}{when}, so that it cannot be learned; "
                        "give it a weight of 0."
                    )
                yield span

    def _holds_end(self, message: Message) -> bool:
        """Whether a thought or a tool call has the token that ends a turn, or text before a tool call has it.

        The first of these tokens in a turn counts as its end.
        """
        if not self.end:
            return False
        about = plain(message)
        said = about.pop("content")
        in_words = bool(about.get("tool_calls")) and self.end in said
        return in_words or self.end in json.dumps(about, ensure_ascii=False, default=str)

    def last(self, messages: Sequence[Message], text: str, tools: Sequence[Message] = ()) -> Span | None:
        """Where the last of these messages lies in a text; None where the text shows it otherwise."""
        start = self._begin_of_last(messages, text, tools)
        stop = None if start is None else self._end_of_last(messages, start, text, tools)
        if start is None or stop is None or not self._is_whole(messages, text, (start, stop), tools):
            return None
        return start, stop

    def _is_whole(self, messages: Sequence[Message], text: str, span: Span, tools: Sequence[Message]) -> bool:
        """Whether a part of a text shows all that the last of these messages says, a thought too."""
        said = packed(plain(messages[-1])["content"])
        if said in packed(text[slice(*span)]):
            return True
        if not self._renderer.has_template or len(messages) == 1:
            return False
        # What asks for the answer may have written its beginning.
        before = self._renderer.shown(messages[:-1], tools)
        return text.startswith(before) and said in packed(text[len(before) : span[1]])

    def is_ended(self, text: str) -> bool:
        """Whether a text ends by a special token, at which an engine would stop."""
        return text.endswith(self._special)

    def _end(self) -> str | None:
        turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
        try:
            whole = self._renderer.shown(turns)
        except UntokenizableText:
            return None
        _, found, behind = whole.rpartition("answer")
        return self._first_special(behind) if found else None

    def _first_special(self, text: str) -> str | None:
        """The first special token in a text; of two that begin at the same character, the longer one."""
        found = [(text.index(one), -len(one), one) for one in self._special if one in text]
        return min(found)[2] if found else None

    def _begin_of_last(self, messages: Sequence[Message], text: str, tools: Sequence[Message]) -> int | None:
        """The character of a text at which the last of these messages begins; None if they are not in it.

        A template may ask for an answer by the beginning of a thought, and show none in the answers of
        before. The answer begins then where they part.
        """
        before = messages[:-1]
        if not before:  # no question stands before it, and templates write a header
            head = self._up_to_words(messages, tools)
            begin = None if head is None else _behind_spaces(text, shared(head, text))
            said = plain(messages[-1])["content"].strip()
            return begin if begin is not None and text.startswith(said, begin) else None
        shown = asked = self._renderer.ask(before, tools)
        common = shared(asked, text)
        if common == len(asked):
            return common
        if self._renderer.has_template:
            shown = self._renderer.shown(before, tools)
        if not text.startswith(shown):
            return None
        # They may part within a mark, as "<think>" and "<answer>" do behind "<"; it is of the answer.
        mark = text.rfind("<", len(shown), common)
        return common if mark < 0 or ">" in text[mark:common] else mark

    def _up_to_words(self, messages: Sequence[Message], tools: Sequence[Message]) -> str | None:
        """What a text shows up to the words of the last of these messages; None if it rewrites them.

        A header may hold the same words. So the message is shown a second time with other words: what
        stands behind them is where the two texts agree, from their ends.
        """
        *before, last = messages
        said = plain(last)["content"].strip()
        other = "b" if said.endswith("a") else "a"
        shown, marked = (self._shown([*before, {**last, "content": one}], tools) for one in (said, other))
        begin = len(shown) - shared(shown[::-1], marked[::-1]) - len(said)
        return shown[:begin] if said and begin >= 0 and shown.startswith(said, begin) else None

    def _shown(self, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        if self._renderer.has_template:
            return self._renderer.shown(messages, tools)
        return self._renderer.ask(messages, tools)

    def _end_of_last(
        self, messages: Sequence[Message], start: int, text: str, tools: Sequence[Message]
    ) -> int | None:
        """Behind which character of a text the last of these messages ends, if it begins at `start`."""
        said = plain(messages[-1])["content"].strip()
        begin = _behind_spaces(text, start)
        is_called = bool(messages[-1].get("tool_calls"))
        if self.end and self.end not in said and not is_called and text.startswith(said + self.end, begin):
            return begin + len(said) + len(self.end)
        if self._renderer.has_template:
            whole = self._renderer.shown(messages, tools).rstrip()
            if len(whole) > start and text.startswith(whole):
                # Behind the end of a turn some templates write that of the conversation.
                found = text.find(self.end, start, len(whole)) if self.end else -1
                return found + len(self.end) if self.end and found >= 0 else len(whole)
            # Some end the last turn otherwise than one before others, and write a header before its words.
            head = self._up_to_words(messages, tools)
            if head is not None and len(head) >= start and text.startswith(head):
                begin = _behind_spaces(text, len(head))
        # The template shows the last message otherwise than one before others, or there is none.
        if not text.startswith(said, begin):
            return None
        if is_called:
            return self._end_of_calls(messages[-1], text, begin + len(said))
        end = begin + len(said)
        behind = text[end:].lstrip()
        mark = self._first_special(behind[: max(map(len, self._special), default=0)])
        if mark and behind.startswith(mark):
            return len(text) - len(behind) + len(mark)
        return end if said else None

    def _end_of_calls(self, message: Message, text: str, start: int) -> int | None:
        """Behind which character a turn with tool calls ends, of which the calls begin at `start`."""
        end = text.find(self.end, start) if self.end else -1
        called = [str(function_of(call).get("name")) for call in message["tool_calls"]]
        if end < 0 or not all(name in text[start:end] for name in called):
            return None
        return end + len(self.end or "")


def packed(text: str) -> str:
    """A text without its spaces: templates strip texts, and space thoughts out."""
    return "".join(text.split())


def shared(one: str, other: str) -> int:
    """How many characters two texts share at their beginning."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _behind_spaces(text: str, place: int) -> int:
    """The first character of a text at or behind a place that is no space."""
    while place < len(text) and text[place].isspace():
        place += 1
    return place
