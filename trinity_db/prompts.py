"""From a task to the text and the tokens a model is given.

Explorer and trainer share it, so that both ask a model by the same text. `replies` goes on from here to the
tokens of an imported response. Knows tokenizers only by the few members it uses; loads neither torch nor
transformers.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from trinity_db.config import DEFAULT_PROMPTS, PromptConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.interruptible_json import parse_json

logger = logging.getLogger(__name__)

PLAIN_PROMPT_WARNING = (
    "a plain prompt reaches a model that has a chat template without that template, and an instruct model "
    "answers better to messages: leave out model.prompt_template, import messages, or let the workflow ask "
    "policy.chat or policy.complete(policy.renderer.task(task))"
)
"""What every command and role prints about it."""


class PromptTooLong(TrinityError, ValueError):
    """The prompt alone fills the context; nothing could follow it."""


class UntokenizableText(TrinityError, ValueError):
    """The tokenizer has no token for a character of the text, or its template refuses the conversation."""


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: str | None
    bos_token: str | None
    eos_token_id: int | None
    all_special_tokens: list[str]
    added_tokens_decoder: dict[int, Any]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    @property
    def apply_chat_template(self) -> Callable[..., str]: ...


class ChatRenderer:
    """Turns tasks and conversations into the text that a model reads.

    Nothing else calls a tokenizer's chat template. Cheap to make.

    Args:
        tokenizer: it gets the template of `config.chat_template`, if there is one, so that versions which are
            saved with it have the same.

    Attributes:
        has_template: whether there is a chat template. Without one, messages become lines "role: content" and
            a last line "assistant:".

    Raises:
        ConfigError: `config.chat_template` cannot be read.
    """

    def __init__(self, tokenizer: Tokenizer, config: PromptConfig = DEFAULT_PROMPTS) -> None:
        self.tokenizer = tokenizer
        self._config = config
        if config.chat_template is not None:
            tokenizer.chat_template = _template(config.chat_template)
        self.has_template = bool(tokenizer.chat_template)

    def task(self, task: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The text that a model is asked to continue for a task.

        Args:
            task: with `messages` or a plain `prompt`.
            tools: JSON schemas of what the model may call, for the chat template to show.

        Raises:
            UntokenizableText: as `ask`; or the prompt is plain text without messages, and there are tools.
        """
        messages = self.messages(task)
        return self.ask(messages, tools) if messages else self.plain_prompt(task["prompt"])

    def messages(self, task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The messages of a task, with the system prompt; none if the model reads it as plain text."""
        messages: list[Mapping[str, Any]] = list(task.get("messages") or ())
        if not messages and self.has_template and self._config.prompt_template is None:
            messages = [{"role": "user", "content": task["prompt"]}]
        return self.with_system_prompt(messages) if messages else []

    def with_system_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Messages of a task, begun by `model.system_prompt` unless they begin with a system message."""
        system = self._config.system_prompt
        if system is None or (messages and messages[0].get("role") in ("system", "developer")):
            return [*messages]
        return [{"role": "system", "content": system}, *messages]

    def plain_prompt(self, prompt: str) -> str:
        """A plain prompt in `model.prompt_template`; no other brace than {prompt} has a meaning in it."""
        return (self._config.prompt_template or "{prompt}").replace("{prompt}", prompt)

    def misses_template(self, text: str) -> bool:
        """Whether the chat template writes special tokens, and a text has none of them."""
        if not self.has_template:
            return False
        try:
            sample = self.ask([{"role": "user", "content": "?"}])
        except UntokenizableText:
            return False
        marks = [token for token in self.tokenizer.all_special_tokens if token in sample]
        return bool(marks) and not any(mark in text for mark in marks)

    def warn_if_plain(self, text: str) -> None:
        """Warn once in this process if the chat template is missing from a text that the model reads."""
        if self.misses_template(text):
            _warn_once()

    def ask(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """A conversation with what asks for the next answer. No system prompt is added.

        Raises:
            UntokenizableText: the chat template refuses the messages, as some do a role or two turns of one;
                a message has an image; or there are tools, and no chat template.
        """
        if self.has_template:
            return self._rendered(messages, tools, add_generation_prompt=True)
        return self._lines(messages, tools)

    def shown(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """A conversation as the chat template shows it, without what asks for an answer.

        Raises:
            UntokenizableText: as `ask`.
        """
        assert self.has_template
        return self._rendered(messages, tools, add_generation_prompt=False)

    def _lines(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        if tools:
            raise UntokenizableText(
                "There are tools, and the tokenizer has no chat template to show them by."
            )
        lines = [f"{message['role']}: {message['content']}" for message in map(plain, messages)]
        return "\n".join([*lines, "assistant:"])

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
    ) -> str:
        turns = [plain(message) for message in messages]
        try:
            return self.tokenizer.apply_chat_template(
                turns,
                tools=[*tools] or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self._config.chat_template_kwargs,
            )
        except Exception as error:  # a template is a model's own code
            raise UntokenizableText(f"The chat template refuses the conversation: {error}") from error


@lru_cache(maxsize=1)
def _warn_once() -> None:
    logger.warning(PLAIN_PROMPT_WARNING)


@lru_cache(maxsize=4)
def _template(path: Path) -> str:
    try:
        return path.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model.chat_template: {path} cannot be read: {error}") from error


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates read it: its content one text, the arguments of its tool calls objects.

    Its weight in training is left out.

    Raises:
        UntokenizableText: its content is something other than text, as an image, or a tool call is no object.
    """
    content = message.get("content")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        parts = content if isinstance(content, list | tuple) else [content]
        content = "".join(map(_text_of_part, parts))
    plain = {name: value for name, value in message.items() if name != "weight"} | {"content": content}
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    return plain


def prompt_ids(prompt: str, tokenizer: Tokenizer) -> list[int]:
    """The prompt's tokens. A beginning-of-sequence token is not added twice (chat templates write it).

    Raises:
        UntokenizableText: the tokenizer does not know one of the characters.
    """
    begun = tokenizer.bos_token is not None and prompt.startswith(tokenizer.bos_token)
    return _encode(prompt, tokenizer, add_special_tokens=not begun)


def encode(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text that goes on from others: nothing is added before or after it.

    Raises:
        UntokenizableText: the tokenizer does not know one of the characters.
    """
    return _encode(text, tokenizer, add_special_tokens=False)


def offered_tools(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a task lets the model call: its column `tools`, where that is a list of functions with names.

    A column of that name that holds something else is the business of the rewards that read it.
    """
    given = task.get("tools")
    functions = [function_of(one) for one in given] if isinstance(given, list) else []
    return [*given] if given and all(isinstance(one.get("name"), str) for one in functions) else []


def function_of(value: Any) -> Mapping[str, Any]:
    """The function in a tool, or in a call of one: what OpenAI writes under `function`, or the value itself.

    Returns:
        an empty mapping where there is none.
    """
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise UntokenizableText(
        f"A message has content of type '{kind}'; the policy reads texts only, no images."
    )


def _plain_call(call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise UntokenizableText(f"A message has a tool call that is no object: {call!r:.80}")
    function = dict(call.get("function", call))
    if isinstance(function.get("arguments"), str):
        with suppress(ValueError, RecursionError):  # a model may have written no JSON, or a thousand brackets
            function["arguments"] = parse_json(function["arguments"])
    return {**call, "function": function} if "function" in call else function


def _encode(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise UntokenizableText(f"The tokenizer cannot encode {text!r:.80}: {error}") from error
