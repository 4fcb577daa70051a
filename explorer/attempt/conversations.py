"""Conversations of an attempt, kept so that answers that are passed back reuse their sampled tokens."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from trinity_db.explorer.attempt.recorded import Sampled
from trinity_db.explorer.attempt.sampling import seed_of
from trinity_db.explorer.attempt.tools import ToolCall, parse
from trinity_db.models.chat.decoding import response_text
from trinity_db.models.chat.parts import THOUGHTS
from trinity_db.models.chat.prompts import AsSampled, encode, plain
from trinity_db.models.chat.thoughts import split


class Answer(str):
    """The text of an answer without its tool calls, which are in `tool_calls`."""

    sampled: Sampled
    tool_calls: Sequence[ToolCall]

    def __new__(cls, text: str, sampled: Sampled, tool_calls: Sequence[ToolCall] = ()) -> "Answer":
        made = super().__new__(cls, text)
        made.sampled, made.tool_calls = sampled, tool_calls
        return made

    @property
    def message(self) -> dict[str, Any]:
        """The answer as an OpenAI message, for continuing the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": str(self)}
        if self.tool_calls:
            message["tool_calls"] = [call.openai for call in self.tool_calls]
        return message


@dataclass(frozen=True)
class _Turn:
    """The parts of an answer by which it is recognised when it is passed back."""

    thought: str
    content: str
    calls: Sequence[tuple[Any, ...]]

    @classmethod
    def of(cls, message: Mapping[str, Any], prompt: str = "") -> "_Turn":
        """Return the parts of an answer, as `plain` returns it, without the white space around them."""
        thought, content = split(message["content"], prompt)
        return cls(message.get(THOUGHTS[0], thought).strip(), content.strip(), _called(message))


@dataclass
class Conversation:
    """A conversation up to its latest answer. Earlier answers are stored as positions, not as copies."""

    text: str
    token_ids: list[int]
    ends: list[tuple[int, int]]
    """End of each answer, as (characters, tokens)."""

    def begins(self, text: str) -> tuple[int, int]:
        """Return the latest end of an answer up to which the text matches; zeros if none does."""
        return next((end for end in reversed(self.ends) if text.startswith(self.text[: end[0]])), (0, 0))


