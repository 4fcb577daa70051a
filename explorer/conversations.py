"""What an attempt's conversations said so far, so that answers that come back keep their tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trinity_db.explorer.recorded import Sampled
from trinity_db.explorer.sampling import seed_of
from trinity_db.explorer.tools import ToolCall, parse
from trinity_db.prompts import ChatRenderer, encode, plain


class Answer(str):
    """The text of an answer without its tool calls, which stand beside it."""

    sampled: Sampled
    tool_calls: Sequence[ToolCall]

    def __new__(cls, text: str, sampled: Sampled, tool_calls: Sequence[ToolCall] = ()) -> "Answer":
        made = super().__new__(cls, text)
        made.sampled, made.tool_calls = sampled, tool_calls
        return made

    @property
    def message(self) -> dict[str, Any]:
        """As a message of the OpenAI protocol, with which a conversation goes on."""
        message: dict[str, Any] = {"role": "assistant", "content": str(self)}
        if self.tool_calls:
            message["tool_calls"] = [call.openai for call in self.tool_calls]
        return message


@dataclass
class Conversation:
    """A conversation up to its latest answer. Its earlier answers are kept as places in it, not as copies."""

    text: str
    token_ids: list[int]
    ends: list[tuple[int, int]]
    """Where each answer ends: so many characters, so many tokens."""

    def begins(self, text: str) -> tuple[int, int]:
        """The latest end of an answer up to which a text is the same; zeros where there is none."""
        return next((end for end in reversed(self.ends) if text.startswith(self.text[: end[0]])), (0, 0))


class Conversations:
    """All conversations of one attempt.

    Args:
        tokenizer: the run's.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._said: list[Conversation] = []
        """Those since the last step, none the beginning of another."""
        self._prompts: dict[int, tuple[Conversation, int]] = {}
        """Of each call that answered one, which, and where the prompt ends there."""
        self._with_calls: dict[str, tuple[dict[str, Any], str]] = {}
        """Messages with tool calls and their texts as they were sampled, by the id of the first call."""

    def continued(self, text: str) -> tuple[Conversation, tuple[int, int]]:
        """The conversation that a text goes on from, and up to where; an empty one where there is none."""
        begun = max(self._said, key=lambda one: one.begins(text), default=Conversation("", [], []))
        return begun, begun.begins(text)

    def say(
        self, sampled: Sampled, prompt: str, text: str, begun: Conversation, end: tuple[int, int]
    ) -> None:
        """Keep an answer, with which the conversation may go on.

        Args:
            text: of the answer, special tokens included.
        """
        token_ids = sampled.completion.token_ids
        if end not in begun.ends[-1:]:  # another beginning, or another branch
            begun = Conversation("", [], [])
            self._said.append(begun)
        self._prompts[sampled.number] = begun, len(prompt)
        begun.text = prompt + text
        begun.token_ids = [*sampled.prompt_ids, *token_ids]
        begun.ends.append((len(begun.text), len(begun.token_ids)))

    def prompt(self, number: int) -> str | None:
        """The prompt of a call; None if it answered no conversation."""
        conversation, end = self._prompts.get(number, (None, 0))
        return None if conversation is None else conversation.text[:end]

    def end(self) -> None:
        """Let no later call go on from what was said."""
        self._said = []

    def taken_up(
        self,
        messages: Sequence[Mapping[str, Any]],
        schemas: Sequence[Mapping[str, Any]],
        renderer: ChatRenderer,
        prompt_ids: Callable[[str], Sequence[int]],
        check: Callable[[str], None],
    ) -> tuple[str, list[int], Conversation, tuple[int, int]]:
        """A conversation's text and tokens, and the earlier one that it goes on from, up to where.

        Args:
            check: refuses a text that is too long before it is encoded.

        Raises:
            ValueError: it has no message.
        """
        if not messages:
            raise ValueError("The conversation is empty.")
        as_said = [self.as_said(message) for message in messages]
        text = renderer.ask(as_said, schemas)
        check(text)
        begun, end = self.continued(text)
        if end[0]:
            ids = [*begun.token_ids[: end[1]], *encode(text[end[0] :], self._tokenizer)]
        else:
            ids = [*prompt_ids(text)]
        return text, ids, begun, end

    def answer(self, sampled: Sampled, schemas: Sequence[Mapping[str, Any]]) -> Answer:
        """A call as an answer, with its calls of the tools that these JSON schemas describe."""
        if schemas:
            return self.with_tools(sampled, schemas)
        return Answer(self.text(sampled.completion.token_ids), sampled)

    def with_tools(self, sampled: Sampled, schemas: Sequence[Mapping[str, Any]]) -> Answer:
        """The same, also where no tools are known. The text of its tool calls is kept as it was sampled."""
        token_ids = sampled.completion.token_ids
        content, calls = parse(token_ids, sampled.prompt or "", self._tokenizer, schemas)
        # Ids follow from the place of the call, so that a repeated request gets the same.
        ids = [f"call_{seed_of(sampled.number, place):016x}" for place in range(len(calls))]
        said = Answer(content, sampled, [replace(call, id=id) for call, id in zip(calls, ids, strict=True)])
        if ids:
            self._with_calls[ids[0]] = plain(said.message), self.text(token_ids)
        return said

    def whole_text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, with special ones."""
        text: str = self._tokenizer.decode(token_ids)
        return text

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def as_said(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message; an answer of the policy's with tool calls has the text that was sampled.

        A template that writes the calls again may put a space elsewhere, and so begin another sequence.
        """
        if not message.get("tool_calls"):
            return message
        given = plain(message)
        same, text = self._with_calls.get(given["tool_calls"][0].get("id"), (None, ""))
        if same is None:
            return message
        is_same = given["content"] == same["content"] and _called(given) == _called(same)
        return {"role": "assistant", "content": text} if is_same else message


def _called(message: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The tool calls of a message, without what client libraries add to them."""
    calls = [(call.get("id"), call.get("function", call)) for call in message["tool_calls"]]
    return [(id, function.get("name"), function.get("arguments")) for id, function in calls]
