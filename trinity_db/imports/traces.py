"""OpenEnv's TrainingTrace into the token sequences of an attempt.

A trace is a list of turns, one for each call of an engine: tokens of the prompt, tokens of the completion
with their log-probabilities, and a mask over both (package openenv, openenv/core/harness/training.py). Turns
that go on from the tokens of an earlier turn make one sequence with it, so that no sampled token is trained
twice.

OpenEnv has no place for rewards, tasks and versions. Our exports write them into the turns' `metadata`, under
`trinity_db`; `trace_export` writes what this module reads.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trinity_db.arrays import CODEC, NO_VERSION, Payload, encode
from trinity_db.imports.records import Record, Task, Unfit, conversation, prompt_payload, tidy
from trinity_db.imports.records import reward as checked_reward
from trinity_db.imports.records import text as checked_text
from trinity_db.imports.trace_turn import (
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
"""Of a line: each turn has its whole prompt, so that a trace of many turns is far longer than its tokens."""


@dataclass(frozen=True)
class TokenSequence(Record):
    """One token sequence of an attempt: its texts for people, its arrays as `arrays.encode` packs them."""

    prompt: str
    response: str
    codec: str
    data: str
    """The arrays, in base64."""
    num_tokens: int
    num_trained: int
    reward: float | None


@dataclass(frozen=True)
class Trace(Record):
    """One attempt at a task as tokens. `extra` has the turns as they were, without their tokens."""

    task: Task
    sequences: list[TokenSequence]
    model: str | None
    extra: Row


@dataclass
class _Open:
    """A sequence that later turns may go on from."""

    turn: Row
    """Its first one."""
    token_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    """Of the trained tokens; None where they are not known."""
    versions: list[int] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def begins(self, prompt_ids: list[int]) -> bool:
        return self.token_ids == prompt_ids[: len(self.token_ids)]

    def add(self, turn: Row) -> None:
        prompt_ids, completion = turn["prompt_token_ids"], turn["completion_token_ids"]
        mask, logprobs = turn["loss_mask"][len(prompt_ids) :], turn["per_token_logps"]
        self.token_ids += [*prompt_ids[len(self.token_ids) :], *completion]
        self.mask += [0] * (len(prompt_ids) - len(self.mask)) + mask
        known = [None] * len(mask) if logprobs is None else logprobs
        self.logprobs += [one for one, is_trained in zip(known, mask, strict=True) if is_trained]
        self.versions += _ours(turn, "versions", sum(mask)) or [NO_VERSION] * sum(mask)
        self.temperatures += _ours(turn, "temperatures", sum(mask)) or []
        self.said.append(_said(turn["response"]) or _shown(completion))

    @property
    def payload(self) -> Payload:
        if self.temperatures and len(self.temperatures) != len(self.logprobs):
            raise Unfit(f"'metadata.{OURS}.temperatures' is in some turns of a sequence, and not in others")
        token_ids, mask = np.array(self.token_ids, np.int32), np.array(self.mask, np.bool_)
        if None in self.logprobs:
            if any(one is not None for one in self.logprobs) or self.temperatures:
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
    """The attempt that turns describe.

    Args:
        payload: of the task, where columns beside the turns say it; None: the first turn says it.
        reward: of each sequence, where a column says it.
        extra: other columns.

    Raises:
        Unfit: it is no TrainingTrace, or trains no token.
    """
    if schema_version not in (None, SCHEMA_VERSION) or isinstance(schema_version, bool):
        raise Unfit(f"'schema_version' must be {SCHEMA_VERSION}")
    if not isinstance(turns, list) or not turns:
        raise Unfit("'turns' must be a list of turns")
    checked = [read_turn(turn) for turn in turns]
    if len({turn["node_id"] for turn in checked}) < len(checked):
        raise Unfit("two turns have the same 'node_id'")
    opened, places = _joined(checked)
    trained = [number for number, one in enumerate(opened) if any(one.mask)]
    if not trained:
        raise Unfit("no turn has a token that its 'loss_mask' trains")
    about = about_turn(checked[0])
    task = Task(payload or _task(about, checked[0]))
    layout = [
        _remembered(turn, place, has_row=place in trained)
        for turn, place in zip(checked, places, strict=True)
    ]
    kept: Row = {"turns": layout, **{name: about[name] for name in ("attempt", "rewards") if name in about}}
    return Trace(
        task=task,
        sequences=[_sequence(opened[number], task, reward) for number in trained],
        model=model if model is not None else _optional_text(about, "model"),
        extra={**_optional_object(about, "extra"), **extra, "trace": kept},
    )


def _joined(turns: list[Row]) -> tuple[list[_Open], list[int]]:
    """The sequences that turns make, and to which of them each turn belongs.

    A turn of ours says it. Any other goes on from the longest sequence that its prompt begins with.
    """
    opened: list[_Open] = []
    places = []
    for turn in turns:
        prompt_ids, place = turn["prompt_token_ids"], about_turn(turn).get("sequence")
        if place is None:
            begun = [number for number, one in enumerate(opened) if one.begins(prompt_ids)]
            place = max(begun, key=lambda number: len(opened[number].token_ids), default=len(opened))
        elif type(place) is not int or not 0 <= place <= len(opened):
            raise Unfit(f"'metadata.{OURS}.sequence' of a turn leaves a sequence out")
        elif place < len(opened) and not opened[place].begins(prompt_ids):
            raise Unfit(f"'metadata.{OURS}.sequence' names a sequence that the turn does not go on from")
        if place == len(opened):
            opened.append(_Open(turn))
        opened[place].add(turn)
        places.append(place)
    return opened, places


def _sequence(joined: _Open, task: Task, reward: float | None) -> TokenSequence:
    payload, about = joined.payload, about_turn(joined.turn)
    if reward is None and about.get("reward") is not None:
        reward = checked_reward(about["reward"], f"metadata.{OURS}.reward")
    asked = _asked(joined.turn["request"])
    prompt = Task(asked).prompt if asked is not None else task.prompt
    response = _optional_text(about, "response")
    return TokenSequence(
        prompt=_optional_text(about, "prompt") or prompt,
        response="\n\n".join(joined.said) if response is None else response,
        codec=CODEC,
        data=base64.b64encode(encode(payload)).decode(),
        num_tokens=payload.num_tokens,
        num_trained=payload.num_trained,
        reward=reward,
    )


def _remembered(turn: Row, place: int, has_row: bool) -> Row:
    """A turn without what the row of its sequence has. A sequence that trains no token has no row."""
    about: Row = {"node_id": turn["node_id"], "sequence": place}
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
    masked = [one for one, is_trained in zip(turn["per_token_logps"], mask, strict=True) if not is_trained]
    return about | {"masked_logps": masked} if masked else about


def _task(about: Row, turn: Row) -> Row:
    """The payload of the task: as an export of ours says it, or what the first turn was asked."""
    given = about.get("task")
    if given is None:
        return _asked(turn["request"]) or {"prompt": _shown(turn["prompt_token_ids"])}
    if not isinstance(given, dict) or not given.keys() & {"prompt", "messages"}:
        raise Unfit(f"'metadata.{OURS}.task' must be an object with 'prompt' or 'messages'")
    name = "messages" if given.get("messages") else "prompt"
    payload: Row = tidy(given)
    return payload | prompt_payload(given.get(name), f"metadata.{OURS}.task.{name}")


def _asked(request: Mapping[str, Any]) -> Row | None:
    """The prompt of a request as a task has it; None where it has none that is text."""
    try:
        return prompt_payload(conversation(request.get("messages"), "messages"), "messages")
    except Unfit:
        pass
    prompt = request.get("prompt")
    return {"prompt": prompt} if isinstance(prompt, str) and prompt.strip() else None


def _said(response: Mapping[str, Any]) -> str | None:
    """The text of an answer of OpenAI's protocol, or of its message alone; None where it has none."""
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else response
    message = first.get("message")
    content = (message if isinstance(message, dict) else first).get("content")
    return content if isinstance(content, str) and content else None


def _shown(token_ids: list[int]) -> str:
    """Tokens for people to read, where no text is known: the importer has no tokenizer."""
    return " ".join(map(str, token_ids)) or "(no tokens)"


def _ours(turn: Row, name: str, number: int) -> list[Any] | None:
    """Numbers of a turn's trained tokens; None where the turn has none."""
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
    found = about.get(name, {})
    if not isinstance(found, dict):
        raise Unfit(f"'metadata.{OURS}.{name}' must be an object")
    return found
