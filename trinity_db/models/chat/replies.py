"""Tokenization of imported responses, with a mask of the trained tokens.

A response to a conversation is rendered by the model's chat template after the conversation, up to the token
that ends the turn. TRL trains on the same tokens (`_tokenize` and `common_prefix_length` in its
`data_utils`), except for tool results and for what a template writes after the end of the turn, which no
engine samples. Used by the trainer for adopted rows, and by the step `reward_model`. Loads neither torch nor
transformers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from trinity_db.arrays.codec import Payload
from trinity_db.errors import TrinityError
from trinity_db.models.chat.parts import Message, Rendering, Span
from trinity_db.models.chat.prompts import (
    ChatRenderer,
    PromptTooLong,
    UntokenizableText,
    begin_ids,
    check_shown,
    encode,
    offered_tools,
    prompt_ids,
)
from trinity_db.models.chat.thoughts import MARKS
from trinity_db.models.chat.turns import Turns

Response = str | Sequence[Message]
"""A text, or messages: assistant turns and the turns between them, such as tool results."""
Part = tuple[list[int], bool]
"""Tokens, with a flag whether they are trained."""


class EmptyResponse(TrinityError, ValueError):
    """The response has no predicted token, so nothing can be learned from it."""


class Replies:
    """Tokenizes prompts with their responses.

    A plain prompt with its response stays plain text, even if the chat template would render a task's prompt
    as a user message: trainers of such pairs, such as TRL's, do the same.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._tokenizer = renderer.tokenizer
        self._turns = Turns(renderer)

    def payload(self, task: Mapping[str, Any], response: Response, max_length: int) -> Payload:
        """Return prompt and response as a payload, with a mask of the turns to learn.

        These are assistant turns in the response without weight 0, and those in the prompt with weight 1
        (OpenAI's key). Sequences are truncated to `max_length` tokens at the end.

        Raises:
            PromptTooLong: if no trained token is left.
            EmptyResponse: if no token of the response has a token before it.
            UntokenizableText: if the tokenizer has no token for a character; or if the chat template rejects
                the conversation, omits its tools, or rewrites a turn to learn that is not truncated.
        """
        return _payload(self.parts(task, response), max_length)

    def parts(self, task: Mapping[str, Any], response: Response) -> Iterable[Part]:
        """Yield the tokens in parts, each trained or not. The last part is the response, or its last turn.

        Raises:
            UntokenizableText: as `payload`.
        """
        if not task.get("messages"):
            assert isinstance(response, str), "messages answer messages"
            return self._of_text(task["prompt"], response)
        turns = [*self._renderer.messages(task), *_as_messages(response)]
        tools = offered_tools(task)
        rendering = self._renderer.rendering(turns, tools, asks=False)
        if isinstance(response, str) or not self._renderer.has_template:
            return self._of_answer(turns, rendering, tools, is_text=isinstance(response, str))
        check_shown(rendering, turns, tools, _learned(turns))
        return self._shown(rendering.text, self._turns.taught(turns, rendering, tools))

    def _of_text(self, prompt: str, response: str) -> list[Part]:
        """Tokenize a plain prompt and its response. Without a prompt it is a document, which is trained
        whole."""
        if prompt:
            before = prompt_ids(self._renderer.plain_prompt(prompt), self._tokenizer)
        else:
            before = begin_ids(response, self._tokenizer)
        return [(before, False), (self._ended(encode(response, self._tokenizer)), True)]

    def _of_answer(
        self, turns: Sequence[Message], rendering: Rendering, tools: Sequence[Message], *, is_text: bool
    ) -> Iterable[Part]:
        """Tokenize a conversation whose last turn is an answer.

        If the chat template drops a part of a text, for example its thought, or ends it without a special
        token, the unchanged text follows the generation prompt.
        """
        *before, last = turns
        try:
            span = self._turns.span(len(before), turns, rendering, tools)
        except UntokenizableText:
            if not is_text:
                raise
            return self._as_it_stands(before, last["content"], tools)
        shown = rendering.text[slice(*span)]
        is_shown = self._turns.is_ended(shown) or _packed(shown).endswith(_packed(last["content"]))
        if not is_shown or not self._renderer.has_template:
            return self._as_it_stands(before, last["content"], tools)
        check_shown(rendering, turns, tools, _learned(turns))
        return self._shown(rendering.text, chain(self._turns.taught(before, rendering, tools), [span]))

    def _shown(self, whole: str, spans: Iterable[Span]) -> Iterator[Part]:
        """Tokenize a conversation up to the last turn to learn."""
        token_ids: list[int] = []
        position = 0
        for start, stop in spans:
            if position:
                yield token_ids, True
            yield self._tokenize_before(whole, position, start), False
            token_ids, position = encode(whole[start:stop], self._tokenizer), stop
        yield token_ids if self._turns.is_ended(whole[:position]) else self._ended(token_ids), True

    def _as_it_stands(
        self, messages: Sequence[Message], text: str, tools: Sequence[Message]
    ) -> Iterator[Part]:
        """Tokenize a generation prompt and an unchanged text, followed by the end token of a turn or a
        sequence."""
        rendering = self._renderer.rendering(messages, tools, asks=True)
        check_shown(rendering, messages, tools, _learned(messages))
        prompt, position = rendering.text, 0
        for start, stop in self._turns.taught(messages, rendering, tools):
            yield self._tokenize_before(prompt, position, start), False
            yield encode(prompt[start:stop], self._tokenizer), True
            position = stop
        yield self._tokenize_before(prompt, position, len(prompt)), False
        token_ids = encode(text[_opened(prompt, text) :], self._tokenizer)
        mark = self._turns.end
        yield [*token_ids, *encode(mark, self._tokenizer)] if mark else self._ended(token_ids), True

    def _ended(self, token_ids: list[int]) -> list[int]:
        """Append the end-of-sequence token unless it is there."""
        end = self._tokenizer.eos_token_id
        return token_ids if end is None or token_ids[-1:] == [end] else [*token_ids, end]

    def _tokenize_before(self, text: str, start: int, stop: int) -> list[int]:
        """Tokenize the text before a turn. Each turn is tokenized separately, as explorers sample it."""
        part = text[start:stop]
        is_plain = start == 0 and not self._renderer.has_template
        return prompt_ids(part, self._tokenizer) if is_plain else encode(part, self._tokenizer)


