"""The tables of options: each field of the client libraries' requests, and what happens to it."""

import collections.abc
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_params
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params
from typing_extensions import get_type_hints, is_typeddict

from trinity_db.explorer.config import RequestsConfig
from trinity_db.explorer.http.dialects import DIALECTS
from trinity_db.explorer.http.dialects.chat import CHAT
from trinity_db.explorer.http.dialects.completions import COMPLETIONS
from trinity_db.explorer.http.dialects.dialect import AgentDialect
from trinity_db.explorer.http.dialects.messages import MESSAGES
from trinity_db.explorer.http.dialects.options import (
    UNKNOWN,
    Effect,
    Option,
    OptionTable,
    Refused,
    RequestContext,
)
from trinity_db.explorer.http.dialects.responses import RESPONSES

SCHEMAS = {
    CHAT.path: (
        CHAT,
        (chat_params.CompletionCreateParamsStreaming, chat_params.CompletionCreateParamsNonStreaming),
    ),
    COMPLETIONS.path: (
        COMPLETIONS,
        (
            completion_params.CompletionCreateParamsStreaming,
            completion_params.CompletionCreateParamsNonStreaming,
        ),
    ),
    RESPONSES.path: (
        RESPONSES,
        (
            response_params.ResponseCreateParamsStreaming,
            response_params.ResponseCreateParamsNonStreaming,
        ),
    ),
    MESSAGES.path: (
        MESSAGES,
        (
            message_create_params.MessageCreateParamsStreaming,
            message_create_params.MessageCreateParamsNonStreaming,
            message_count_tokens_params.MessageCountTokensParams,
        ),
    ),
    f"{MESSAGES.path}?beta=true": (
        MESSAGES,
        (
            beta_params.MessageCreateParamsStreaming,
            beta_params.MessageCreateParamsNonStreaming,
            beta_count_params.MessageCountTokensParams,
        ),
    ),
}
WHOLE = {"tools[custom].input_schema"}
"""Objects that are passed on as they are, so that their keys need no entries."""


class Fields:
    """Walks the fields of a client library's request, as the endpoint reads them."""

    def __init__(self, table: OptionTable) -> None:
        self._table = table
        self._seen: set[tuple[Any, str]] = set()

    def without_entry(self, hint: Any, path: str = "") -> Iterator[str]:
        """Yield the paths of fields that have no entry."""
        for kind in parts(hint):
            if is_typeddict(kind) and (kind, path) not in self._seen:
                self._seen.add((kind, path))
                yield from self._keys(kind, path)

    def _keys(self, kind: Any, path: str) -> Iterator[str]:
        if path and path not in self._table.objects:
            if path not in WHOLE:
                yield f"{path}.*"
            return
        for key, hint in get_type_hints(kind).items():
            below, option = self._table.key(path, key)
            if option is UNKNOWN:
                yield below
            elif option.effect is Effect.FOLLOWED:
                yield from self.without_entry(hint, below)
                for item in items(hint):
                    yield from self._item(item, below, option)

    def _item(self, item: Any, path: str, option: Option) -> Iterator[str]:
        if not is_typeddict(item):
            return
        hints = get_type_hints(item)
        tags = [tag for part in parts(hints.get(option.tag, Literal[""])) for tag in get_args(part)]
        for tag in tags or [""]:
            below, entry = self._table.item(path, tag or option.untyped)
            if entry is UNKNOWN:
                yield below
            elif entry.effect is Effect.FOLLOWED:
                yield from self.without_entry(item, below)


def parts(hint: Any) -> Iterator[Any]:
    """The members of a union."""
    if get_origin(hint) is Union or type(hint).__name__ == "UnionType":
        for part in get_args(hint):
            yield from parts(part)
    else:
        yield hint


def items(hint: Any) -> Iterator[Any]:
    """The types of a list's items."""
    for part in parts(hint):
        origin = get_origin(part)
        is_class = isinstance(origin, type) and issubclass(origin, collections.abc.Iterable)
        if is_class and not issubclass(origin, collections.abc.Mapping):
            for argument in get_args(part):
                yield from parts(argument)


