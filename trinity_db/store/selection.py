"""Choose the next tasks: a run walks over each of its tasksets in passes.

A row of task_pass holds the position. The explorer calls `choose` under its run's lock, in the transaction
that starts the groups, so explorers share one walk, and a resumed run continues at the exact position. A
claim reads a few tasks per group, whatever the size of the taskset.
"""

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from trinity_db.errors import WrongSelect
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.store.user_query import OwnSelect, answer, within

Walk = Literal["shuffled", "sequential", "easy_to_hard"]

ROUNDS = 4  # rounds of a shuffle
WINDOWS = (
    16,
    16_384,
)  # places read together: initially, and at most (for example after deletions of tasks)
NEAR = 0.2  # a task at this distance from the target success rate is taken 37 % of the time
CERTAIN = 2.0  # assumed range of a task's success rate, in standard deviations
FLOOR = 0.05  # minimum rate at which any task is taken, since the policy changes


@dataclass(frozen=True)
class TaskSelection:
    """How the next tasks are chosen."""

    weights: Mapping[int, float]
    """The run's tasksets, with the relative share of groups for each."""
    seed: int
    walk: Walk = "shuffled"
    target: float | None = None
    """Target success rate: tasks near it are taken each time the walk reaches them, others more rarely. None:
    all are taken."""
    own: OwnSelect | None = None
    """SELECT that returns task ids, in place of a walk. The run's other explorers wait meanwhile."""


@dataclass(frozen=True)
class Pass:
    """Position of a run in a taskset; see the columns of task_pass."""

    taskset_id: int
    issued: int
    walk: Walk
    number: int
    first: int
    size: int
    position: int
    level: float | None

    @property
    def places(self) -> int:
        """Number of places in the stretch; for a shuffle, the next power of two."""
        return 1 << (self.size - 1).bit_length() if self.walk == "shuffled" and self.size else self.size

    def onward(self, count: int) -> "Pass":
        """Return the stretch of tasks imported since the pass began, or else the next pass."""
        done = self.first + self.size
        if self.walk != "easy_to_hard" and done < count:
            return replace(self, first=done, size=count - done, position=0)
        return replace(self, number=self.number + 1, first=0, size=count, position=0, level=None)


def choose(tx: Transaction, run_id: int, selection: TaskSelection, limit: int) -> list[int]:
    """Choose the tasks of the next `limit` groups; fewer if there are none, or a user's SELECT returns fewer.

    Raises:
        WrongSelect: if the user's SELECT fails, or returns anything but tasks of the run.
        TrinityError: if it exceeds its time limit.
    """
    read = {"run_id": run_id, "taskset_ids": list(selection.weights)}
    rows = tx.execute(query("read_passes"), read).fetchall()
    counts = {row["taskset_id"]: row["count"] for row in rows}
    passes = {row["taskset_id"]: _opened(tx, run_id, row, selection.walk) for row in rows}
    if selection.own is not None:
        chosen = _ask(tx, run_id, selection, selection.own, limit)
        for taskset_id, number in Counter(taskset_id for _, taskset_id in chosen).items():
            at = passes[taskset_id]
            _save(tx, run_id, replace(at, issued=at.issued + number))
        return [task_id for task_id, _ in chosen]
    weights = {taskset_id: weight for taskset_id, weight in selection.weights.items() if counts[taskset_id]}
    turns = take_turns(weights, {key: at.issued for key, at in passes.items()}, limit)
    walked = {}
    for taskset_id, number in Counter(turns).items():
        tasks, at = _walk(tx, run_id, selection, passes[taskset_id], counts[taskset_id], number)
        walked[taskset_id] = iter(tasks)
        _save(tx, run_id, replace(at, issued=at.issued + number))
    return [next(walked[taskset_id]) for taskset_id in turns]


def take_turns(weights: Mapping[int, float], issued: Mapping[int, int], limit: int) -> list[int]:
    """Choose the tasksets of the next `limit` groups, so that each has its share of all groups, within one.

    The taskset furthest behind comes next, by the Sainte-Laguë method; ties go by id.
    """
    queue = [((issued[key] + 0.5) / weight, key) for key, weight in weights.items()]
    heapq.heapify(queue)
    counted = dict(issued)
    turns: list[int] = []
    while queue and len(turns) < limit:
        key = queue[0][1]
        counted[key] += 1
        turns.append(key)
        heapq.heapreplace(queue, ((counted[key] + 0.5) / weights[key], key))
    return turns


def _opened(tx: Transaction, run_id: int, row: Mapping[str, Any], walk: Walk) -> Pass:
    """Build the position from a row of read_passes; with another walk, or without a row, begin a pass."""
    if row["walk"] == walk:
        return Pass(**{name: row[name] for name in Pass.__dataclass_fields__})
    number = 0 if row["walk"] is None else row["number"] + 1
    return Pass(row["taskset_id"], row["issued"] or 0, walk, number, 0, row["count"], 0, None)


def _save(tx: Transaction, run_id: int, at: Pass) -> None:
    tx.execute(query("save_pass"), {"run_id": run_id, **asdict(at)})


