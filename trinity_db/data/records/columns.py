"""Interpretation of columns: from a row of a file to the records of one kind.

Columns follow a mapping, or the conventions of TRL's data set formats
(https://huggingface.co/docs/trl/dataset_formats), of GSM8K (`question`, `answer`), Alpaca and ShareGPT.
Independent of files and database; `records` defines the requirements of each record.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trinity_db.data.records import chats
from trinity_db.data.records import forms as known
from trinity_db.data.records.account import MAX_SHAPES, Account
from trinity_db.data.records.fields import Fields, Names, Present, Row, present_columns
from trinity_db.data.records.mapping import ColumnMap
from trinity_db.data.records.messages import conversation, conversation_or_text
from trinity_db.data.records.records import (
    Demonstration,
    Kind,
    Message,
    Preference,
    Record,
    Response,
    Task,
    Trajectory,
    Unfit,
    Unpaired,
    number,
    reward,
    text,
    verdict,
)
from trinity_db.data.rejects import Rejected
from trinity_db.data.traces.traces import read_trace
from trinity_db.errors import ConfigError

_ASKED: dict[str, Names] = {"prompt": (("prompt", "instruction"), ("question", "instruction"))}
_AROUND: dict[str, Names] = {
    "input": (("input", "context"),),
    "system": (("system", "system_prompt"),),
    "history": (("history",),),
    "tools": (("tools", "functions"),),
}
_PROMPT = _ASKED | {"messages": (("messages", "conversations"),)}
_RESPONSE: Names = (("completion", "response"),)
_PAYLOAD_NAMES = ("prompt", "messages", "answer")
COLUMNS: dict[Kind, dict[str, Names]] = {
    "tasks": _PROMPT | {"answer": (("answer",),)} | _AROUND,
    "demonstrations": _PROMPT
    | {"response": (*_RESPONSE, ("output", "answer")), "text": (("text",),)}
    | _AROUND,
    "preferences": _PROMPT
    | {
        "chosen": (("chosen",),),
        "rejected": (("rejected",),),
        "margin": (("margin",),),
        "response": (*_RESPONSE, ("output",)),
        "label": (("label", "kto_tag"),),
    }
    | _AROUND,
    "trajectories": _PROMPT
    | {
        "response": (*_RESPONSE, ("output",)),
        "reward": (("reward",), ("label",)),
        "answer": (("answer",),),
        "model": (("model",),),
    }
    | _AROUND,
    "traces": {
        "turns": (("turns",),),
        "schema_version": (("schema_version",),),
        "prompt": (("prompt",), ("question",)),
        "reward": (("reward",),),
        "answer": (("answer",),),
        "model": (("model",),),
    },
}
"""Per kind: our name, and the columns that may have it."""


class Columns:
    """Reads rows of one kind.

    Args:
        kind: the kind of record.
        mapping: our name → their column, as `mapping.ColumnMap` takes it: `{"prompt": "question"}`.

    Attributes:
        account: what the rows were read as so far.

    Raises:
        ConfigError: if the mapping does not fit the kind.
    """

    def __init__(self, kind: Kind, mapping: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self.account = Account()
        self._names = dict(COLUMNS[kind])
        self._map = ColumnMap(mapping or {}, self._names, kind)
        mapped = self._map.columns.keys()
        if "messages" in mapped and {"prompt", "response"} & mapped:
            raise ConfigError("--map: 'messages' holds prompt and response; map either it or them.")
        # A mapping decides between a conversation and separate columns, regardless of other columns.
        if "messages" in mapped:
            self._names |= {"prompt": (), "response": ()}
        elif {"prompt", "response"} & mapped:
            self._names["messages"] = ()
        self._known = {"extra"}.union(*(group for names in self._names.values() for group in names))
        self._present: dict[tuple[str, ...], Present] = {}

    def read(self, row: Row) -> list[Record | Rejected]:
        """Convert a row of JSON values to its records (one, or several with `*`), or to a rejection."""
        try:
            matches = self._map.apply(row)
        except Unfit as error:
            return [Rejected.of(str(error), row)]
        return [
            self._record(
                row, Fields(mapped, rest, self._columns_of(rest), self._names, self._map.columns, self._known)
            )
            for mapped, rest in matches
        ]

    def _columns_of(self, row: Row) -> Present:
        """Return the columns of a row that have a meaning; rows with the same columns share the answer."""
        shape = tuple(column for column, value in row.items() if value is not None)
        if (present := self._present.get(shape)) is None:
            if len(self._present) >= MAX_SHAPES:
                self._present.clear()
            present = self._present[shape] = present_columns(shape, self._names)
        return present

    def _record(self, row: Row, fields: Fields) -> Record | Rejected:
        try:
            record = _BUILDERS[self.kind](fields)
            fields.check_mapped()
        except Unfit as error:
            return Rejected.of(str(error), row)
        except RecursionError:
            return Rejected("is nested too deeply", "")
        self.account.add(fields.taken, fields.kept, fields.left_out, fields.forms)
        return record


def _read_task(fields: Fields) -> Record:
    is_alpaca = not fields.has("messages") and _is_column(fields, "prompt", "instruction")
    payload, last = _conversation(fields) if fields.has("messages") else (_prompt(fields), None)
    answer = fields.take_optional("answer") if fields.has("answer") else None
    if answer is None and last is not None:
        answer = last if last.get("tool_calls") else last["content"]
        fields.forms.add(known.LAST_TURN)
    if answer is None and is_alpaca:
        answer = fields.take_column("answer", "output")
    if answer is not None:
        payload["answer"] = answer
    _offer_task(payload, fields)
    # Other columns of these names would be mistaken for the prompt or the answer.
    return Task(fields.extra(left_out=_PAYLOAD_NAMES) | payload)


def _offer_task(payload: Row, fields: Fields) -> None:
    """Take the tools, or anything else that rewards and environments read in that column."""
    if not fields.has("tools"):
        return
    is_older = _is_column(fields, "tools", "functions")
    try:
        offered = _offered(fields, is_older)
    except Unfit:
        if not is_older:
            payload["tools"] = fields.take("tools")
        return
    fields.take("tools")
    if offered is not None:
        payload["tools"] = offered


def _offered(fields: Fields, is_older: bool) -> list[Message] | None:
    """Return the tools without taking them; None for an empty text, or null as JSON text."""
    value = fields.peek("tools")
    if isinstance(value, str) and value.strip() in ("", "null"):
        return None
    offered = chats.tools(value, fields.label("tools"), fields.forms)
    if not is_older:
        return offered
    fields.forms.add(known.FUNCTIONS)
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in offered]


def _is_column(fields: Fields, name: str, column: str) -> bool:
    """Whether a field comes from a column without the user's mapping."""
    return not fields.is_mapped(name) and fields.column(name) == column


