"""Export of attempts as OpenEnv's TrainingTrace, which `traces` reads back without loss."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
from psycopg.rows import DictRow

from trinity_db.arrays.codec import NO_VERSION, Payload
from trinity_db.data.traces.trace_turn import NEEDED, OURS
from trinity_db.data.traces.traces import SCHEMA_VERSION
from trinity_db.postgres.connection import Database
from trinity_db.store import payloads

Row = dict[str, Any]

ATTEMPTS = 64  # attempts whose arrays are in memory at a time


def traces(
    database: Database,
    rows: Iterable[DictRow],
    convert: Callable[[Sequence[DictRow], Sequence[Payload]], Row],
) -> Iterator[Row]:
    """Yield each attempt of `export_traces`, converted, within the transaction of that query.

    Args:
        convert: `trace`, or a function with the same parameters.

    Raises:
        NotFound: if arrays were pruned, or are not in the archive.
    """
    attempts = (list(steps) for _, steps in groupby(rows, key=itemgetter("rollout_id")))
    while page := [attempt for _, attempt in zip(range(ATTEMPTS), attempts, strict=False)]:
        payload_of = payloads.read(database, [step["id"] for step in chain.from_iterable(page)])
        for steps in page:
            yield convert(steps, [payload_of[step["id"]] for step in steps])


def trace(steps: Sequence[DictRow], sequences: Sequence[Payload]) -> Row:
    """Convert one attempt.

    Args:
        steps: its rows, by step; sequences: their arrays.
    """
    first, extra = steps[0], dict(steps[0]["extra"] or {})
    stored = extra.pop("trace", {})
    layout = stored.get("turns") or _layout(sequences)
    attempt: Row = {
        "attempt": stored.get("attempt") or first["attempt"],
        "rewards": stored.get("rewards") or first["rewards"],
        "task": first["task"],
        "model": first["model"],
        "extra": extra,
    }
    # Sequences without trained tokens have no row; their tokens are in the layout.
    places = sorted({turn["sequence"] for turn in layout if "prompt" in turn})
    turns: list[Row] = []
    begun = set[int]()
    for turn in layout:
        sequence = turn["sequence"]
        metadata = {"sequence": sequence} | (
            {} if turns else {name: value for name, value in attempt.items() if value}
        )
        number = places.index(sequence) if sequence in places else None
        if number is not None and sequence not in begun:
            begun.add(sequence)
            metadata |= _texts(steps[number])
        turns.append(_turn(turn, metadata, None if number is None else sequences[number]))
    return {"schema_version": SCHEMA_VERSION, "turns": turns}


def _layout(sequences: Sequence[Payload]) -> list[Row]:
    """Return the turns of an explored attempt: one per run of sampled tokens.

    Text that the policy read after its last token, such as a tool's result, is the prompt of a turn without
    completion.
    """
    turns = []
    for index, payload in enumerate(sequences):
        mask = payload.action_mask.astype(np.int8)
        edges = np.flatnonzero(np.diff(mask, prepend=0, append=0)).tolist()
        runs = [(start, end - start) for start, end in zip(edges[::2], edges[1::2], strict=True)]
        if not runs or sum(runs[-1]) < len(mask):
            runs.append((len(mask), 0))
        turns += [
            {"node_id": f"{index}-{number}", "sequence": index, "prompt": prompt, "completion": completion}
            for number, (prompt, completion) in enumerate(runs)
        ]
    return turns


def _texts(step: DictRow) -> Row:
    fields = {"prompt": step["prompt"], "response": step["response"], "reward": step["reward"]}
    return {name: value for name, value in fields.items() if value is not None and value != ""}


def _turn(turn: Row, metadata: Row, payload: Payload | None) -> Row:
    """Return a turn with its tokens in OpenEnv's form; tokens of an untrained turn are in the layout."""
    if payload is None:
        tokens = {name: turn[name] for name in NEEDED}
        if tokens["per_token_logps"] is not None:
            tokens["per_token_logps"] = [float(logprob) for logprob in turn["per_token_logps"]]
    else:
        tokens, numbers = _tokens(turn, payload)
        metadata = metadata | numbers
    return {
        **tokens,
        "node_id": turn["node_id"],
        "request": turn.get("request", {}),
        "response": turn.get("response", {}),
        "metadata": {**turn.get("metadata", {}), OURS: metadata},
    }


def _tokens(turn: Row, payload: Payload) -> tuple[Row, Row]:
    """Return tokens, log-probabilities and mask of a turn, and versions and temperatures of trained
    tokens."""
    start, end = turn["prompt"], turn["prompt"] + turn["completion"]
    before, trained = (int(payload.action_mask[:position].sum()) for position in (start, end))
    mask = payload.action_mask[start:end]
    logprobs = np.zeros(len(mask))
    numbers: Row = {}
    if payload.logprobs is not None and payload.versions is not None:
        # A user's own engine may round a certain token's log-probability above 0, which readers reject.
        logprobs[mask] = np.minimum(payload.logprobs[before:trained], 0)
        versions = payload.versions[before:trained].tolist()
        numbers = {"versions": versions} if set(versions) - {NO_VERSION} else {}
    if payload.temperatures is not None:
        numbers["temperatures"] = payload.temperatures[before:trained].tolist()
    if "masked_logps" in turn:
        logprobs[~mask] = turn["masked_logps"]
    return {
        "prompt_token_ids": payload.token_ids[:start].tolist(),
        "completion_token_ids": payload.token_ids[start:end].tolist(),
        "per_token_logps": None if turn.get("unknown_logps") else logprobs.tolist(),
        "loss_mask": [0] * start + mask.astype(int).tolist(),
    }, numbers
