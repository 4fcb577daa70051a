"""Which tasks come next: a run walks over each of its tasksets in passes.

A row of task_pass says how far it is. The explorer calls `choose` under the lock of its run, in the
transaction that starts the groups. So explorers share one walk, and a run that is resumed goes on exactly
here. A claim looks at a few tasks for each group, however many the taskset has.
"""

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from trinity_db.database import Transaction
from trinity_db.errors import WrongSelect
from trinity_db.schema.queries import query
from trinity_db.store.own_select import OwnSelect, answer, within

Walk = Literal["shuffled", "sequential", "easy_to_hard"]

ROUNDS = 4  # of a shuffle
WINDOWS = (
    16,
    16_384,
)  # places that are looked at together: at first, and at most, as where tasks were deleted
NEAR = 0.2  # a task whose chance to be solved lies so far from the target is taken 37 % of the times
CERTAIN = 2.0  # standard deviations within which the chance to be solved is taken to lie
FLOOR = 0.05  # of the times a task is taken however far it is from the target: the policy changes


@dataclass(frozen=True)
class Selection:
    """Which tasks come next."""

    weights: Mapping[int, float]
    """The run's tasksets, and the share of the groups that each gets, relative to the others."""
    seed: int
    walk: Walk = "shuffled"
    target: float | None = None
    """Tasks whose chance to be solved is near it are taken each time that the walk comes to them, others more
    seldom. None: all are."""
    own: OwnSelect | None = None
    """In place of a walk: it yields ids of tasks. Other explorers of the run wait meanwhile."""


@dataclass(frozen=True)
class Pass:
    """Where a run is in a taskset. The columns of task_pass explain themselves."""

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
        """How many places the stretch has. A shuffle has one for each number of as many bits."""
        return 1 << (self.size - 1).bit_length() if self.walk == "shuffled" and self.size else self.size

    def onward(self, count: int) -> "Pass":
        """The stretch of tasks that were imported since the pass began, or else the next pass."""
        done = self.first + self.size
        if self.walk != "easy_to_hard" and done < count:
            return replace(self, first=done, size=count - done, position=0)
        return replace(self, number=self.number + 1, first=0, size=count, position=0, level=None)


def choose(tx: Transaction, run_id: int, selection: Selection, limit: int) -> list[int]:
    """The tasks of the next `limit` groups; fewer where there are none, or a user's SELECT yields fewer.

    Raises:
        WrongSelect: the user's SELECT fails, or yields what is no task of the run.
        TrinityError: it takes too long.
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
    """The tasksets of the next `limit` groups: each has its share of all groups, but for part of one.

    The taskset comes next that is farthest behind, by the method of Sainte-Laguë; ties go by id.
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
    """Where the run is, by a row of read_passes. With another walk, or none yet, it begins a pass."""
    if row["walk"] == walk:
        return Pass(**{name: row[name] for name in Pass.__dataclass_fields__})
    taskset_id, number, issued = row["taskset_id"], 0, row["issued"]
    if row["walk"] is not None:
        number = row["number"] + 1
    else:
        counted = tx.execute(query("count_issued"), {"run_id": run_id, "taskset_id": taskset_id}).fetchone()
        assert counted is not None
        issued = counted["issued"]
    return Pass(taskset_id, issued, walk, number, 0, row["count"], 0, None)


def _save(tx: Transaction, run_id: int, at: Pass) -> None:
    tx.execute(query("save_pass"), {"run_id": run_id, **asdict(at)})


def _walk(
    tx: Transaction, run_id: int, selection: Selection, at: Pass, count: int, wanted: int
) -> tuple[list[int], Pass]:
    """As many tasks from where the run is, and where it is then. There must be one task at least."""
    found: list[int] = []
    window, widest = WINDOWS
    while True:
        missing = wanted - len(found)
        if at.walk == "easy_to_hard":
            tasks, at = _harder(tx, at, missing)
        else:
            tasks, at = _at_places(tx, run_id, selection, at, missing, max(window, 2 * missing))
        found += tasks
        if len(found) == wanted:
            return found, at
        if at.walk == "easy_to_hard" or at.position >= at.places:
            at = at.onward(count)
        window = min(2 * window, widest)