def _read_demonstration(fields: Fields) -> Record:
    if fields.has("text") and not any(map(fields.has, ("prompt", "messages", "response"))):
        if fields.is_turn_of_tree():
            raise known.TREE(fields.label("text"))
        document = text(fields.take("text"), fields.label("text"))
        return Demonstration(Task({"prompt": ""}), document, fields.extra())
    payload, response = _attempt(fields, teaches_all=True)
    return Demonstration(Task(payload), response, fields.extra())


def _read_trajectory(fields: Fields) -> Record:
    payload, response = _attempt(fields)
    earned, model, answer = (fields.take_optional(name) for name in ("reward", "model", "answer"))
    if answer is not None:
        payload["answer"] = answer
    return Trajectory(
        task=Task(payload),
        response=response,
        reward=None if earned is None else reward(earned, fields.label("reward")),
        model=None if model is None else text(model, fields.label("model")),
        extra=fields.extra(),
    )


def _read_trace(fields: Fields) -> Record:
    turns, version = fields.take("turns"), fields.take_optional("schema_version")
    payload = None
    if fields.has("prompt"):
        payload = chats.prompt(fields.take("prompt"), fields.label("prompt"), fields.forms)
    earned, model, answer = (fields.take_optional(name) for name in ("reward", "model", "answer"))
    return read_trace(
        turns,
        version,
        payload if payload is None or answer is None else payload | {"answer": answer},
        None if earned is None else reward(earned, fields.label("reward")),
        None if model is None else text(model, fields.label("model")),
        fields.extra() | ({"answer": answer} if payload is None and answer is not None else {}),
    )


