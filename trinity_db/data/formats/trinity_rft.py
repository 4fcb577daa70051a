"""Trinity-RFT: experiences from its SQLite buffer or from its JSON lines.

A buffer has tokens, log-probabilities and masks (read by `trinity_store`); JSON lines have only text. An
experience (trinity/common/experience.py) is one step of an attempt, identified by its `eid`: batch, task, run
and step.
"""

from collections.abc import Iterator
from typing import Any

from trinity_db.data.formats.attempts import parted
from trinity_db.data.records.records import Kind, Unfit
from trinity_db.data.traces.trace_turn import OURS

Row = dict[str, Any]

KINDS: tuple[Kind, ...] = ("tasks", "demonstrations", "preferences", "trajectories", "traces")
NAME = "trinity_rft"
"""Key of an experience's identity, information and measurements."""
KEPT = ("eid", "store_id", "info", "metrics", "truncate_status")


def recognises(row: Row) -> bool:
    """Whether a row is a task or an attempt of a buffer, or an experience from JSON lines."""
    return row.keys() in ({"raw_task"}, {"steps"}) or (
        isinstance(row.get("eid"), dict) and {"type", "prompt_length", "response_length"} <= row.keys()
    )


def read(row: Row, kind: Kind) -> Iterator[Row]:
    """Yield a task, or the steps of an attempt as rows of a kind.

    Raises:
        Unfit: if it is of another kind.
    """
    if kind == "tasks":
        if not isinstance(row.get("raw_task"), dict):
            raise Unfit("is not a task of Trinity-RFT")
        yield row["raw_task"]
        return
    if "raw_task" in row:
        raise Unfit("is a task; import it --as tasks")
    steps = row.get("steps", [row])
    if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
        raise Unfit("is not an experience of Trinity-RFT")
    if kind == "traces":
        yield _trace(steps)
        return
    for step in steps:
        yield _READERS[kind](step) | _tools(step) | {"extra": _kept(step)}


def _demonstration(step: Row) -> Row:
    return {"messages": _needed(step, "messages")}


def _preference(step: Row) -> Row:
    return {"chosen": _needed(step, "chosen_messages"), "rejected": _needed(step, "rejected_messages")}


def _trajectory(step: Row) -> Row:
    earned = {"reward": step.get("reward")}
    if step.get("prompt_text") is not None and step.get("response_text") is not None:
        return {"prompt": step["prompt_text"], "response": step["response_text"]} | earned
    before, after = parted(_conversation(step))
    return {"prompt": before, "response": after} | earned


_READERS = {"demonstrations": _demonstration, "preferences": _preference, "trajectories": _trajectory}


def _trace(steps: list[Row]) -> Row:
    """Convert an attempt to engine turns, each step a separate sequence with its own reward."""
    turns = [_turn(number, step) for number, step in enumerate(steps)]
    first = steps[0]
    eid = first.get("eid")
    names = ("batch", "task", "run", "suffix")
    named = [str(eid[name]) for name in names if name in eid] if isinstance(eid, dict) else []
    if named:
        turns[0]["metadata"][OURS]["attempt"] = "/".join(named)
    return {
        "turns": turns,
        "prompt": _task(first),
        "extra": {NAME: [_kept(step)[NAME] | _tools(step) for step in steps]},
    }


def _turn(number: int, step: Row) -> Row:
    tokens, start, mask = step.get("tokens"), step.get("prompt_length"), step.get("action_mask")
    if not isinstance(tokens, list):
        raise Unfit("has no tokens; import it --as trajectories to have its text")
    if type(start) is not int or not 0 < start <= len(tokens):
        raise Unfit("'prompt_length' is not the length of a prompt")
    completion = tokens[start:]
    if mask is None:
        mask = [1] * len(completion)
    elif not isinstance(mask, list) or not all(entry in (0, 1) for entry in mask):
        raise Unfit("'action_mask' must hold true and false")
    texts = {
        "prompt": step.get("prompt_text"),
        "response": step.get("response_text"),
        "reward": step.get("reward"),
    }
    metadata = {name: value for name, value in texts.items() if value is not None and value != ""}
    return {
        "node_id": str(number),
        "prompt_token_ids": tokens[:start],
        "completion_token_ids": completion,
        "per_token_logps": step.get("logprobs"),
        "loss_mask": [0] * start + [int(entry) for entry in mask],
        "metadata": {OURS: {"sequence": number} | metadata},
    }


def _task(step: Row) -> Any:
    """Return the task: messages before the first answer, or the prompt's text; None if there are only
    tokens."""
    if step.get("messages"):
        return parted(_conversation(step))[0] or None
    return step.get("prompt_text") or None


def _kept(step: Row) -> Row:
    fields = {name: step[name] for name in KEPT if step.get(name)}
    return {NAME: fields}


def _tools(step: Row) -> Row:
    return {"tools": step["tools"]} if step.get("tools") else {}


def _conversation(step: Row) -> list[Row]:
    messages = _needed(step, "messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Unfit("'messages' of the experience are none")
    return messages


def _needed(step: Row, name: str) -> Any:
    if not step.get(name):
        raise Unfit(f"'{name}' is missing in the experience")
    return step[name]
