"""Atropos: groups of scored attempts at one task, one group per line.

`ScoredDataGroup` (atroposlib/envs/base.py) has lists of tokens, masks, scores and optionally messages,
inference_logprobs, advantages, ref_logprobs and overrides, with one member per attempt. A mask repeats
trained tokens and has -100 for others. The log-probability of an untrained token is the placeholder 1.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from trinity_db.data.formats.attempts import parted
from trinity_db.data.records.records import Kind, Unfit
from trinity_db.data.traces.trace_turn import OURS

Row = dict[str, Any]

KINDS: tuple[Kind, ...] = ("traces", "trajectories")
NOT_TRAINED = -100
NEEDED = ("tokens", "masks", "scores")
BY_ATTEMPT = ("advantages", "ref_logprobs", "overrides", "messages", "inference_logprobs")
"""Lists with one member per attempt; empty or null if the environment has none."""


def recognises(row: Row) -> bool:
    """Whether a row is a group."""
    return all(isinstance(row.get(name), list) for name in NEEDED)


def read(row: Row, kind: Kind) -> Iterator[Row]:
    """Yield the attempts of a group, each with a unique name, since equal ones count in a group's baseline.

    Raises:
        Unfit: if its lists do not match.
    """
    lists = _lists(row)
    others = {name: value for name, value in row.items() if name not in (*NEEDED, *BY_ATTEMPT) and value}
    group = hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16).hexdigest()
    for number in range(len(row["scores"])):
        attempt = {name: values[number] for name, values in lists.items()}
        unread = others | {
            name: attempt[name] for name in ("advantages", "ref_logprobs", "overrides") if attempt.get(name)
        }
        about = {"attempt": f"{group}-{number}", "score": attempt["scores"], "said": _conversation(attempt)}
        extra = {"atropos": unread} if unread else {}
        yield _trace(attempt, about, extra) if kind == "traces" else _trajectory(about, extra)


def _lists(row: Row) -> dict[str, list[Any]]:
    if not recognises(row):
        missing = next(name for name in NEEDED if not isinstance(row.get(name), list))
        raise Unfit(f"'{missing}' is not a list, as in a group of Atropos")
    lists = {name: row[name] for name in NEEDED} | {name: row[name] for name in BY_ATTEMPT if row.get(name)}
    if not row["scores"]:
        raise Unfit("'scores' is empty")
    for name, values in lists.items():
        if not isinstance(values, list) or len(values) != len(row["scores"]):
            raise Unfit(f"'{name}' must have one entry for each of 'scores'")
    return lists


def _conversation(attempt: Row) -> list[Row] | None:
    """Return the messages of an attempt; None if there are none, or only their text."""
    messages = attempt.get("messages")
    is_fit = (
        isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)
    )
    return messages if is_fit else None


def _trace(attempt: Row, about: Row, extra: Row) -> Row:
    tokens, mask = attempt["tokens"], attempt["masks"]
    if not isinstance(tokens, list) or not isinstance(mask, list) or len(tokens) != len(mask):
        raise Unfit("'masks' must have one number for each token")
    trained = [entry != NOT_TRAINED for entry in mask]
    if any(
        is_trained and entry != token for token, entry, is_trained in zip(tokens, mask, trained, strict=True)
    ):
        raise Unfit(f"'masks' must repeat trained tokens, and have {NOT_TRAINED} elsewhere")
    if not any(trained):
        raise Unfit("'masks' trains no token")
    start = trained.index(True)
    metadata = {"attempt": about["attempt"], "reward": about["score"]}
    row: Row = {"extra": extra}
    if (messages := about["said"]) is not None:
        before, after = parted(messages)
        texts = [message.get("content") for message in after]
        row["prompt"] = before or None
        metadata["response"] = "\n\n".join(text for text in texts if isinstance(text, str) and text) or None
    turn = {
        "node_id": "0",
        "prompt_token_ids": tokens[:start],
        "completion_token_ids": tokens[start:],
        "per_token_logps": _logprobs(attempt.get("inference_logprobs"), trained, start),
        "loss_mask": [int(is_trained) for is_trained in trained],
        "metadata": {OURS: {name: value for name, value in metadata.items() if value is not None}},
    }
    return row | {"turns": [turn]}


def _logprobs(logprobs: Any, trained: list[bool], start: int) -> list[Any] | None:
    """Return log-probabilities from the first trained token on; None if the group has none."""
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
