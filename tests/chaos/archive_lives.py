"""Lives of `process`, killed at what the archiver does; after each, every payload is read.

    python tests/chaos/archive_lives.py process CONFIG              as crash_at.py, and around Lance's work
    python tests/chaos/archive_lives.py --within N process CONFIG   N lives, killed in the midst of it

Few rows fit an append and few files are merged, so that a small run comes to everything. To the line of each
life it adds a digest of all payloads as a reader found them, and how many.
"""

import hashlib
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos import crash_at
from trinity_db.arrays import archive
from trinity_db.arrays.codec import encode
from trinity_db.postgres.opening import open_database
from trinity_db.processors.jobs import archive as processor
from trinity_db.store import payloads

MAX_ROWS, MERGE_FILES = 4, 3
CHANGES = ("add", "delete", "optimize")  # what of Lance changes files
CALLS = 6  # one of the first is a life's last, so that it leaves something to those that follow
LONGEST_SECONDS = 0.03  # most of these calls are over after that


def main() -> None:
    processor.MAX_ROWS, archive.MERGE_FILES = MAX_ROWS, MERGE_FILES
    crash_at.CALLED = (*crash_at.CALLED, "trinity_db.arrays.archive")
    live, watch = crash_at.live, crash_at.watch

    def live_and_look(arguments: list[str], survived: set[str] | None) -> dict[str, Any]:
        return {**live(arguments, survived), **json.loads(_in_a_child(_look))}

    def watch_lance_too(reach: crash_at.Reach) -> None:
        watch(reach)
        _around_lance(partial(_announced, reach))

    crash_at.live, crash_at.name = live_and_look, _name
    if sys.argv[1] != "--within":
        crash_at.watch = watch_lance_too
        crash_at.main()
    for number in range(int(sys.argv[2]) + 1):
        is_last = number == int(sys.argv[2])
        crash_at.watch = partial(_kill_within, None if is_last else random.Random(number))
        print(json.dumps(live_and_look(sys.argv[3:], None)), flush=True)


def _look() -> str:
    """What a reader finds."""
    with closing(open_database()) as database:
        with database.transaction() as tx:
            rows = tx.execute("SELECT experience_id FROM trinity.payload ORDER BY 1").fetchall()
        ids = [row["experience_id"] for row in rows]
        found = payloads.read(database, ids)
    digest = hashlib.sha256(b"".join(encode(found[id]) for id in ids)).hexdigest()
    return json.dumps({"digest": digest, "payloads": len(found)})


def _in_a_child(call: Callable[[], str]) -> str:
    """What a call returns in a process of its own: this one must not start what a fork would lose."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, call().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        result = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return result


def _around_lance(wrapped: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    from lancedb.db import LanceDBConnection
    from lancedb.table import LanceTable

    for owner, names in ((LanceTable, CHANGES), (LanceDBConnection, ("create_table",))):
        for name in names:
            setattr(owner, name, wrapped(name, getattr(owner, name)))


def _announced(reach: crash_at.Reach, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def announced(*arguments: Any, **options: Any) -> Any:
        reach(f"{crash_at.place()}: before Lance's {name}")
        result = call(*arguments, **options)
        reach(f"{crash_at.place()}: after Lance's {name}")
        return result

    return announced


def _kill_within(chance: random.Random | None, reach: crash_at.Reach) -> None:
    """Die a short while after one of the calls has begun; without a chance, not at all."""
    if chance is None:
        return
    left, seconds = [chance.randrange(CALLS)], chance.uniform(0, LONGEST_SECONDS)

    def die() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def doomed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_or_die(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                threading.Thread(target=die, daemon=True).start()
            left[0] -= 1
            return call(*arguments, **options)

        return call_or_die

    _around_lance(doomed)


def _name(path: str) -> str:
    """A file's or folder's name without what Lance makes up."""
    return re.sub(r"[0-9a-f-]*\d[0-9a-f-]*", "#", Path(path).name)


if __name__ == "__main__":
    main()
