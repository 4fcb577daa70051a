"""Attempts of the store as OpenEnv's TrainingTrace, which `traces` reads back to the token."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
from psycopg.rows import DictRow

from trinity_db.arrays import NO_VERSION, Payload
from trinity_db.database import Database
from trinity_db.imports.trace_turn import NEEDED, OURS
from trinity_db.imports.traces import SCHEMA_VERSION
from trinity_db.store import payloads

Row = dict[str, Any]

ATTEMPTS = 64  # whose arrays are held at a time


def traces(database: Database, rows: Iterable[DictRow]) -> Iterator[Row]:
    """A trace for each attempt of `export_traces`, within the transaction of that query.

    Raises:
        NotFound: arrays were pruned, or are not in the archive.
    """
    attempts = (list(steps) for _, steps in groupby(rows, key=itemgetter("rollout_id")))
    while page := [one for _, one in zip(range(ATTEMPTS), attempts, strict=False)]:
        found = payloads.read(database, [step["id"] for step in chain.from_iterable(page)])
        for steps in page:
            yield _trace(steps, [found[step["id"]] for step in steps])


def _trace(steps: Sequence[DictRow], sequences: Sequence[Payload]) -> Row:
    """One attempt.

    Args:
        steps: its rows, by step; sequences: their arrays.
    """
    first, extra = steps[0], dict(steps[0]["extra"] or {})
    kept = extra.pop("trace", {})
    layout = kept.get("turns") or _layout(sequences)
    attempt: Row = {
        "attempt": kept.get("attempt") or first["attempt"],
        "rewards": kept.get("rewards") or first["rewards"],
        "task": first["task"],
        "model": first["model"],
        "extra": extra,
    }
    # Sequences that train no token have no row; theirs are in the layout.
    places = sorted({turn["sequence"] for turn in layout if "prompt" in turn})
    turns: list[Row] = []
    begun = set[int]()
    for turn in layout:
        place = turn["sequence"]
        ours = {"sequence": place} | ({} if turns else {name: one for name, one in attempt.items() if one})
        number = places.index(place) if place in places else None
        if number is not None and place not in begun:
            begun.add(place)
            ours |= _texts(steps[number])
        turns.append(_turn(turn, ours, None if number is None else sequences[number]))
    return {"schema_version": SCHEMA_VERSION, "turns": turns}


def _layout(sequences: Sequence[Payload]) -> list[Row]:
    """The turns of an attempt that was explored: each run of sampled tokens is one.

    What the policy read after its last token, as the answer of a tool, is the prompt of a turn without
    completion.
    """
    turns = []
    for place, payload in enumerate(sequences):
        mask = payload.action_mask.astype(np.int8)
        edges = np.flatnonzero(np.diff(mask, prepend=0, append=0)).tolist()
        runs = [(start, end - start) for start, end in zip(edges[::2], edges[1::2], strict=True)]
        if not runs or sum(runs[-1]) < len(mask):
            runs.append((len(mask), 0))
        turns += [
            {"node_id": f"{place}-{number}", "sequence": place, "prompt": prompt, "completion": completion}
            for number, (prompt, completion) in enumerate(runs)
        ]
    return turns


def _texts(step: DictRow) -> Row:
    found = {"prompt": step["prompt"], "response": step["response"], "reward": step["reward"]}
    return {name: value for name, value in found.items() if value is not None and value != ""}


def _turn(turn: Row, ours: Row, payload: Payload | None) -> Row:
    """A turn with its tokens, as OpenEnv has it; those of a turn that trains none are in the layout."""
    if payload is None:
        tokens = {name: turn[name] for name in NEEDED}
        if tokens["per_token_logps"] is not None:
            tokens["per_token_logps"] = [float(one) for one in turn["per_token_logps"]]
    else:
        tokens, numbers = _tokens(turn, payload)
        ours = ours | numbers
    return {
        **tokens,
        "node_id": turn["node_id"],
        "request": turn.get("request", {}),
        "response": turn.get("response", {}),
        "metadata": {**turn.get("metadata", {}), OURS: ours},
    }


def _tokens(turn: Row, payload: Payload) -> tuple[Row, Row]:
    """Tokens, log-probabilities and mask of a turn; versions and temperatures of its trained tokens."""
    start, end = turn["prompt"], turn["prompt"] + turn["completion"]
    before, trained = (int(payload.action_mask[:place].sum()) for place in (start, end))
    mask = payload.action_mask[start:end]
    logprobs = np.zeros(len(mask))
    numbers: Row = {}
    if payload.logprobs is not None and payload.versions is not None:
        # An engine of a user's own may round a certain token's above 0, which no reader takes.
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