def _as_messages(response: Response) -> list[Message]:
    """Return a response as messages, with weight 1 for the turns to learn."""
    if isinstance(response, str):
        return [{"role": "assistant", "content": response, "weight": 1}]
    return [{"weight": 1, **turn} if turn["role"] == "assistant" else turn for turn in response]


def _learned(turns: Sequence[Message]) -> set[int]:
    """Return the indices of the turns to learn, which `Turns` checks."""
    return {
        index for index, turn in enumerate(turns) if turn["role"] == "assistant" and turn.get("weight") == 1
    }


def _packed(text: str) -> str:
    """Remove all whitespace from a text: templates add spaces around thoughts."""
    return "".join(text.split())


def _opened(prompt: str, text: str) -> int:
    """Return the number of characters of a text that its prompt contains already: an opened reasoning tag."""
    for mark in (opening + space for opening, _ in MARKS for space in ("\n", "")):
        if prompt.endswith(mark) and text.startswith(mark):
            return len(mark)
    return 0


def _payload(parts: Iterable[Part], max_length: int) -> Payload:
    token_ids: list[int] = []
    mask: list[bool] = []
    num_last = 0
    for tokens, is_trained in parts:
        token_ids += tokens
        mask += [is_trained] * len(tokens)
        num_last = len(tokens)
        # The rest of a long conversation is truncated, so it is not checked.
        if len(token_ids) >= max_length and any(mask[1:max_length]):
            break
    before = len(token_ids) - num_last
    action_mask = np.array(mask[:max_length], bool)
    if before >= max_length and not action_mask.any():
        raise PromptTooLong(f"A prompt of {before} tokens leaves no room for a response in {max_length}.")
    if not action_mask[1:].any():
        raise EmptyResponse(
            f"A prompt of {before} tokens and a response of {num_last} have no token that a model "
            "predicts from another one."
        )
    return Payload(np.array(token_ids[:max_length], np.int32), action_mask)
