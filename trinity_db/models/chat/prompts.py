"""Rendering of tasks and conversations into the text and tokens of a prompt.

Explorer and trainer share it, so that both use the same prompts. Each rendering is checked: a conversation of
which the chat template does not show every part is refused (see `parts`). `replies` extends it to the tokens
of imported responses. Uses only a few members of tokenizers, and loads neither torch nor transformers.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from trinity_db.config.shared import DEFAULT_PROMPTS, PromptConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.io.interruptible_json import parse_json
from trinity_db.models.chat.parts import THOUGHTS, Message, Part, Rendering, located
from trinity_db.models.chat.thoughts import Marks, marks_in

logger = logging.getLogger(__name__)

PLAIN_PROMPT_WARNING = (
    "a plain prompt reaches a model with a chat template without that template, and an instruct model "
    "answers better to messages: leave out model.prompt_template, import messages, or let the workflow ask "
    "policy.chat or policy.complete(policy.renderer.task(task))"
)
"""Warning that every command and role prints about plain prompts."""
NO_VARIABLES: Mapping[str, Any] = {}
BEGUN_END = "\ue000"
"""Marks the end of a begun answer while it is rendered: a private character, which no template treats
specially."""
_GENERATION = re.compile(r"{%-?\s*(?:end)?generation\s*-?%}")
"""Tags of transformers around the trained text, which Jinja does not have."""


class PromptTooLong(TrinityError, ValueError):
    """The prompt alone fills the context and leaves no room for a response."""


class UntokenizableText(TrinityError, ValueError):
    """The tokenizer has no token for a character of the text, or its template refuses the conversation or
    does not show all of it."""


class Rendered(str):
    """A text that a chat template wrote. It has its special tokens; the tokenizer adds no others."""

    def __add__(self, text: str) -> "Rendered":
        return Rendered(f"{self}{text}")


class AsSampled(dict[str, Any]):
    """A turn with tool calls that is shown by the text that the policy sampled, not by its calls."""

    def __init__(self, turn: Message, text: str) -> None:
        super().__init__(turn)
        self.text = text


class Tokenizer(Protocol):
    """The members of a Hugging Face tokenizer that are used."""

    chat_template: str | None
    bos_token: str | None
    eos_token_id: int | None
    all_special_tokens: list[str]
    added_tokens_decoder: dict[int, Any]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    @property
    def apply_chat_template(self) -> Callable[..., str]: ...


class ChatRenderer:
    """Renders tasks and conversations into prompts.

    Only this class calls a tokenizer's chat template. Cheap to construct.

    Args:
        tokenizer: its template is replaced by `config.chat_template`, if set, so that saved versions contain
            it.
        end_tokens: tokens at which an engine ends a response, by the model's generation settings.

    Attributes:
        has_template: whether there is a chat template. Otherwise messages become lines "role: content" and a
            final line "assistant:".

    Raises:
        ConfigError: `config.chat_template` cannot be read.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: PromptConfig = DEFAULT_PROMPTS,
        end_tokens: Collection[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.end_tokens = end_tokens
        self._config = config
        if config.chat_template is not None:
            tokenizer.chat_template = _template(config.chat_template)
        self.has_template = bool(tokenizer.chat_template)

    def task(self, task: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Render the prompt of a task.

        Args:
            task: with `messages` or a plain `prompt`.
            tools: JSON schemas of the functions that the model may call, passed to the chat template.

        Raises:
            UntokenizableText: as `ask`; or if there are tools and the prompt is plain text without messages.
        """
        messages = self.messages(task)
        return self.ask(messages, tools) if messages else self.plain_prompt(task["prompt"])

    def messages(self, task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the messages of a task, with the system prompt; none if its prompt is plain text."""
        messages: list[Mapping[str, Any]] = list(task.get("messages") or ())
        if not messages and self.has_template and self._config.prompt_template is None:
            messages = [{"role": "user", "content": task["prompt"]}]
        return self.with_system_prompt(messages) if messages else []

    def with_system_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Put `model.system_prompt` before a task's messages, unless they begin with a system message."""
        system = self._config.system_prompt
        if system is None or (messages and messages[0].get("role") in ("system", "developer")):
            return [*messages]
        return [{"role": "system", "content": system}, *messages]

    def plain_prompt(self, prompt: str) -> str:
        """Insert a plain prompt into `model.prompt_template`, in which only {prompt} is a placeholder."""
        return (self._config.prompt_template or "{prompt}").replace("{prompt}", prompt)

    def misses_template(self, text: str) -> bool:
        """Whether the chat template writes special tokens and a text has none of them."""
        if not self.has_template:
            return False
        try:
            sample = self.text([{"role": "user", "content": "?"}], asks=True)
        except UntokenizableText:
            return False
        marks = [token for token in self.tokenizer.all_special_tokens if token in sample]
        return bool(marks) and not any(mark in text for mark in marks)

    def warn_if_plain(self, text: str) -> None:
        """Warn once per process if a prompt was rendered without the chat template."""
        if self.misses_template(text):
            _warn_once()

    def ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        begun: bool = False,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """Render a conversation with a generation prompt. No system prompt is added.

        Args:
            begun: whether the last message is the begun answer, with whose content the text then ends.
            variables: further variables of the chat template; they take precedence over those of the run.

        Raises:
            UntokenizableText: if the chat template rejects the messages, for example two turns of one role in
                succession, or does not show a part of them other than a thought; if a message has an image;
                if tool calls and results do not match; if there are tools but no chat template; or if the
                begun answer cannot be continued.
        """
        rendering = self.rendering(messages, tools, asks=not begun, variables=variables)
        check_shown(rendering, messages, tools)
        return self._begun(messages, tools, variables) if begun else rendering.text

    def reads(self, variable: str) -> bool:
        """Whether the chat template reads a variable."""
        return variable in _variables(str(self.tokenizer.chat_template or ""))

    @property
    def thought_marks(self) -> list[Marks]:
        """Marks of thoughts in the chat template, so that the model may think; none that are unknown."""
        return marks_in(str(self.tokenizer.chat_template or ""))

    def _begun(self, messages: Sequence[Message], tools: Sequence[Message], variables: Message) -> str:
        """Render a conversation up to the content of its last message, which is the begun answer."""
        *before, last = (plain(message) for message in in_order(messages))
        if last.get("role") != "assistant" or messages[-1].get("tool_calls"):
            raise UntokenizableText("Only an answer of the assistant without tool calls can be continued.")
        marked = [*before, {**last, "content": last["content"] + BEGUN_END}]
        text = self._text(marked, tools, asks=False, variables=variables)
        begun, mark, _ = text.rpartition(BEGUN_END)
        if not mark or not begun.endswith(last["content"]):
            raise UntokenizableText(
                f"The chat template rewrites the begun answer {last['content']!r:.80}, so that it cannot be "
                "continued."
            )
        return type(text)(begun)

    def rendering(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        asks: bool,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> Rendering:
        """Render a conversation and find its parts. Costs a second rendering.

        Args:
            asks: whether a generation prompt follows.
            variables: as `ask`.

        Raises:
            UntokenizableText: as `ask`, but for parts that are not shown.
        """
        try:
            render = partial(self._text, asks=asks, variables=variables)
            return located([plain(message) for message in in_order(messages)], tools, render)
        except RecursionError as error:
            raise UntokenizableText("A tool call or a tool is nested too deeply.") from error

    def text(self, messages: Sequence[Message], tools: Sequence[Message] = (), *, asks: bool) -> str:
        """Render a conversation without a check that all of it is shown.

        Raises:
            UntokenizableText: as `rendering`.
        """
        return self._text([plain(message) for message in in_order(messages)], tools, asks=asks)

    def _text(
        self,
        turns: Sequence[Message],
        tools: Sequence[Message],
        *,
        asks: bool,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        if not self.has_template:
            return _lines(turns, tools, asks)
        try:
            text = self.tokenizer.apply_chat_template(
                [*turns],
                tools=[*tools] or None,
                tokenize=False,
                add_generation_prompt=asks,
                **{**self._config.chat_template_kwargs, **variables},
            )
        except Exception as error:  # a template is code that belongs to a model
            raise UntokenizableText(f"The chat template refuses the conversation: {error}") from error
        return Rendered(text)


def _lines(turns: Sequence[Message], tools: Sequence[Message], asks: bool) -> str:
    if tools or any(turn.get("tool_calls") for turn in turns):
        raise UntokenizableText(
            "There are tools, and the tokenizer has no chat template to show them: set model.chat_template, "
            "or choose another model."
        )
    return "\n".join([*(f"{turn['role']}: {turn['content']}" for turn in turns), *["assistant:"] * asks])


def check_shown(
    rendering: Rendering, messages: Sequence[Message], tools: Sequence[Message], learned: Container[int] = ()
) -> None:
    """Check that each part of a conversation is shown, except thoughts of the assistant.

    Templates drop thoughts of earlier turns when the model is asked, so they may be missing where they are
    not learned. Since each template marks thoughts in its own way, the beginning of an answer may be missing.

    Args:
        learned: indices of messages that are checked elsewhere.

    Raises:
        UntokenizableText: naming what is left out or changed.
    """
    if tools and not any(part.spans for part in rendering.parts if part.kind == "tool"):
        raise UntokenizableText(
            "The chat template shows no tools: set model.chat_template to one that does, or choose another "
            "model."
        )
    for part in rendering.parts:
        if part.spans:
            continue
        if part.kind == "tool":
            name = function_of(tools[part.message]).get("name")
            raise UntokenizableText(f"The chat template leaves out or changes a part of the tool '{name}'.")
        role = messages[part.message]["role"]
        is_thought = part.kind == "thought" or (part.kind == "content" and bool(part.ends))
        if part.message not in learned and not (is_thought and role == "assistant"):
            raise UntokenizableText(f"The chat template leaves out or changes {_named(part, role)}.")


def _named(part: Part, role: str) -> str:
    of_part = {"content": "", "thought": "the thought of ", "call": "a tool call of "}.get(
        part.kind, "a part of "
    )
    return f"{of_part}message {part.message + 1}, whose role is '{role}'"


def in_order(messages: Sequence[Message]) -> list[Message]:
    """Put the results of tool calls into the order of the calls.

    Some templates show no ids, and the model then knows results by their order alone. Results without ids, or
    of calls without ids, keep their order.

    Raises:
        UntokenizableText: if a call has no result although other messages follow it, or a result has no call.
    """
    ordered: list[Message] = []
    calls: Sequence[Any] = ()
    results: list[Message] = []
    for number, message in enumerate([*messages, None]):
        if message is not None and message.get("role") == "tool":
            results.append(message)
            continue
        if results or (calls and message is not None):
            ordered += _by_calls(calls, results, number - len(results))
        if message is not None:
            ordered.append(message)
            calls, results = message.get("tool_calls") or (), []
    return ordered


def _by_calls(calls: Sequence[Any], results: Sequence[Message], number: int) -> Sequence[Message]:
    """Return results in the order of their calls.

    Args:
        number: number of the message with the calls, from 1.
    """
    ids = [call.get("id") if isinstance(call, Mapping) else None for call in calls]
    answered = [result.get("tool_call_id") for result in results]
    if not calls and not any(answered):  # the text of a turn may call tools
        return results
    if all(ids) and all(answered):
        strays, lacking = Counter(answered) - Counter(ids), Counter(ids) - Counter(answered)
        for id in strays:
            raise UntokenizableText(
                f"A result of a tool has the id {id!r:.80}, and no call before it has it."
            )
        for id in lacking:
            raise UntokenizableText(f"The tool call {id!r:.80} of message {number} has no result.")
        return sorted(results, key=lambda result: ids.index(result["tool_call_id"]))
    if len(ids) != len(answered):
        raise UntokenizableText(
            f"Message {number} has {len(ids)} tool calls, and {len(answered)} results follow."
        )
    return results


@lru_cache(maxsize=1)
def _warn_once() -> None:
    logger.warning(PLAIN_PROMPT_WARNING)


@lru_cache(maxsize=4)
def _variables(template: str) -> frozenset[str]:
    """Return the variables that a chat template reads; none if it is not a template."""
    from jinja2 import Environment, TemplateSyntaxError, meta

    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", template))))
    except TemplateSyntaxError:
        return frozenset()


@lru_cache(maxsize=4)
def _template(path: Path) -> str:
    try:
        return path.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model.chat_template: {path} cannot be read: {error}") from error


def plain(message: Message) -> dict[str, Any]:
    """Normalize a message for chat templates: content as one text, arguments of tool calls as objects, and a
    thought under each name by which templates know it.

    Its training weight is dropped.

    Raises:
        UntokenizableText: if its content is not text, for example an image, or a tool call is not an object.
    """
    if isinstance(message, AsSampled):
        return {"role": message["role"], "content": message.text}
    content = message.get("content")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        parts = content if isinstance(content, list | tuple) else [content]
        content = "".join(map(_text_of_part, parts))
    plain = {name: value for name, value in message.items() if name not in ("weight", *THOUGHTS)}
    plain["content"] = content
    if thought := next((message[key] for key in THOUGHTS if message.get(key)), None):
        plain |= dict.fromkeys(THOUGHTS, _text_of_part(thought))
    if message.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    return plain


def prompt_ids(prompt: str, tokenizer: Tokenizer) -> list[int]:
    """Tokenize a prompt. If no chat template wrote it, the tokens that begin a sequence precede it, such as a
    BOS, unless it begins with one.

    Tokenizers that end sequences too, by an EOS, do not end the prompt.

    Raises:
        UntokenizableText: if the tokenizer has no token for a character.
    """
    ids = encode(prompt, tokenizer)  # first: an error shows the prompt
    begin = [] if isinstance(prompt, Rendered) else begin_ids(prompt, tokenizer)
    return [*begin, *ids]


def begin_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that a tokenizer puts before a text; none if the text begins with a BOS.

    Raises:
        UntokenizableText: if the tokenizer has no token for a character.
    """
    if tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token):
        return []
    for sample in (text[:1], text):  # the tokenizer may drop the first character, such as a space
        bare, whole = (_encode(sample, tokenizer, add_special_tokens=adds) for adds in (False, True))
        for start in range(bool(bare) * (len(whole) - len(bare) + 1)):
            if whole[start : start + len(bare)] == bare:
                return whole[:start]
    return []


def encode(text: str, tokenizer: Tokenizer) -> list[int]:
    """Tokenize a text that continues others: no special tokens are added.

    Raises:
        UntokenizableText: if the tokenizer has no token for a character.
    """
    return _encode(text, tokenizer, add_special_tokens=False)


def offered_tools(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a task's column `tools` if it is a list of named functions.

    Anything else in that column is left to the rewards that read it.
    """
    tools = task.get("tools")
    functions = [function_of(tool) for tool in tools] if isinstance(tools, list) else []
    return [*tools] if tools and all(isinstance(function.get("name"), str) for function in functions) else []


def function_of(value: Any) -> Mapping[str, Any]:
    """Return the function in a tool or a tool call: OpenAI's key `function`, or the value itself.

    Returns:
        an empty mapping if it has none.
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
        raise UntokenizableText(f"A message has a tool call that is not an object: {call!r:.80}")
    function = dict(call.get("function", call))
    if isinstance(function.get("arguments"), str):
        with suppress(ValueError, RecursionError):  # a model may write invalid JSON, or a thousand brackets
            function["arguments"] = parse_json(function["arguments"])
    return {**call, "function": function} if "function" in call else function


def _encode(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise UntokenizableText(f"The tokenizer cannot encode {text!r:.80}: {error}") from error
