"""How a peer's script is asked, and answers: `python -m benchmarks.peers.NAME SPECIFICATION`.

The specification is a JSON object: `operation`, `repetitions`, `scratch` (an empty folder), and by operation

    ingest  rows, writers, rows_a_commit, url (an empty PostgreSQL database)
    draw    rows (stored), size, order (fifo, newest, uniform, prioritized), max_staleness (or null),
            draws (of one repetition), url
    claims  rows, consumers, size (of one claim), url
    loop    rows (tasks), runners, turns (spans a task), size (of a collected batch)
    train   algorithm (grpo, dpo), model (its folder), vocabulary, rows, micro_batch_size, steps; device (cpu
            if it is not named) and settings (of our trainer; those that a peer has are set in it too)
    addition  model (its folder), tasks, steps (at most), goal (mean reward), seed, start (seconds since 1970)

The answer is one line of JSON on stdout: `who`, `note`, and `repetitions` as `benchmarks.peer.Answer` says,
empty where the peer cannot do it. Whatever libraries print goes to stderr.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from types import MappingProxyType, SimpleNamespace
from typing import Any

from benchmarks import data

Specification = SimpleNamespace
Repetitions = list[dict[str, Any]]


class Unsupported(Exception):
    """The peer has no way to do this; the message says why."""


def main(
    name: str,
    package: str,
    operations: dict[str, Callable[[Specification], Repetitions]],
    note: str,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Do what the command line asks, and answer; with a note for all operations and one for some."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    asked = Specification(**json.loads(sys.argv[1]))
    try:
        if asked.operation not in operations:
            raise Unsupported(f"has no {asked.operation}")
        repetitions = operations[asked.operation](asked)
        note = "; ".join(filter(None, (note, notes.get(asked.operation))))
    except Unsupported as reason:
        repetitions, note = [], f"cannot: {reason}"
    answer = {"who": f"{name} {version(package)}", "repetitions": repetitions, "note": note}
    os.write(answer_to, (json.dumps(answer) + "\n").encode())


def chunks(rows: list[data.Experience], size: int) -> list[list[data.Experience]]:
    """Rows in the portions in which they are written."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def raw_bytes(rows: Iterable[data.Experience]) -> int:
    return sum(row.raw_bytes for row in rows)


def written(seconds: float, rows: list[data.Experience]) -> dict[str, Any]:
    """One repetition of ingest."""
    return {"seconds": seconds, "rows": len(rows), "bytes": raw_bytes(rows)}


def timed(draw: Callable[[], Any], draws: int) -> dict[str, Any]:
    """One repetition of draws, in seconds each; one before them is not counted."""
    draw()
    latencies = []
    for _ in range(draws):
        start = time.perf_counter()
        draw()
        latencies.append(time.perf_counter() - start)
    return {"latencies": latencies}


def claimed(seconds: float, rows: int, keys: Iterable[Any]) -> dict[str, Any]:
    """One repetition of claims: how many rows came twice, and how many never."""
    counts = Counter(keys)
    twice = sum(count - 1 for count in counts.values())
    return {"seconds": seconds, "rows": rows, "duplicates": twice, "lost": rows - len(counts)}


def each_part(specification: Specification) -> list[tuple[int, int]]:
    """For each writer the rows it writes and the first of its groups."""
    share = specification.rows // specification.writers
    return [(share, writer * share // data.GROUP_SIZE) for writer in range(specification.writers)]


def all_parts(specification: Specification) -> list[data.Experience]:
    return data.rows(specification.rows)
