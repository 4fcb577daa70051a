"""From an imported response to its tokens, and to those that are trained.

A response to a conversation stands as the model's chat template shows it behind the conversation, up to the
token that ends the turn. That is what TRL trains on (`_tokenize` and `common_prefix_length` in its
`data_utils`), less the results of tools, and less what a template writes behind the end of the turn, which no
engine samples. The trainer tokenises adopted rows by it, and the step `reward_model` the rows that it judges.
Loads neither torch nor transformers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from trinity_db.arrays import Payload
from trinity_db.errors import TrinityError
from trinity_db.prompts import (
    ChatRenderer,
    PromptTooLong,
    UntokenizableText,
    encode,
    offered_tools,
    plain,
    prompt_ids,
)
from trinity_db.turns import Message, Span, Turns, packed

Response = str | Sequence[Message]
"""A text, or messages: turns of the assistant, and what stands between them, as results of tools."""
Part = tuple[list[int], bool]
"""Tokens, and whether they are trained."""


class EmptyResponse(TrinityError, ValueError):
    """The response has no token that a model predicts, so nothing can be learned from it."""


class Replies:
    """Tokenises responses behind their prompts.

    A plain prompt with its response is plain text, also where a chat template would make a user message of
    the prompt of a task: so trainers of such pairs, as TRL's, read them.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._tokenizer = renderer.tokenizer
        self._turns = Turns(renderer)

    def payload(self, task: Mapping[str, Any], response: Response, max_length: int) -> Payload:
        """Prompt and response as a payload, in which the turns to be learned are trained.

        These are the turns of the assistant in the response that have no weight of 0, and those in the prompt
        that have a weight of 1 (OpenAI's key). What reaches beyond `max_length` tokens is cut off at the end.

        Raises:
            PromptTooLong: no trained token is left.
            EmptyResponse: no token of the response has a token before it.
            UntokenizableText: the tokenizer does not know a character; or the chat template refuses the
                conversation, does not show its tools, or rewrites a turn that is to be learned and not cut
                off.
        """
        return _payload(self.parts(task, response), max_length)

    def parts(self, task: Mapping[str, Any], response: Response) -> Iterable[Part]:
        """The tokens, in parts that are trained or not. The last part is the response, or its last turn.

        Raises:
            UntokenizableText: as `payload`.
        """
        if not task.get("messages"):
            assert isinstance(response, str), "messages answer messages"
            return self._of_text(task["prompt"], response)
        messages = self._renderer.messages(task)
        reply = _as_messages(response)
        if not self._renderer.has_template:
            return self._of_lines([*messages, *reply[:-1]], reply[-1], offered_tools(task))
        if isinstance(response, str):
            return self._of_answer(messages, reply, response, offered_tools(task))
        return self._of_turns([*messages, *reply], offered_tools(task))

    def _of_text(self, prompt: str, response: str) -> list[Part]:
        """A plain prompt with its response. Without a prompt it is a document, and all of it is trained."""
        bos = self._tokenizer.bos_token
        if prompt:
            before = prompt_ids(self._renderer.plain_prompt(prompt), self._tokenizer)
        elif bos is not None and response.startswith(bos):
            before = []
        else:
            before = prompt_ids("", self._tokenizer)
        return [(before, False), (self._ended(encode(response, self._tokenizer)), True)]

    def _of_lines(self, before: list[Message], last: Message, tools: Sequence[Message]) -> Iterable[Part]:
        """A conversation without a chat template: lines, and the last turn behind "assistant:"."""
        if tools or any(one.get("tool_calls") for one in (*before, last)):
            raise UntokenizableText("There are tools, and no chat template of the tokenizer to show them by.")
        return self._as_it_stands(before, plain(last)["content"], (), None)

    def _of_answer(
        self, messages: Sequence[Message], reply: list[Message], text: str, tools: Sequence[Message]
    ) -> Iterable[Part]:
        """A text that answers a conversation.

        It stands as it is, behind what asks for it, where the chat template leaves a part of it out, as some
        do with a thought, or ends it by no special token.
        """
        turns = [*messages, *reply]
        whole = self._renderer.shown(turns, tools)
        _check_shown(turns, whole, self._renderer, tools)
        span = self._turns.last(turns, whole, tools)
        shown = whole[slice(*span)] if span else ""
        if span and (self._turns.is_ended(shown) or packed(shown).endswith(packed(text))):
            return self._shown(whole, chain(self._turns.taught(messages, whole, tools), [span]))
        return self._as_it_stands(messages, text, tools, self._turns.end)

    def _of_turns(self, turns: Sequence[Message], tools: Sequence[Message]) -> Iterable[Part]:
        """A conversation as the chat template shows it."""
        whole = self._renderer.shown(turns, tools)
        _check_shown(turns, whole, self._renderer, tools)
        return self._shown(whole, self._turns.taught(turns, whole, tools))

    def _shown(self, whole: str, spans: Iterable[Span]) -> Iterator[Part]:
        """A conversation up to the last turn that is learned."""
        said: list[int] = []
        place = 0
        for start, stop in spans:
            if place:
                yield said, True
            yield self._asked(whole, place, start), False
            said, place = encode(whole[start:stop], self._tokenizer), stop
        yield said if self._turns.is_ended(whole[:place]) else self._ended(said), True

    def _as_it_stands(
        self, messages: Sequence[Message], text: str, tools: Sequence[Message], mark: str | None
    ) -> Iterator[Part]:
        """A text behind what asks for it, with the token that ends a turn, or else a sequence, behind it."""
        prompt = self._renderer.ask(messages, tools)
        place = 0
        for start, stop in self._turns.taught(messages, prompt, tools):
            yield self._asked(prompt, place, start), False
            yield encode(prompt[start:stop], self._tokenizer), True
            place = stop
        yield self._asked(prompt, place, len(prompt)), False
        said = encode(text[_opened(prompt, text) :], self._tokenizer)
        yield [*said, *encode(mark, self._tokenizer)] if mark else self._ended(said), True

    def _ended(self, said: list[int]) -> list[int]:
        """Tokens with the end-of-sequence token behind them, once."""
        end = self._tokenizer.eos_token_id
        return said if end is None or said[-1:] == [end] else [*said, end]

    def _asked(self, text: str, start: int, stop: int) -> list[int]:
        """What stands before a turn. Each turn is tokenised apart, as an explorer samples it."""
        return (encode if start else prompt_ids)(text[start:stop], self._tokenizer)