def _harder(tx: Transaction, at: Pass, wanted: int) -> tuple[list[int], Pass]:
    """The next tasks by level; fewer at the end of a pass."""
    rows = tx.execute(query("harder_tasks"), {**asdict(at), "limit": wanted}).fetchall()
    if rows:
        at = replace(at, position=rows[-1]["ordinal"] + 1, level=rows[-1]["level"])
    return [row["id"] for row in rows], at


def _at_places(
    tx: Transaction, run_id: int, selection: Selection, at: Pass, wanted: int, window: int
) -> tuple[list[int], Pass]:
    """The tasks that are taken of those at the next places, up to as many as are wanted."""
    places = range(at.position, min(at.position + window, at.places))
    ordinals = _ordinals(at, places, selection.seed)
    values = {
        "run_id": run_id,
        "taskset_id": at.taskset_id,
        "positions": list(ordinals),
        "ordinals": list(ordinals.values()),
    }
    found = []
    for row in tx.execute(query("tasks_at"), values).fetchall():
        if selection.target is not None:
            chance = chance_to_be_taken(row["alpha"], row["beta"], selection.target)
            if _draw(f"{selection.seed}/{at.number}/{row['id']}") >= chance:
                continue
        found.append(row["id"])
        if len(found) == wanted:
            return found, replace(at, position=row["place"] + 1)
    return found, replace(at, position=places.stop)


def _ordinals(at: Pass, places: Sequence[int], seed: int) -> dict[int, int]:
    """Place → task.ordinal, for those of the places that have one."""
    if at.walk == "sequential":
        return {place: at.first + place for place in places}
    numbers = shuffled(places, at.places, f"{seed}/{at.taskset_id}/{at.number}/{at.first}")
    return {place: at.first + n for place, n in zip(places, numbers, strict=True) if n < at.size}


def shuffled(places: Sequence[int], size: int, key: str) -> list[int]:
    """Where a shuffle of the numbers below `size`, a power of two, has these places. No number comes twice.

    Each round multiplies by an odd number, adds, and mixes the upper bits into the lower ones. Each of these
    can be undone, so two places never meet.
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
    """How often a walk takes a task, given the Beta posterior of the chance to solve it; from FLOOR to 1.

    It falls with the distance of the target from the likely chances. A task that was rarely attempted has a
    wide range of likely chances, so it is taken each time.
    """
    total = alpha + beta
    mean = alpha / total
    deviation = math.sqrt(mean * (1 - mean) / (total + 1))
    distance = max(0.0, abs(mean - target) - CERTAIN * deviation)
    return max(FLOOR, math.exp(-((distance / NEAR) ** 2)))


def _draw(key: str) -> float:
    """A number from 0 to 1 by chance, the same at each call."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64


def _ask(
    tx: Transaction, run_id: int, selection: Selection, own: OwnSelect, limit: int
) -> list[tuple[int, int]]:
    """The first tasks that a user's SELECT yields, each with its taskset."""
    values = {"run_id": run_id, "taskset_ids": list(selection.weights), "limit": limit}
    statement = f"SELECT chosen.* FROM {within(own.text)} AS chosen LIMIT %(limit)s"
    rows = answer(tx, own, statement, values).rows
    ids = [row[0] for row in rows if len(row) == 1 and type(row[0]) is int]  # True is an int too
    if len(ids) < len(rows):
        raise WrongSelect(
            "explorer.tasks: the SELECT must yield ids of tasks, one whole number a row, and yields "
            f"{rows[0]!r:.100}"
        )
    found = {row["id"]: row["taskset_id"] for row in tx.execute(query("tasksets_of"), {"task_ids": ids})}
    strange = [task_id for task_id in ids if found.get(task_id) not in selection.weights]
    if strange:
        raise WrongSelect(
            f"explorer.tasks: the SELECT yields {strange[0]}, which is no task of the run's taskset."
        )
    return [(task_id, found[task_id]) for task_id in ids]