class Conversations:
    """All conversations of one attempt.

    Args:
        tokenizer: the run's tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._said: list[Conversation] = []
        """Conversations since the last step; none is a prefix of another."""
        self._prompts: dict[int, tuple[Conversation, int]] = {}
        """Conversation and end of the prompt in it, by number of the call that answered it."""
        self._with_calls: dict[str, tuple[_Turn, str]] = {}
        """Answers with tool calls and their sampled texts, by the id of the first tool call."""
        self._answers: dict[bytes, list[tuple[_Turn, str]]] = {}
        """Other answers and their sampled texts, by the digest of the messages that they answer."""
        self.thoughts_are_apart = False
        """Whether answers are passed on without their thoughts, as to programs, so that a message without the
        thought is the same answer."""

    def continued(self, text: str) -> tuple[Conversation, tuple[int, int]]:
        """Return the conversation that the text continues, and up to where; an empty one by default."""
        begun = max(
            self._said, key=lambda conversation: conversation.begins(text), default=Conversation("", [], [])
        )
        return begun, begun.begins(text)

    def say(
        self, sampled: Sampled, prompt: str, text: str, begun: Conversation, end: tuple[int, int]
    ) -> None:
        """Store an answer, so that the conversation may continue from it.

        Args:
            text: text of the answer, including special tokens.
        """
        token_ids = sampled.completion.token_ids
        if end not in begun.ends[-1:]:  # a new conversation, or a branch
            begun = Conversation("", [], [])
            self._said.append(begun)
        self._prompts[sampled.number] = begun, len(prompt)
        begun.text = prompt + text
        begun.token_ids = [*sampled.prompt_ids, *token_ids]
        begun.ends.append((len(begun.text), len(begun.token_ids)))

    def prompt(self, number: int) -> str | None:
        """Return the prompt of a call; None if the call did not answer a conversation."""
        conversation, end = self._prompts.get(number, (None, 0))
        return None if conversation is None else conversation.text[:end]

    def end(self) -> None:
        """Close all conversations: later calls do not continue them."""
        self._said = []

    def taken_up(
        self,
        render: Callable[[Sequence[Mapping[str, Any]]], str],
        messages: Sequence[Mapping[str, Any]],
        prompt_ids: Callable[[str], Sequence[int]],
        check: Callable[[str], None],
    ) -> tuple[str, list[int], Conversation, tuple[int, int]]:
        """Return a conversation's text and tokens, the earlier conversation it continues, and up to where.

        Args:
            render: renders the messages into the prompt.
            check: raises an error for a text that is too long, before it is encoded.

        Raises:
            ValueError: if the list is empty.
        """
        if not messages:
            raise ValueError("The conversation is empty.")
        text = render(self._as_said(messages))
        check(text)
        begun, end = self.continued(text)
        if end[0]:
            ids = [*begun.token_ids[: end[1]], *encode(text[end[0] :], self._tokenizer)]
        else:
            ids = [*prompt_ids(text)]
        return text, ids, begun, end

    def remember(self, messages: Sequence[Mapping[str, Any]], sampled: Sampled) -> None:
        """Remember the answer to a conversation, so that it is recognised when it is passed back."""
        text = self.text(sampled.completion.token_ids)
        turn = _Turn.of({"content": text}, sampled.prompt or "")
        *_, (_, digest) = _placed([*messages, {"role": "assistant", "content": ""}])
        self._answers.setdefault(digest, []).append((turn, text))

    def answer(self, sampled: Sampled, schemas: Sequence[Mapping[str, Any]]) -> Answer:
        """Return a call as an answer, with tool calls parsed by these JSON schemas."""
        if schemas:
            return self.with_tools(sampled, schemas)
        return Answer(self.text(sampled.completion.token_ids), sampled)

    def with_tools(self, sampled: Sampled, schemas: Sequence[Mapping[str, Any]]) -> Answer:
        """Parse tool calls even without schemas, and keep their text as sampled."""
        token_ids = sampled.completion.token_ids
        content, calls = parse(token_ids, sampled.prompt or "", self._tokenizer, schemas)
        # Ids are derived from the number of the call, so that a repeated request gets the same ids.
        ids = [f"call_{seed_of(sampled.number, index):016x}" for index in range(len(calls))]
        answer = Answer(content, sampled, [replace(call, id=id) for call, id in zip(calls, ids, strict=True)])
        if ids:
            turn = _Turn.of(plain(answer.message), sampled.prompt or "")
            self._with_calls[ids[0]] = turn, self.text(token_ids)
        return answer

    def whole_text(self, token_ids: Sequence[int]) -> str:
        """Decode tokens, including special tokens."""
        text: str = self._tokenizer.decode(token_ids)
        return text

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode tokens, without the special tokens around messages."""
        return response_text(token_ids, self._tokenizer)

    def _as_said(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the messages, in which answers of the policy have their text as sampled.

        Programs send answers back with other white space or without the thought, and a template that renders
        tool calls again may change white space: each would start a new sequence. The last message may be a
        begun answer, which stays.
        """
        rewritten = []
        for at, (message, (fields, before)) in enumerate(zip(messages, _placed(messages), strict=True)):
            known: Sequence[tuple[_Turn, str]] = ()
            if fields.get("tool_calls"):
                id = fields["tool_calls"][0].get("id")
                known = [self._with_calls[id]] if id in self._with_calls else ()
            elif fields.get("role") == "assistant" and at + 1 < len(messages):
                known = self._answers.get(before, ())
            turn = _Turn.of(fields) if known else None
            texts = (
                text
                for known_turn, text in reversed(known)
                if turn is not None and self._is_same(turn, known_turn)
            )
            text = next(texts, None)
            rewritten.append(message if text is None else AsSampled(message, text))
        return rewritten

    def _is_same(self, turn: _Turn, sampled: _Turn) -> bool:
        is_same = (turn.content, turn.calls) == (sampled.content, sampled.calls)
        is_left_out = self.thoughts_are_apart and not turn.thought
        return is_same and (is_left_out or turn.thought == sampled.thought)


def _placed(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield each message, as `plain` returns it, and a digest of the messages before it. Thoughts, and white
    space around answers, do not count."""
    digest = blake2b(digest_size=16)
    for message in messages:
        fields = plain(message)
        yield fields, digest.digest()
        is_answer = fields.get("role") == "assistant"
        content = _Turn.of(fields).content if is_answer else fields["content"]
        parts = [fields.get("role"), content, _called(fields)]
        digest.update(json.dumps(parts, default=str).encode())


def _called(message: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the tool calls of a message, without fields that client libraries add."""
    calls = [(call.get("id"), call.get("function", call)) for call in message.get("tool_calls", ())]
    return [(id, function.get("name"), function.get("arguments")) for id, function in calls]
