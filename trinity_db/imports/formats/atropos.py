"""Atropos: groups of scored attempts at one task, a group a line.

`ScoredDataGroup` (atroposlib/envs/base.py) has a list for each of tokens, masks, scores and perhaps
messages, inference_logprobs, advantages, ref_logprobs and overrides, with a member of each for every attempt.
A mask has the token where it is trained, and -100 where it is not. The log-probability of a token that is not
trained is 1 there, which says nothing.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from trinity_db.imports.formats.attempts import parted
from trinity_db.imports.records import Kind, Unfit
from trinity_db.imports.trace_turn import OURS

Row = dict[str, Any]

KINDS: tuple[Kind, ...] = ("traces", "trajectories")
NOT_TRAINED = -100
NEEDED = ("tokens", "masks", "scores")
BY_ATTEMPT = ("advantages", "ref_logprobs", "overrides", "messages", "inference_logprobs")
"""Lists with a member for each attempt; empty or null where an environment has none."""


def recognises(row: Row) -> bool:
    """Whether it is a group."""
    return all(isinstance(row.get(name), list) for name in NEEDED)


def read(row: Row, kind: Kind) -> Iterator[Row]:
    """The attempts of a group. Each has a name of its own, since equal ones count in a group's baseline.

    Raises:
        Unfit: its lists do not fit one another.
    """
    lists = _lists(row)
    rest = {name: value for name, value in row.items() if name not in (*NEEDED, *BY_ATTEMPT) and value}
    group = hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16).hexdigest()
    for number in range(len(row["scores"])):
        one = {name: values[number] for name, values in lists.items()}
        kept = rest | {
            name: one[name] for name in ("advantages", "ref_logprobs", "overrides") if one.get(name)
        }
        about = {"attempt": f"{group}-{number}", "score": one["scores"], "said": _conversation(one)}
        extra = {"atropos": kept} if kept else {}
        yield _trace(one, about, extra) if kind == "traces" else _trajectory(about, extra)


def _lists(row: Row) -> dict[str, list[Any]]:
    if not recognises(row):
        missing = next(name for name in NEEDED if not isinstance(row.get(name), list))
        raise Unfit(f"'{missing}' is no list, as in a group of Atropos")
    lists = {name: row[name] for name in NEEDED} | {name: row[name] for name in BY_ATTEMPT if row.get(name)}
    if not row["scores"]:
        raise Unfit("'scores' is empty")
    for name, values in lists.items():
        if not isinstance(values, list) or len(values) != len(row["scores"]):
            raise Unfit(f"'{name}' must have one entry for each of 'scores'")
    return lists


def _conversation(one: Row) -> list[Row] | None:
    """The messages of an attempt; None where there are none, or only their text."""
    messages = one.get("messages")
    is_fit = isinstance(messages, list) and messages and all(isinstance(said, dict) for said in messages)
    return messages if is_fit else None


def _trace(one: Row, about: Row, extra: Row) -> Row:
    tokens, mask = one["tokens"], one["masks"]
    if not isinstance(tokens, list) or not isinstance(mask, list) or len(tokens) != len(mask):
        raise Unfit("'masks' must have one number for each token")
    trained = [entry != NOT_TRAINED for entry in mask]
    if any(
        is_trained and entry != token for token, entry, is_trained in zip(tokens, mask, trained, strict=True)
    ):
        raise Unfit(f"'masks' must hold the token where it is trained, and else {NOT_TRAINED}")
    if not any(trained):
        raise Unfit("'masks' trains no token")
    start = trained.index(True)
    ours = {"attempt": about["attempt"], "reward": about["score"]}
    row: Row = {"extra": extra}
    if (messages := about["said"]) is not None:
        before, after = parted(messages)
        texts = [message.get("content") for message in after]
        row["prompt"] = before or None
        ours["response"] = "\n\n".join(text for text in texts if isinstance(text, str) and text) or None
    turn = {
        "node_id": "0",
        "prompt_token_ids": tokens[:start],
        "completion_token_ids": tokens[start:],
        "per_token_logps": _logprobs(one.get("inference_logprobs"), trained, start),
        "loss_mask": [int(is_trained) for is_trained in trained],
        "metadata": {OURS: {name: value for name, value in ours.items() if value is not None}},
    }
    return row | {"turns": [turn]}


def _logprobs(logprobs: Any, trained: list[bool], start: int) -> list[Any] | None:
    """Of the tokens from the first one that is trained; None where the group has none."""
    if logprobs is None:
        return None
    if not isinstance(logprobs, list) or len(logprobs) != len(trained):
        raise Unfit("'inference_logprobs' must have one number for each token")
    pairs = list(zip(logprobs, trained, strict=True))[start:]
    return [logprob if is_trained else 0.0 for logprob, is_trained in pairs]


def _trajectory(about: Row, extra: Row) -> Row:
    if about["said"] is None:
        raise Unfit("has no 'messages'; import it --as traces to have its tokens")
    before, after = parted(about["said"])
    named = extra | {"attempt": about["attempt"]}
    return {"prompt": before, "response": after, "reward": about["score"], "extra": named}
