"""Export of attempts as episodes of verifiers, one trace each, which prime-rl reads too.

A sequence becomes a path of message nodes from a root to a leaf. The tokens between two responses belong to
the last message before the response, since a trace of ours does not tell how messages divide them.
"""

from collections.abc import Sequence
from typing import Any

from psycopg.rows import DictRow

from trinity_db.arrays.codec import Payload
from trinity_db.data.traces.trace_export import trace
from trinity_db.data.traces.trace_turn import OURS

Row = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")


def episode(steps: Sequence[DictRow], sequences: Sequence[Payload]) -> Row:
    """Convert one attempt; see `trace_export.trace`."""
    turns = trace(steps, sequences)["turns"]
    about = turns[0]["metadata"][OURS]
    theirs = about.get("extra", {}).get("verifiers", {})
    data = dict(about["task"])
    group = str(data.pop("group", steps[0]["group_id"]))
    prompt = data.pop("messages", None) or data.pop("prompt", None)
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt or ""}]
    if not theirs:  # a column of ours may have the name of another field of a task
        answer = {"answer": data.pop("answer")} if "answer" in data else {}
        data = answer | ({"columns": data} if data else {})
    prompt = [_message(message) for message in prompt] if isinstance(prompt, list) else prompt
    task = {"type": "Task", "data": data | {"prompt": prompt}}
    rewards = [row["reward"] for row in steps if row["reward"] is not None]
    one = {
        "id": about["attempt"],
        "task": task,
        "agent": {"config": {}, "name": "policy"} | theirs.get("agent", {}),
        "nodes": _nodes(turns, messages),
        "rewards": theirs.get("rewards") or ({"reward": {"score": rewards[-1]}} if rewards else {}),
        "metrics": theirs.get("metrics") or about.get("rewards", {}),
        "info": theirs.get("info", {}),
        "is_completed": True,
        "ok": True,
    }
    return {"id": about["attempt"], "task": task, "group": {"id": group}, "ok": True, "traces": [one]}


def _nodes(turns: Sequence[Row], task: Sequence[Row]) -> list[Row]:
    nodes: list[Row] = []
    ends: dict[int, tuple[int | None, int]] = {}  # by sequence: its last node, and its number of tokens
    for turn in turns:
        about = turn["metadata"][OURS]
        parent, known = ends.get(about["sequence"], (None, 0))
        tokens = turn["prompt_token_ids"][known:]
        messages = turn["request"].get("messages") or (task if parent is None else [])
        for number, message in enumerate(messages or [{"role": "user", "content": ""}]):
            is_last = number == max(0, len(messages) - 1)
            nodes.append(_node(parent, message, tokens if is_last else []))
            parent = len(nodes) - 1
        if turn["completion_token_ids"]:
            response = turn["response"].get("message") or {"content": about.get("response", "")}
            nodes.append(_sampled(parent, {"role": "assistant"} | response, turn))
            parent = len(nodes) - 1
        ends[about["sequence"]] = parent, len(turn["prompt_token_ids"]) + len(turn["completion_token_ids"])
    return nodes


def _node(parent: int | None, message: Row, tokens: list[int]) -> Row:
    mask = [False] * len(tokens)
    return {"parent": parent, "message": _message(message), "token_ids": tokens, "mask": mask}


def _sampled(parent: int | None, message: Row, turn: Row) -> Row:
    node = _node(parent, message, turn["completion_token_ids"])
    mask = [bool(entry) for entry in turn["loss_mask"][len(turn["prompt_token_ids"]) :]]
    pairs = zip(turn["per_token_logps"] or [], mask, strict=False)
    logprobs = [logprob for logprob, is_trained in pairs if is_trained]
    return node | {"sampled": True, "mask": mask, "logprobs": logprobs}


def _message(message: Row) -> Row:
    """Convert a message of OpenAI's form."""
    role = message["role"] if message["role"] in ROLES else "user"
    converted: Row = {"role": role, "content": message.get("content") or ""}
    if role == "tool":
        converted["tool_call_id"] = message.get("tool_call_id") or ""
    if calls := message.get("tool_calls"):
        converted["tool_calls"] = [
            {"id": call.get("id") or "", **{name: call["function"][name] for name in ("name", "arguments")}}
            for call in calls
        ]
    return converted