def _walk(
    tx: Transaction, run_id: int, selection: TaskSelection, at: Pass, count: int, wanted: int
) -> tuple[list[int], Pass]:
    """Take the given number of tasks and return the new position. There must be at least one task."""
    taken: list[int] = []
    window, widest = WINDOWS
    while True:
        missing = wanted - len(taken)
        if at.walk == "easy_to_hard":
            tasks, at = _harder(tx, at, missing)
        else:
            tasks, at = _at_places(tx, run_id, selection, at, missing, max(window, 2 * missing))
        taken += tasks
        if len(taken) == wanted:
            return taken, at
        if at.walk == "easy_to_hard" or at.position >= at.places:
            at = at.onward(count)
        window = min(2 * window, widest)


def _harder(tx: Transaction, at: Pass, wanted: int) -> tuple[list[int], Pass]:
    """Take the next tasks by level; fewer at the end of a pass."""
    rows = tx.execute(query("harder_tasks"), {**asdict(at), "limit": wanted}).fetchall()
    if rows:
        at = replace(at, position=rows[-1]["ordinal"] + 1, level=rows[-1]["level"])
    return [row["id"] for row in rows], at


def _at_places(
    tx: Transaction, run_id: int, selection: TaskSelection, at: Pass, wanted: int, window: int
) -> tuple[list[int], Pass]:
    """Take tasks at the next places, up to the given number."""
    places = range(at.position, min(at.position + window, at.places))
    ordinals = _ordinals(at, places, selection.seed)
    values = {
        "run_id": run_id,
        "taskset_id": at.taskset_id,
        "positions": list(ordinals),
        "ordinals": list(ordinals.values()),
    }
    taken = []
    for row in tx.execute(query("tasks_at"), values).fetchall():
        if selection.target is not None:
            chance = chance_to_be_taken(row["alpha"], row["beta"], selection.target)
            if _draw(f"{selection.seed}/{at.number}/{row['id']}") >= chance:
                continue
        taken.append(row["id"])
        if len(taken) == wanted:
            return taken, replace(at, position=row["place"] + 1)
    return taken, replace(at, position=places.stop)


def _ordinals(at: Pass, places: Sequence[int], seed: int) -> dict[int, int]:
    """Map places to task.ordinal, for places that have a task."""
    if at.walk == "sequential":
        return {position: at.first + position for position in places}
    numbers = shuffled(places, at.places, f"{seed}/{at.taskset_id}/{at.number}/{at.first}")
    return {position: at.first + n for position, n in zip(places, numbers, strict=True) if n < at.size}


def shuffled(places: Sequence[int], size: int, key: str) -> list[int]:
    """Map places through a shuffle of the numbers below `size`, a power of two. No number occurs twice.

    Each round multiplies by an odd number, adds, and mixes the upper bits into the lower ones. Each of these
    operations is invertible, so two places never collide.
    """
    digest = hashlib.blake2b(key.encode()).digest()
    words = [int.from_bytes(digest[start : start + 8], "big") for start in range(0, 16 * ROUNDS, 8)]
    shift = max(1, (size.bit_length() - 1) // 2)
    numbers = list(places)
    for factor, summand in zip(words[::2], words[1::2], strict=True):
        mixed = ((number * (factor | 1) + summand) % size for number in numbers)
        numbers = [number ^ number >> shift for number in mixed]
    return numbers


def chance_to_be_taken(alpha: float, beta: float, target: float) -> float:
    """Rate at which a walk takes a task, given the Beta posterior of its success rate; from FLOOR to 1.

    It falls with the distance of the target from the likely success rates. A task with few attempts has a
    wide range of likely rates, so it is always taken.
    """
    total = alpha + beta
    mean = alpha / total
    deviation = math.sqrt(mean * (1 - mean) / (total + 1))
    distance = max(0.0, abs(mean - target) - CERTAIN * deviation)
    return max(FLOOR, math.exp(-((distance / NEAR) ** 2)))


def _draw(key: str) -> float:
    """Pseudo-random number from 0 to 1, determined by the key."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64


def _ask(
    tx: Transaction, run_id: int, selection: TaskSelection, own: OwnSelect, limit: int
) -> list[tuple[int, int]]:
    """Return the first tasks that a user's SELECT selects, each with its taskset."""
    values = {"run_id": run_id, "taskset_ids": list(selection.weights), "limit": limit}
    statement = f"SELECT chosen.* FROM {within(own.text)} AS chosen LIMIT %(limit)s"
    rows = answer(tx, own, statement, values).rows
    ids = [row[0] for row in rows if len(row) == 1 and type(row[0]) is int]  # True is an int too
    if len(ids) < len(rows):
        raise WrongSelect(
            "explorer.tasks: the SELECT must return ids of tasks, one whole number per row, and returns "
            f"{rows[0]!r:.100}"
        )
    tasksets = {row["id"]: row["taskset_id"] for row in tx.execute(query("tasksets_of"), {"task_ids": ids})}
    strange = [task_id for task_id in ids if tasksets.get(task_id) not in selection.weights]
    if strange:
        raise WrongSelect(
            f"explorer.tasks: the SELECT returns {strange[0]}, which is not a task of the run's taskset."
        )
    return [(task_id, tasksets[task_id]) for task_id in ids]