def _read_preference(fields: Fields) -> Record:
    if not any(map(fields.has, ("chosen", "rejected"))) and any(map(fields.has, ("response", "messages"))):
        label = verdict(fields.take("label"), fields.label("label"))
        payload, response = _attempt(fields)
        return Unpaired(Task(payload), response, label, fields.extra())
    payload, chosen, rejected = _read_pair(fields)
    if chosen == rejected:
        raise Unfit(f"'{fields.label('chosen')}' equals '{fields.label('rejected')}'")
    _offer(payload, fields)
    margin = fields.take_optional("margin")
    return Preference(
        task=Task(payload),
        chosen=chosen,
        rejected=rejected,
        margin=None if margin is None else number(margin, fields.label("margin")),
        extra=fields.extra(),
    )


def _read_pair(fields: Fields) -> tuple[Row, Response, Response]:
    """Return the prompt and both responses, which may contain the prompt."""
    labels = fields.label("prompt"), fields.label("chosen"), fields.label("rejected")
    chosen, rejected = (
        conversation_or_text(fields.take(name), fields.label(name), fields.forms)
        for name in ("chosen", "rejected")
    )
    payload = _prompt(fields) if fields.has("prompt") else _prompt_of_pair(fields, chosen, rejected)
    if isinstance(chosen, list) and isinstance(rejected, list):
        parted = chats.part_messages(payload, chosen, rejected, labels, fields.forms)
    else:
        chosen, rejected = text(chosen, labels[1]), text(rejected, labels[2])
        if payload is None:
            prompt, chosen, rejected = chats.part_text(chosen, rejected, fields.forms)
            parted = {"prompt": prompt}, chosen, rejected
        else:
            parted = payload, *_without_prompt(payload.get("prompt"), chosen, rejected, fields)
    return parted if payload is not None else (_around(parted[0], fields), *parted[1:])


def _prompt_of_pair(fields: Fields, chosen: Any, rejected: Any) -> Row | None:
    """Return the conversation before a pair; None if the pair contains its prompt."""
    if not fields.has("messages"):
        return None
    if isinstance(chosen, list) and isinstance(rejected, list) and chosen[0] == rejected[0]:
        return None
    label = fields.label("messages")
    messages = conversation(fields.take("messages"), label, fields.forms)
    if messages[-1]["role"] == "assistant":
        raise known.TWO_PROMPTS(fields.label("chosen"), label)
    return _around({"messages": messages}, fields)


def _without_prompt(prompt: str | None, chosen: str, rejected: str, fields: Fields) -> tuple[str, str]:
    """Return both texts without the prompt with which both begin."""
    if prompt is None or not (chosen.startswith(prompt) and rejected.startswith(prompt)):
        return chosen, rejected
    fields.forms.add(known.REPEATED)
    return text(chosen[len(prompt) :], fields.label("chosen")), text(
        rejected[len(prompt) :], fields.label("rejected")
    )


_BUILDERS: dict[Kind, Callable[[Fields], Record]] = {
    "tasks": _read_task,
    "demonstrations": _read_demonstration,
    "preferences": _read_preference,
    "trajectories": _read_trajectory,
    "traces": _read_trace,
}


def _offer(payload: Row, fields: Fields) -> None:
    """Take the tools of a conversation. Next to plain texts, a column that is no list of tools is kept."""
    if not fields.has("tools"):
        return
    if "messages" not in payload:
        if _lists_tools(fields.peek("tools")):
            raise known.PLAIN_TOOLS(fields.label("tools"))
        return
    offered = _offered(fields, _is_column(fields, "tools", "functions"))
    fields.take("tools")
    if offered:
        payload["tools"] = offered