def _as_messages(response: Response) -> list[Message]:
    """A response as messages, in which the turns to be learned have a weight of 1."""
    if isinstance(response, str):
        return [{"role": "assistant", "content": response, "weight": 1}]
    return [{"weight": 1, **one} if one["role"] == "assistant" else one for one in response]


def _opened(prompt: str, text: str) -> int:
    """How many characters of a text its prompt has written already: those of a thought that it opens."""
    for mark in ("<think>\n", "<think>"):
        if prompt.endswith(mark) and text.startswith(mark):
            return len(mark)
    return 0


def _payload(parts: Iterable[Part], max_length: int) -> Payload:
    token_ids: list[int] = []
    mask: list[bool] = []
    said = 0
    for tokens, is_trained in parts:
        token_ids += tokens
        mask += [is_trained] * len(tokens)
        said = len(tokens)
        # The rest of a long conversation is cut off, so it is not looked at.
        if len(token_ids) >= max_length and any(mask[1:max_length]):
            break
    before = len(token_ids) - said
    action_mask = np.array(mask[:max_length], bool)
    if before >= max_length and not action_mask.any():
        raise PromptTooLong(f"A prompt of {before} tokens leaves no room for a response in {max_length}.")
    if not action_mask[1:].any():
        raise EmptyResponse(
            f"A prompt of {before} tokens and a response of {said} have no token that a model "
            "predicts from another one."
        )
    return Payload(np.array(token_ids[:max_length], np.int32), action_mask)


def _check_shown(
    turns: Sequence[Message], whole: str, renderer: ChatRenderer, tools: Sequence[Message]
) -> None:
    """See that the chat template shows tools, their calls and their results, where there are any.

    Args:
        whole: what it shows of the turns.

    Raises:
        UntokenizableText: it leaves some out, as a template does that knows none.
    """
    calls = [{name: one[name] for name in one if name != "tool_calls"} for one in turns]
    results = [
        {**one, "content": f"{plain(one)['content']}."} if one["role"] == "tool" else one for one in turns
    ]
    has_calls = any(one.get("tool_calls") for one in turns)
    has_results = any(one["role"] == "tool" for one in turns)
    for is_there, what, without, offered in (
        (bool(tools), "tools", turns, ()),
        (has_calls, "tool calls", calls, tools),
        (has_results, "results of tools", results, tools),
    ):
        if is_there and _shows_same(without, renderer, offered, whole):
            raise UntokenizableText(f"The chat template shows no {what}.")


def _shows_same(
    turns: Sequence[Message], renderer: ChatRenderer, tools: Sequence[Message], whole: str
) -> bool:
    try:
        return renderer.shown(turns, tools) == whole
    except UntokenizableText:  # the template misses what is left out
        return False
