"""Conversion of OpenEnv's TrainingTrace into the token sequences of an attempt.

A trace is a list of turns, one per engine call: prompt tokens, completion tokens with log-probabilities, and
a mask over both (package openenv, openenv/core/harness/training.py). Turns that continue the tokens of an
earlier turn are joined with it into one sequence, so that no sampled token is trained twice.

OpenEnv has no fields for rewards, tasks and versions, so our exports (`trace_export`) write them into the
turns' `metadata`, under `trinity_db`.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trinity_db.arrays.codec import CODEC, NO_VERSION, Payload, encode
from trinity_db.data.records import chats
from trinity_db.data.records.messages import conversation
from trinity_db.data.records.records import Record, Task, Unfit
from trinity_db.data.records.records import reward as checked_reward
from trinity_db.data.records.records import text as checked_text
from trinity_db.data.traces.trace_turn import (
    MAX_NUMBER,
    MAX_TOKEN,
    NEEDED,
    OURS,
    about_turn,
    is_number,
    read_turn,
)

Row = dict[str, Any]

SCHEMA_VERSION = 1
MAX_TRACE_BYTES = 64 * 2**20
"""Longest line. Each turn repeats its whole prompt, so a trace of many turns is far longer than its
tokens."""


@dataclass(frozen=True)
class TokenSequence(Record):
    """One token sequence of an attempt: texts for people, and arrays packed with `arrays.encode`."""

    prompt: str
    response: str
    codec: str
    data: str
    """Packed arrays, in base64."""
    num_tokens: int
    num_trained: int
    reward: float | None


@dataclass(frozen=True)
class Trace(Record):
    """One attempt at a task as tokens. `extra` has the original turns without their tokens."""

    task: Task
    sequences: list[TokenSequence]
    model: str | None
    extra: Row


@dataclass
class _Open:
    """A sequence that later turns may continue."""

    turn: Row
    """First turn of the sequence."""
    token_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    """Log-probabilities of the trained tokens; None if unknown."""
    versions: list[int] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def begins(self, prompt_ids: list[int]) -> bool:
        return self.token_ids == prompt_ids[: len(self.token_ids)]

    def add(self, turn: Row) -> None:
        prompt_ids, completion = turn["prompt_token_ids"], turn["completion_token_ids"]
        mask, logprobs = turn["loss_mask"][len(prompt_ids) :], turn["per_token_logps"]
        self.token_ids += [*prompt_ids[len(self.token_ids) :], *completion]
        self.mask += [0] * (len(prompt_ids) - len(self.mask)) + mask
        known = [None] * len(mask) if logprobs is None else logprobs
        self.logprobs += [logprob for logprob, is_trained in zip(known, mask, strict=True) if is_trained]
        self.versions += _ours(turn, "versions", sum(mask)) or [NO_VERSION] * sum(mask)
        self.temperatures += _ours(turn, "temperatures", sum(mask)) or []
        self.texts.append(_answer(turn["response"]) or _shown(completion))

    @property
    def payload(self) -> Payload:
        if self.temperatures and len(self.temperatures) != len(self.logprobs):
            raise Unfit(f"'metadata.{OURS}.temperatures' is in some turns of a sequence, and not in others")
        token_ids, mask = np.array(self.token_ids, np.int32), np.array(self.mask, np.bool_)
        if None in self.logprobs:
            if any(logprob is not None for logprob in self.logprobs) or self.temperatures:
                raise Unfit("'per_token_logps' is null in some turns of a sequence, and not in others")
            return Payload(token_ids, mask)
        return Payload(
            token_ids,
            mask,
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
            np.array(self.temperatures, np.float32) if self.temperatures else None,
        )


def read_trace(
    turns: Any, schema_version: Any, payload: Row | None, reward: float | None, model: str | None, extra: Row
) -> Trace:
    """Convert turns to an attempt.

    Args:
        payload: the task's payload, if other columns contain it; None: taken from the first turn.
        reward: reward of each sequence, if a column contains it.
        extra: other columns.

    Raises:
        Unfit: if it is not a TrainingTrace, or trains no token.
    """
    if schema_version not in (None, SCHEMA_VERSION) or isinstance(schema_version, bool):
        raise Unfit(f"'schema_version' must be {SCHEMA_VERSION}")
    if not isinstance(turns, list) or not turns:
        raise Unfit("'turns' must be a list of turns")
    checked = [read_turn(turn) for turn in turns]
    if len({turn["node_id"] for turn in checked}) < len(checked):
        raise Unfit("two turns have the same 'node_id'")
    opened, places = _joined(checked)
    trained = [number for number, sequence in enumerate(opened) if any(sequence.mask)]
    if not trained:
        raise Unfit("no turn has a token that its 'loss_mask' trains")
    about = about_turn(checked[0])
    task = Task(payload or _task(about, checked[0]))
    layout = [
        _remembered(turn, index, has_row=index in trained)
        for turn, index in zip(checked, places, strict=True)
    ]
    remembered: Row = {
        "turns": layout,
        **{name: about[name] for name in ("attempt", "rewards") if name in about},
    }
    return Trace(
        task=task,
        sequences=[_sequence(opened[number], task, reward) for number in trained],
        model=model if model is not None else _optional_text(about, "model"),
        extra={**_optional_object(about, "extra"), **extra, "trace": remembered},
    )


def _joined(turns: list[Row]) -> tuple[list[_Open], list[int]]:
    """Join turns into sequences; return them and the index of each turn's sequence.

    Our own turns name their sequence. Any other turn continues the longest sequence that is a prefix of its
    prompt.
    """
    opened: list[_Open] = []
    places = []
    for turn in turns:
        prompt_ids, index = turn["prompt_token_ids"], about_turn(turn).get("sequence")
        if index is None:
            begun = [number for number, sequence in enumerate(opened) if sequence.begins(prompt_ids)]
            index = max(begun, key=lambda number: len(opened[number].token_ids), default=len(opened))
        elif type(index) is not int or not 0 <= index <= len(opened):
            raise Unfit(f"'metadata.{OURS}.sequence' of a turn leaves a sequence out")
        elif index < len(opened) and not opened[index].begins(prompt_ids):
            raise Unfit(f"'metadata.{OURS}.sequence' names a sequence that the turn does not continue")
        if index == len(opened):
            opened.append(_Open(turn))
        opened[index].add(turn)
        places.append(index)
    return opened, places


def _sequence(joined: _Open, task: Task, reward: float | None) -> TokenSequence:
    payload, about = joined.payload, about_turn(joined.turn)
    if reward is None and about.get("reward") is not None:
        reward = checked_reward(about["reward"], f"metadata.{OURS}.reward")
    task_payload = _prompt(joined.turn["request"])
    prompt = Task(task_payload).prompt if task_payload is not None else task.prompt
    response = _optional_text(about, "response")
    return TokenSequence(
        prompt=_optional_text(about, "prompt") or prompt,
        response="\n\n".join(joined.texts) if response is None else response,
        codec=CODEC,
        data=base64.b64encode(encode(payload)).decode(),
        num_tokens=payload.num_tokens,
        num_trained=payload.num_trained,
        reward=reward,
    )


def _remembered(turn: Row, index: int, has_row: bool) -> Row:
    """Remove from a turn what its sequence's row has. A sequence without trained tokens has no row."""
    about: Row = {"node_id": turn["node_id"], "sequence": index}
    metadata = {name: value for name, value in turn["metadata"].items() if name != OURS}
    for name, value in (("request", turn["request"]), ("response", turn["response"]), ("metadata", metadata)):
        if value:
            about[name] = value
    if not has_row:
        return about | {name: turn[name] for name in NEEDED}
    prompt, completion = len(turn["prompt_token_ids"]), len(turn["completion_token_ids"])
    about |= {"prompt": prompt, "completion": completion}
    mask = turn["loss_mask"][prompt:]
    if turn["per_token_logps"] is None:
        return about | {"unknown_logps": True}
    masked = [
        logprob for logprob, is_trained in zip(turn["per_token_logps"], mask, strict=True) if not is_trained
    ]
    return about | {"masked_logps": masked} if masked else about