def _lists_tools(value: Any) -> bool:
    """Whether a value is a list of tools, or its JSON text, and not empty."""
    try:
        return bool(chats.tools(value, "tools", set()))
    except Unfit:
        return False


def _attempt(fields: Fields, teaches_all: bool = False) -> tuple[Row, Response]:
    """Return prompt (as a task's payload) and response, from two columns or from one conversation.

    Args:
        teaches_all: whether to learn from every assistant turn of a conversation without weight 0.
    """
    if fields.has("messages"):
        label = fields.label("messages")
        payload, last = _conversation(fields, teaches_all)
        if last is None:
            raise Unfit(f"'{label}' does not end with the assistant's response")
        response = chats.replied([last], label)
    else:
        payload = _prompt(fields)
        before = payload.get("messages") or [chats.user(payload["prompt"])]
        response = chats.reply(fields.take("response"), fields.label("response"), fields.forms, before)
        if not isinstance(response, str):
            payload = {"messages": before}
    _offer(payload, fields)
    return payload, response


def _conversation(fields: Fields, teaches_all: bool = False) -> tuple[Row, Message | None]:
    """Return prompt and last turn of a conversation; the turn is None if it is not the assistant's.

    Raises:
        Unfit: if a prompt or response in another column is not part of the conversation.
    """
    label = fields.label("messages")
    messages = conversation(fields.take("messages"), label, fields.forms)
    for name in ("prompt", "response"):
        if name not in fields or not fields.has(name) or fields.column(name) == "answer":
            continue
        part = conversation_or_text(fields.peek(name), name, fields.forms)
        if not chats.contains(messages, part, at_end=name == "response"):
            raise known.TWO_PROMPTS(fields.column(name) or name, label)
        fields.take(name)
        fields.forms.add(known.REPEATED)
    if fields.has("history"):
        raise known.TWO_PROMPTS(fields.label("history"), label)
    messages = _around({"messages": messages}, fields)["messages"]
    return chats.split(messages, label, fields.forms, teaches_all)


def _prompt(fields: Fields) -> Row:
    """Return the prompt of a row, with the parts of it in other columns."""
    is_alpaca = _is_column(fields, "prompt", "instruction")
    payload = chats.prompt(fields.take("prompt"), fields.label("prompt"), fields.forms)
    if "prompt" in payload and (is_alpaca or fields.is_mapped("input")) and fields.has("input"):
        input_text = fields.take("input")
        if not isinstance(input_text, str):
            raise known.NOT_TEXT(fields.label("input"))
        payload = {
            "prompt": f"{payload['prompt']}\n{input_text}" if input_text.strip() else payload["prompt"]
        }
    if is_alpaca:
        fields.forms.add(known.ALPACA)
        payload = {"messages": payload.get("messages") or [chats.user(payload["prompt"])]}
    return _around(payload, fields)


def _around(payload: Row, fields: Fields) -> Row:
    """Put the columns `history` and `system` before a prompt."""
    before: list[Message] = []
    if fields.has("history"):
        before = chats.history(fields.take("history"), fields.label("history"), fields.forms)
    system = fields.take("system") if fields.has("system") else ""
    if not isinstance(system, str):
        raise known.NOT_TEXT(fields.label("system"))
    if not before and not system.strip():
        return payload
    messages = payload.get("messages") or [chats.user(payload["prompt"])]
    leading = [message for message in messages[:1] if message["role"] in ("system", "developer")]
    messages = [*leading, *before, *messages[len(leading) :]]
    if system.strip():
        fields.forms.add(known.SYSTEM)
        if leading and leading[0]["content"].strip() != system.strip():
            raise known.TWO_PROMPTS(fields.label("system"), fields.label("prompt"))
        messages = messages if leading else [{"role": "system", "content": system}, *messages]
    return {"messages": messages}
