"""Protocol of the peers' scripts: `python -m benchmarks.peers.NAME SPECIFICATION`.

The specification is a JSON object: `operation`, `repetitions`, `scratch` (an empty folder), and by operation

    ingest  rows, writers, rows_a_commit, url (an empty PostgreSQL database)
    draw    rows (stored), size, order (fifo, newest, uniform, prioritized), max_staleness (or null),
            draws (of one repetition), url
    claims  rows, consumers, size (of one claim), url
    train   algorithm (grpo, dpo), model (its folder), vocabulary, rows, micro_batch_size, steps; device (cpu
            by default) and settings (of our trainer, if the peer supports them)
    addition  model (its folder), tasks, steps (at most), goal (mean reward), seed, start (seconds since 1970)

The answer is one line of JSON on stdout: `who`, `note`, and `repetitions` as in `benchmarks.peer.Answer`,
empty if the peer does not support the operation. Output of libraries goes to stderr.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from benchmarks import data

Specification = SimpleNamespace
Repetitions = list[dict[str, Any]]


class Unsupported(Exception):
    """The peer does not support the operation; the message gives the reason."""


def main(
    name: str,
    package: str,
    operations: dict[str, Callable[[Specification], Repetitions]],
) -> None:
    """Run the operation named on the command line and print the answer."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    specification = Specification(**json.loads(sys.argv[1]))
    try:
        if specification.operation not in operations:
            raise Unsupported(f"no operation {specification.operation}")
        repetitions, note = operations[specification.operation](specification), ""
    except Unsupported as reason:
        repetitions, note = [], f"unsupported: {reason}"
    answer = {"who": f"{name} {version(package)}", "repetitions": repetitions, "note": note}
    os.write(answer_to, (json.dumps(answer) + "\n").encode())


def chunks(rows: list[data.Experience], size: int) -> list[list[data.Experience]]:
    """Split rows into commits."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def timed(draw: Callable[[], Any], draws: int) -> dict[str, Any]:
    """Time draws after a warm-up. Return one repetition."""
    draw()
    latencies = []
    for _ in range(draws):
        start = time.perf_counter()
        draw()
        latencies.append(time.perf_counter() - start)
    return {"latencies": latencies}


def claimed(seconds: float, rows: int, keys: Iterable[Any]) -> dict[str, Any]:
    """Return one repetition of claims with the numbers of doubled and lost rows."""
    counts = Counter(keys)
    twice = sum(count - 1 for count in counts.values())
    return {"seconds": seconds, "rows": rows, "duplicates": twice, "lost": rows - len(counts)}


def each_part(specification: Specification) -> list[tuple[int, int]]:
    """Return the number of rows and the first group of each writer."""
    share = specification.rows // specification.writers
    return [(share, writer * share // data.GROUP_SIZE) for writer in range(specification.writers)]