def _task(about: Row, turn: Row) -> Row:
    """Return the task's payload: from our export's metadata, or the request of the first turn."""
    exported = about.get("task")
    if exported is None:
        return _prompt(turn["request"]) or {"prompt": _shown(turn["prompt_token_ids"])}
    if not isinstance(exported, dict) or not exported.keys() & {"prompt", "messages"}:
        raise Unfit(f"'metadata.{OURS}.task' must be an object with 'prompt' or 'messages'")
    payload = {name: value for name, value in exported.items() if value is not None}
    name = "messages" if exported.get("messages") else "prompt"
    label = f"metadata.{OURS}.task.{name}"
    if name == "prompt":
        return payload | {"prompt": checked_text(exported.get(name), label)}
    return payload | chats.prompt(exported[name], label, set())


def _prompt(request: Mapping[str, Any]) -> Row | None:
    """Return the prompt of a request in a task's form; None if it has no text prompt."""
    try:
        return chats.prompt(conversation(request.get("messages"), "messages", set()), "messages", set())
    except Unfit:
        pass
    prompt = request.get("prompt")
    return {"prompt": prompt} if isinstance(prompt, str) and prompt.strip() else None


def _answer(response: Mapping[str, Any]) -> str | None:
    """Return the text of an OpenAI response, or of its message alone; None if it has none."""
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else response
    message = first.get("message")
    content = (message if isinstance(message, dict) else first).get("content")
    return content if isinstance(content, str) and content else None


def _shown(token_ids: list[int]) -> str:
    """Show token ids in place of unknown text: the importer has no tokenizer."""
    return " ".join(map(str, token_ids)) or "(no tokens)"


def _ours(turn: Row, name: str, number: int) -> list[Any] | None:
    """Return the numbers that a turn has for its trained tokens; None without them."""
    values = about_turn(turn).get(name)
    if values is None:
        return None
    is_fit = _is_version if name == "versions" else _is_temperature
    if not isinstance(values, list) or len(values) != number or not all(map(is_fit, values)):
        raise Unfit(f"'metadata.{OURS}.{name}' must have one number for each trained token")
    return values


def _is_version(value: Any) -> bool:
    return type(value) is int and NO_VERSION <= value <= MAX_TOKEN


def _is_temperature(value: Any) -> bool:
    return is_number(value) and 0 <= value < MAX_NUMBER


def _optional_text(about: Row, name: str) -> str | None:
    return None if about.get(name) is None else checked_text(about[name], f"metadata.{OURS}.{name}")


def _optional_object(about: Row, name: str) -> Row:
    section = about.get(name, {})
    if not isinstance(section, dict):
        raise Unfit(f"'metadata.{OURS}.{name}' must be an object")
    return section
