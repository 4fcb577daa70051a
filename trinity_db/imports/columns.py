"""Which column means what: from a row as it was written to the records of one kind.

Columns are found by the conventions of TRL's data set formats
(https://huggingface.co/docs/trl/dataset_formats) and of GSM8K (`question`, `answer`), or named by a
mapping. Knows no file and no database; what a record must hold to be one is said in `records`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trinity_db.errors import ConfigError
from trinity_db.imports import chats
from trinity_db.imports.mapping import ColumnMap
from trinity_db.imports.records import (
    Demonstration,
    Kind,
    Preference,
    Record,
    Response,
    Task,
    Trajectory,
    Unfit,
    Unpaired,
    number,
    prompt_payload,
    reward,
    text,
    tidy,
    verdict,
)
from trinity_db.imports.rejects import Rejected
from trinity_db.imports.traces import read_trace

Row = dict[str, Any]

# Our name, and the columns that it is looked for in, the first that holds something.
_PROMPT: dict[str, tuple[str, ...]] = {"prompt": ("prompt", "question"), "messages": ("messages",)}
_TOOLS: dict[str, tuple[str, ...]] = {"tools": ("tools",)}
_PAYLOAD_NAMES = ("prompt", "messages", "answer")
_COLUMNS: dict[Kind, dict[str, tuple[str, ...]]] = {
    "tasks": _PROMPT | {"answer": ("answer",)} | _TOOLS,
    "demonstrations": _PROMPT
    | {"response": ("completion", "response", "answer"), "text": ("text",)}
    | _TOOLS,
    "preferences": {
        "prompt": ("prompt", "question"),
        "chosen": ("chosen",),
        "rejected": ("rejected",),
        "margin": ("margin",),
        "response": ("completion", "response"),
        "label": ("label",),
    }
    | _TOOLS,
    "trajectories": _PROMPT
    | {
        "response": ("completion", "response"),
        "reward": ("reward", "label"),
        "answer": ("answer",),
        "model": ("model",),
    }
    | _TOOLS,
    "traces": {
        "turns": ("turns",),
        "schema_version": ("schema_version",),
        "prompt": ("prompt", "question"),
        "reward": ("reward",),
        "answer": ("answer",),
        "model": ("model",),
    },
}


class Columns:
    """Reads rows of one kind.

    Args:
        kind: what the rows are.
        mapping: our name → their column, as `mapping.ColumnMap` takes it: `{"prompt": "question"}`.

    Raises:
        ConfigError: for a mapping that does not fit the kind.
    """

    def __init__(self, kind: Kind, mapping: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._names = dict(_COLUMNS[kind])
        self._map = ColumnMap(mapping or {}, self._names, kind)
        mapped = self._map.columns.keys()
        if "messages" in mapped and {"prompt", "response"} & mapped:
            raise ConfigError("--map: 'messages' holds prompt and response; map either it or them.")
        # A mapping decides between a conversation and separate columns, whatever else the rows hold.
        if "messages" in mapped:
            self._names |= {"prompt": (), "response": ()}
        elif {"prompt", "response"} & mapped:
            self._names.pop("messages", None)

    def read(self, row: Row) -> list[Record | Rejected]:
        """The records in a row of JSON values (one, but for a `*`), or why there are none."""
        try:
            found = self._map.apply(row)
        except Unfit as error:
            return [Rejected.of(str(error), row)]
        return [
            self._record(row, _Fields(given, rest, self._names, self._map.columns)) for given, rest in found
        ]

    def _record(self, row: Row, fields: "_Fields") -> Record | Rejected:
        try:
            return _BUILDERS[self.kind](fields)
        except Unfit as error:
            return Rejected.of(str(error), row)
        except RecursionError:
            return Rejected("is nested too deeply", "")


class _Fields:
    """The fields of one record to be: what was mapped, and the rest of the row to look up others in."""

    def __init__(
        self, given: Row, rest: Row, names: Mapping[str, tuple[str, ...]], labels: Mapping[str, str]
    ) -> None:
        self._given = given
        self._rest = rest
        self._names = names
        self._labels = labels

    def has(self, name: str) -> bool:
        """Whether there is something other than null."""
        if name in self._labels or name in self._given:
            return self._given.get(name) is not None
        return any(self._rest.get(column) is not None for column in self._names.get(name, ()))

    def take(self, name: str) -> Any:
        """The value; Unfit where it is missing or null."""
        value = self.take_optional(name)
        if value is None:
            present = name in self._given or any(column in self._rest for column in self._names[name])
            raise Unfit(f"'{self.label(name)}' is {'null' if present else 'missing'}")
        return value

    def take_optional(self, name: str) -> Any:
        """The value or None. Unfit where a mapping names a column that the row does not have."""
        if name in self._labels or name in self._given:
            if name not in self._given:
                raise Unfit(f"'{self._labels[name]}' is missing")
            return self._given[name]
        for column in self._names[name]:
            if self._rest.get(column) is not None:
                return self._rest.pop(column)
        return None

    def label(self, name: str) -> str:
        """What the user calls it, for a reason."""
        return self._labels.get(name, name)

    def extra(self) -> Row:
        """Every column that was not taken. Our own exports hold those in one column, `extra`."""
        rest: Row = tidy(self._rest)
        packed = rest.get("extra")
        return packed if len(rest) == 1 and isinstance(packed, dict) else rest


def _read_task(fields: _Fields) -> Record:
    if fields.has("messages") and not fields.has("prompt"):
        payload, said = chats.split(fields.take("messages"), fields.label("messages"))
        answer = said and (said if said.get("tool_calls") else said["content"])
    else:
        payload, answer = chats.prompt(fields.take("prompt"), fields.label("prompt")), None
    answer = tidy(fields.take_optional("answer")) if fields.has("answer") else answer
    if answer is not None:
        payload["answer"] = answer
    if fields.has("tools"):
        payload["tools"] = _tools_of_task(fields)
    # Other columns of these names would be taken for the prompt or the answer.
    extra = {name: value for name, value in fields.extra().items() if name not in _PAYLOAD_NAMES}
    return Task(extra | payload)


def _tools_of_task(fields: _Fields) -> Any:
    """Tools, or another thing that rewards and environments read in a column of that name."""
    given = fields.take("tools")
    try:
        return chats.tools(given, fields.label("tools"))
    except Unfit:
        return tidy(given)


def _read_demonstration(fields: _Fields) -> Record:
    if fields.has("text") and not any(map(fields.has, ("prompt", "messages", "response"))):
        document = text(fields.take("text"), fields.label("text"))
        return Demonstration(Task({"prompt": ""}), document, fields.extra())
    payload, response = _attempt(fields, teaches_all=True)
    return Demonstration(Task(payload), response, fields.extra())


def _read_trajectory(fields: _Fields) -> Record:
    payload, response = _attempt(fields)
    earned, model, answer = (fields.take_optional(name) for name in ("reward", "model", "answer"))
    if answer is not None:
        payload["answer"] = tidy(answer)
    return Trajectory(
        task=Task(payload),
        response=response,
        reward=None if earned is None else reward(earned, fields.label("reward")),
        model=None if model is None else text(model, fields.label("model")),
        extra=fields.extra(),
    )


def _read_trace(fields: "_Fields") -> Record:
    turns, version = fields.take("turns"), fields.take_optional("schema_version")
    asked = prompt_payload(fields.take("prompt"), fields.label("prompt")) if fields.has("prompt") else None
    earned, model, answer = (fields.take_optional(name) for name in ("reward", "model", "answer"))
    return read_trace(
        turns,
        version,
        asked if asked is None or answer is None else asked | {"answer": tidy(answer)},
        None if earned is None else reward(earned, fields.label("reward")),
        None if model is None else text(model, fields.label("model")),
        fields.extra() | ({"answer": tidy(answer)} if asked is None and answer is not None else {}),
    )


def _read_preference(fields: _Fields) -> Record:
    paired = fields.has("chosen") or fields.has("rejected")
    if not paired and fields.has("response"):
        label = verdict(fields.take("label"), fields.label("label"))
        payload, response = _attempt(fields)
        return Unpaired(Task(payload), response, label, fields.extra())
    chosen, rejected = fields.take("chosen"), fields.take("rejected")
    labels = fields.label("chosen"), fields.label("rejected")
    prompt = fields.take("prompt") if fields.has("prompt") else None
    if isinstance(chosen, list) and isinstance(rejected, list):
        payload, chosen, rejected = chats.part_messages(
            prompt, chosen, rejected, labels, fields.label("prompt")
        )
    else:
        chosen, rejected = text(chosen, labels[0]), text(rejected, labels[1])
        if prompt is None:
            prompt, chosen, rejected = chats.part_text(chosen, rejected)
        payload = chats.prompt(prompt, fields.label("prompt"))
    if chosen == rejected:
        raise Unfit(f"'{labels[0]}' equals '{labels[1]}'")
    _offer(payload, fields)
    margin = fields.take_optional("margin")
    return Preference(
        task=Task(payload),
        chosen=chosen,
        rejected=rejected,
        margin=None if margin is None else number(margin, fields.label("margin")),
        extra=fields.extra(),
    )


_BUILDERS: dict[Kind, Callable[[_Fields], Record]] = {
    "tasks": _read_task,
    "demonstrations": _read_demonstration,
    "preferences": _read_preference,
    "trajectories": _read_trajectory,
    "traces": _read_trace,
}


def _offer(payload: Row, fields: _Fields) -> None:
    """Take the tools that a conversation offers. Beside a plain prompt the column is one like any other."""
    if "messages" in payload and fields.has("tools"):
        offered = chats.tools(fields.take("tools"), fields.label("tools"))
        if offered:
            payload["tools"] = offered


def _attempt(fields: _Fields, teaches_all: bool = False) -> tuple[Row, Response]:
    """Prompt (as a task's payload) and response, from two columns or else from one conversation.

    Args:
        teaches_all: of one conversation, every turn of the assistant is learned that has no weight of 0.
    """
    if fields.has("messages") and not (fields.has("prompt") and fields.has("response")):
        label = fields.label("messages")
        payload, last = chats.split(fields.take("messages"), label, teaches_all)
        if last is None:
            raise Unfit(f"'{label}' does not end with the assistant's response")
        response = chats.reply([last], label)
    else:
        payload = chats.prompt(fields.take("prompt"), fields.label("prompt"))
        response = chats.reply(fields.take("response"), fields.label("response"))
        if not isinstance(response, str) and "prompt" in payload:
            payload = {"messages": [{"role": "user", "content": payload["prompt"]}]}
    _offer(payload, fields)
    return payload, response
