"""Which column means what: from a row as it was written to the records of one kind.

Columns are found by the conventions of TRL's data set formats
(https://huggingface.co/docs/trl/dataset_formats) and of GSM8K (`question`, `answer`), or named by a
mapping. Knows no file and no database; what a record must hold to be one is said in `records`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trinity_db.errors import ConfigError
from trinity_db.imports.mapping import ColumnMap
from trinity_db.imports.records import (
    Demonstration,
    Kind,
    Message,
    Preference,
    Record,
    Task,
    Trajectory,
    Unfit,
    Unpaired,
    conversation,
    number,
    prompt_payload,
    reply,
    reward,
    text,
    tidy,
    verdict,
)
from trinity_db.imports.rejects import Rejected

Row = dict[str, Any]

# Our name, and the columns that it is looked for in, the first that holds something.
_PROMPT: dict[str, tuple[str, ...]] = {"prompt": ("prompt", "question"), "messages": ("messages",)}
_PAYLOAD_NAMES = ("prompt", "messages", "answer")
_COLUMNS: dict[Kind, dict[str, tuple[str, ...]]] = {
    "tasks": _PROMPT | {"answer": ("answer",)},
    "demonstrations": _PROMPT | {"response": ("completion", "response", "answer")},
    "preferences": {
        "prompt": ("prompt", "question"),
        "chosen": ("chosen",),
        "rejected": ("rejected",),
        "margin": ("margin",),
        "response": ("completion", "response"),
        "label": ("label",),
    },
    "trajectories": _PROMPT
    | {
        "response": ("completion", "response"),
        "reward": ("reward", "label"),
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
        messages = conversation(fields.take("messages"), fields.label("messages"))
        payload, answer = _split(messages, fields.label("messages"), ends_with_response=False)
    else:
        payload, answer = prompt_payload(fields.take("prompt"), fields.label("prompt")), None
    answer = tidy(fields.take_optional("answer")) if fields.has("answer") else answer
    if answer is not None:
        payload["answer"] = answer
    # Other columns of these names would be taken for the prompt or the answer.
    extra = {name: value for name, value in fields.extra().items() if name not in _PAYLOAD_NAMES}
    return Task(extra | payload)


def _read_demonstration(fields: _Fields) -> Record:
    payload, response = _attempt(fields)
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
        payload, chosen, rejected = _part_messages(prompt, chosen, rejected, labels, fields.label("prompt"))
    else:
        chosen, rejected = text(chosen, labels[0]), text(rejected, labels[1])
        if prompt is None:
            prompt, chosen, rejected = _part_text(chosen, rejected)
        payload = prompt_payload(prompt, fields.label("prompt"))
    if chosen == rejected:
        raise Unfit(f"'{labels[0]}' equals '{labels[1]}'")
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
}


def _attempt(fields: _Fields) -> tuple[Row, str]:
    """Prompt (as a task's payload) and response, from two columns or else from one conversation."""
    if fields.has("messages") and not (fields.has("prompt") and fields.has("response")):
        label = fields.label("messages")
        payload, response = _split(
            conversation(fields.take("messages"), label), label, ends_with_response=True
        )
        return payload, text(response, label)
    payload = prompt_payload(fields.take("prompt"), fields.label("prompt"))
    return payload, reply(fields.take("response"), fields.label("response"))


def _split(messages: list[Message], label: str, ends_with_response: bool) -> tuple[Row, str | None]:
    """A conversation's last message, if it is the assistant's, is the response, and the rest the prompt."""
    if messages[-1]["role"] == "assistant":
        *before, last = messages
        if not before:
            raise Unfit(f"'{label}' holds a response without a prompt")
        return prompt_payload(before, label), last["content"]
    if ends_with_response:
        raise Unfit(f"'{label}' does not end with the assistant's response")
    return prompt_payload(messages, label), None


def _part_messages(
    prompt: Any, chosen: Any, rejected: Any, labels: tuple[str, str], prompt_label: str
) -> tuple[Row, str, str]:
    """Two conversations into the messages they share, (the end of) the prompt, and a response each."""
    left, right = conversation(chosen, labels[0]), conversation(rejected, labels[1])
    if left == right:
        raise Unfit(f"'{labels[0]}' equals '{labels[1]}'")
    num_shared = 0
    while num_shared < min(len(left), len(right)) and left[num_shared] == right[num_shared]:
        num_shared += 1
    shared = left[:num_shared]
    if isinstance(prompt, list):
        given = conversation(prompt, prompt_label)
        shared = shared if shared[: len(given)] == given else given + shared
    elif prompt is not None and not any(message["content"] == prompt for message in shared):
        shared = [{"role": "user", "content": text(prompt, prompt_label)}, *shared]
    if not shared:
        raise Unfit(f"'{prompt_label}' is missing, and '{labels[0]}' and '{labels[1]}' begin differently")
    payload = prompt_payload(shared, prompt_label)
    return payload, reply(left[num_shared:], labels[0]), reply(right[num_shared:], labels[1])


def _part_text(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Two texts into the words they share at the start, which are the prompt, and a response each.

    As TRL's `extract_prompt`, but never in the middle of a word; the space before the response belongs to it.
    """
    if chosen == rejected:
        raise Unfit("'chosen' equals 'rejected'")
    length = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    shared = chosen[:length] if length is not None else min(chosen, rejected, key=len)
    end = max(shared.rfind(" "), shared.rfind("\n"))
    if not shared[: max(end, 0)].strip():
        raise Unfit("'prompt' is missing, and 'chosen' and 'rejected' begin differently")
    return shared[:end], chosen[end:], rejected[end:]