@pytest.mark.parametrize("path", SCHEMAS)
def test_each_field_of_a_request_has_an_entry(path: str) -> None:
    dialect, requests = SCHEMAS[path]
    fields = Fields(dialect.options)
    assert [found for request in requests for found in fields.without_entry(request)] == []


def test_a_field_without_an_entry_is_found() -> None:
    entries = {path: option for path, option in CHAT.options.options.items() if path != "top_p"}
    fields = Fields(OptionTable(entries))
    found = [*fields.without_entry(chat_params.CompletionCreateParamsStreaming)]
    assert found == ["top_p"]


USER = {"role": "user", "content": "a"}
FUNCTION = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
BASES: Mapping[str, dict[str, Any]] = {
    CHAT.path: {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}]},
    COMPLETIONS.path: {"prompt": "a"},
    RESPONSES.path: {"input": [USER], "tools": [{"type": "function", **FUNCTION}]},
    MESSAGES.path: {"messages": [USER], "tools": [{"name": "add", "input_schema": {"type": "object"}}]},
}
OTHER: Mapping[str, Any] = {
    "model": "b",
    "messages": [USER, USER],
    "input": [USER, USER],
    "prompt": "b",
    "tools": [],
    "system": "b",
    "instructions": "b",
    "stop": "b",
    "stop_sequences": ["b"],
    "stream": True,
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "max_output_tokens": 5,
    "return_token_ids": True,
    "metadata": {"a": "b"},
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"level": 1},
    "temperature": 0.5,
    "enable_thinking": False,
    "reasoning_effort": "low",
    "parallel_tool_calls": False,
    "tool_choice": "none",
    "reasoning": {"effort": "low"},
    "thinking": {"type": "disabled"},
    "output_config": {"effort": "low"},
}
NOT_ALONE = {
    ("/v1/chat/completions", "add_generation_prompt"),  # it must agree with the next one
    ("/v1/chat/completions", "continue_final_message"),  # it needs a last message of the assistant
    ("/v1/responses", "stream_options"),  # none of its keys changes an answer
    ("/v1/responses", "text"),  # its only format is the default
}
"""Followed options that change nothing by themselves."""
RUN = RequestContext(reads=lambda variable: variable in ("enable_thinking", "reasoning_effort", "level"))


def followed() -> Iterator[Any]:
    for dialect in DIALECTS:
        for key, option in dialect.options.options.items():
            is_followed = option.effect is Effect.FOLLOWED or (
                option.effect is Effect.REPLACED and key in OTHER
            )
            if is_followed and not set(key) & set(".[") and (dialect.path, key) not in NOT_ALONE:
                yield pytest.param(dialect, key, id=f"{dialect.path} {key}")


@pytest.mark.parametrize(("dialect", "key"), [*followed()])
def test_each_followed_option_changes_what_is_asked(dialect: AgentDialect, key: str) -> None:
    base = BASES[dialect.path]
    other = {"type": "none"} if (dialect, key) == (MESSAGES, "tool_choice") else OTHER[key]
    asked = dialect.read({**base, key: other}, RUN)
    assert asked != dialect.read(base, RUN)
    assert asked.replaced == {}


@pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.path for dialect in DIALECTS])
def test_an_unknown_option_is_left_out_with_its_value_or_refused_by_name(dialect: AgentDialect) -> None:
    body = {**BASES[dialect.path], "top_pp": 0.5}
    assert dialect.read(body, RUN).replaced == {"top_pp": 0.5}
    strict = RequestContext(RequestsConfig(others="strict"))
    with pytest.raises(Refused, match=r"'top_pp' is 0\.5"):
        dialect.read(body, strict)


@pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.path for dialect in DIALECTS])
def test_null_asks_for_nothing(dialect: AgentDialect) -> None:
    body = {path: None for path in dialect.options.options if not set(path) & set(".[*")}
    asked = dialect.read({**body, **BASES[dialect.path]}, RUN)
    assert asked == dialect.read(BASES[dialect.path], RUN)
    assert asked.replaced == {}
