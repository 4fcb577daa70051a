"""verifiers: episodes, whose traces are graphs of messages with tokens. prime-rl writes them too.

A line is a record of `Episode` or `Trace` (verifiers/v1/episode.py and trace.py). A node of a trace is a
message, with the tokens that it adds to those of its ancestors; `mask` is true for sampled tokens. A path
from a root to a leaf is a context that the policy saw. Each sampled node becomes a turn, and turns on one
path become one sequence, so that no token is trained twice although paths share nodes.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from trinity_db.data.formats.attempts import parted
from trinity_db.data.records.records import Kind, Unfit
from trinity_db.data.traces.trace_turn import OURS, is_number

Row = dict[str, Any]

KINDS: tuple[Kind, ...] = ("traces", "trajectories")
UNREAD = ("metrics", "info", "stop_condition", "agent")
"""Parts of a trace that are kept in `extra`."""
ASKED = ("prompt", "system_prompt")
"""Fields of a task that its first messages contain."""
CALLED = ("name", "arguments")


def recognises(row: Row) -> bool:
    """Whether a row is an episode or a trace."""
    return isinstance(row.get("task"), dict) and isinstance(row.get("traces", row.get("nodes")), list)


def read(row: Row, kind: Kind) -> Iterator[Row]:
    """Yield the attempts of the agents that are trained.

    Raises:
        Unfit: if the episode failed, has no such attempt, or is not what verifiers writes.
    """
    if not recognises(row):
        raise Unfit("has no 'task' with 'traces' or 'nodes', as an episode or a trace of verifiers has")
    traces = _objects(row, "traces") if "traces" in row else [row]
    trained = [trace for trace in traces if _object(trace, "agent").get("trainable", True)]
    if not trained:
        raise Unfit("has no trace of an agent that is trained")
    for part in (row, *trained):
        if not part.get("ok"):
            raise Unfit(f"the episode failed: {_error(part)}")
    for trace in trained:
        yield _Attempt(row, trace).row(kind)


class _Attempt:
    """A trace of an episode."""

    def __init__(self, episode: Row, trace: Row) -> None:
        self._episode, self._trace = episode, trace
        self._nodes = [_checked(node, number) for number, node in enumerate(_objects(trace, "nodes"))]

    def row(self, kind: Kind) -> Row:
        """Return the attempt with our columns."""
        row = self._turns() if kind == "traces" else self._conversation()
        rewards = [reward for reward in self._rewards().values() if reward is not None]
        if rewards:
            row["reward"] = sum(reward["score"] * reward.get("weight", 1.0) for reward in rewards)
        return row | {"extra": {"verifiers": self._unread()}}

    def _conversation(self) -> Row:
        """Return the messages of the last branch, as verifiers does for `Trace.messages`."""
        if not self._nodes:
            raise Unfit("'nodes' is empty")
        leaf = max(_leaves(self._nodes))
        before, after = parted([self._nodes[number]["message"] for number in _path(self._nodes, leaf)])
        return {"prompt": before, "response": after}

    def _turns(self) -> Row:
        turns: list[Row] = []
        ends: list[int] = []  # of each sequence, its last node
        for number in sorted(_trainable(self._nodes)):
            if not any(self._nodes[number]["mask"]):
                continue
            path = _path(self._nodes, number)
            places = [path.index(end) if end in path else -1 for end in ends]
            sequence = places.index(max(places)) if max(places, default=-1) >= 0 else len(ends)
            begin = 0 if sequence == len(ends) else places[sequence] + 1
            ends[sequence : sequence + 1] = [number]
            turns.append(self._turn(path, begin) | {"metadata": {OURS: {"sequence": sequence}}})
        if not turns:
            raise Unfit("has no sampled tokens; import it --as trajectories to have its messages")
        turns[0]["metadata"][OURS] |= self._about(turns[0]["request"]["messages"])
        return {"turns": turns}

    def _turn(self, path: Sequence[int], begin: int) -> Row:
        """Return the turn of the last node of a path, with the messages from `begin` on."""
        *before, node = (self._nodes[number] for number in path)
        start = node["mask"].index(True)
        prompt = [token for earlier in before for token in earlier["token_ids"]] + node["token_ids"][:start]
        mask, logprobs = node["mask"][start:], iter(node["logprobs"])
        return {
            "node_id": str(path[-1]),
            "prompt_token_ids": prompt,
            "completion_token_ids": node["token_ids"][start:],
            "per_token_logps": [next(logprobs) if sampled else 0.0 for sampled in mask]
            if node["logprobs"]
            else None,
            "loss_mask": [0] * len(prompt) + [int(sampled) for sampled in mask],
            "request": {"messages": [self._nodes[number]["message"] for number in path[begin:-1]]},
            "response": {"message": node["message"]},
        }

    def _about(self, messages: list[Row]) -> Row:
        """Return what the first turn tells of the attempt: its task, name, model, and rewards by name."""
        data = _object(_object(self._trace if "task" in self._trace else self._episode, "task"), "data")
        about = {name: value for name, value in data.items() if value and name not in ASKED}
        if group := _object(self._episode, "group").get("id"):
            about["group"] = group  # the attempts of each group are compared, not all at the task
        models = [call["model"] for call in _objects(self._trace, "calls") if call.get("model")]
        rewards = {name: reward["score"] for name, reward in self._rewards().items() if reward is not None}
        optional = {"attempt": self._trace.get("id"), "model": models[-1] if models else None}
        present = {name: value for name, value in optional.items() if value is not None}
        return {"task": about | {"messages": messages}, "rewards": rewards, **present}

    def _rewards(self) -> Row:
        rewards = _object(self._trace, "rewards")
        for name, reward in rewards.items():
            numbers = (
                ()
                if reward is None
                else (_object(rewards, name).get(key, 1.0) for key in ("score", "weight"))
            )
            if not all(is_number(number) for number in numbers):
                raise Unfit("'rewards' must have a 'score' and a 'weight' for each name")
        return rewards

    def _unread(self) -> Row:
        episode = {
            name: value for name in ("id", "env", "group", "run") if (value := self._episode.get(name))
        }
        unread = {name: self._trace.get(name) for name in UNREAD}
        unread |= {"rewards": self._rewards(), "episode": episode}
        return {name: value for name, value in unread.items() if value}


def _object(row: Row, name: str) -> Row:
    value = row.get(name)
    if not isinstance(value, dict | None):
        raise Unfit(f"'{name}' must be an object")
    return value or {}


def _objects(row: Row, name: str) -> list[Row]:
    value = row.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Unfit(f"'{name}' must be a list of objects")
    return value


def _checked(node: Row, number: int) -> Row:
    """Return a node with all keys that are read.

    Raises:
        Unfit: if its lists do not match, or it follows no earlier node.
    """
    parent = node.get("parent")
    if parent is not None and not (type(parent) is int and 0 <= parent < number):
        raise Unfit("'parent' of a node must be the number of an earlier node")
    lists = {name: node.get(name) or [] for name in ("token_ids", "mask", "logprobs")}
    if not all(isinstance(values, list) for values in lists.values()):
        raise Unfit("'token_ids', 'mask' and 'logprobs' of a node must be lists")
    tokens, mask, logprobs = lists.values()
    if len(mask) != len(tokens) or not all(type(sampled) is bool for sampled in mask):
        raise Unfit("'mask' of a node must have true or false for each of its 'token_ids'")
    if logprobs and len(logprobs) != sum(mask):
        raise Unfit("'logprobs' of a node must have one number for each true entry of its 'mask'")
    links = _objects(node, "semantic_parents")
    return {"parent": parent, "message": _message(_object(node, "message")), "links": links, **lists}


def _trainable(nodes: Sequence[Row]) -> set[int]:
    """Return the nodes of branches that are trained: not those of a compaction that its harness gave up."""
    accepted = [
        link.get("node") for node in nodes for link in node["links"] if link.get("type") == "compaction"
    ]
    return {
        number
        for leaf in _leaves(nodes)
        if leaf in accepted or all(link.get("type") != "compaction_attempt" for link in nodes[leaf]["links"])
        for number in _path(nodes, leaf)
    }


def _leaves(nodes: Sequence[Row]) -> set[int]:
    return set(range(len(nodes))) - {node["parent"] for node in nodes}


def _path(nodes: Sequence[Row], number: int | None) -> list[int]:
    """Return the nodes from the root to this one."""
    path = []
    while number is not None:
        path.append(number)
        number = nodes[number]["parent"]
    return path[::-1]


def _message(message: Row) -> Row:
    """Return a message in OpenAI's form."""
    message = {
        name: value for name, value in message.items() if value is not None and name != "provider_state"
    }
    if "tool_calls" in message:
        message["tool_calls"] = [
            {"id": call.get("id"), "type": "function", "function": {name: call.get(name) for name in CALLED}}
            for call in _objects(message, "tool_calls")
        ]
    return message


def _error(part: Row) -> str:
    errors = _objects(part, "errors")
    return str((errors[-1].get("message") if errors else None) or part.get("stop_condition") or "not ok")[
        :200
    ]
