"""Lives of one command, each killed at the first point at which none was killed before.

    python tests/chaos/crash_at.py train CONFIG             until a life ends by itself
    python tests/chaos/crash_at.py --undisturbed train CONFIG   one life; the points it passes

A point is just before a named query, just before or after the COMMIT of a transaction, or just before a
change to a file (an open to write, a flush, a rename, a removal); all of the main thread, of those that
write a version and a checkpoint, and of the one that converts older versions to deltas. Each is where it is
in our code: `Publisher._record: publish_version`. Points are not listed anywhere: they are met. A life is a
forked process, so that torch is imported once; it dies by SIGKILL. For each it writes a line of JSON.
"""

import importlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from trinity_db import cli
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import queries, query

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Where a point is: the function that calls these.
CALLED: tuple[str, ...] = (
    "trinity_db.store.",
    "trinity_db.postgres.connection",
    "trinity_db.io.durable",
    "trinity_db.trainer.checkpoints.checkpoint",
    "trinity_db.trainer.checkpoints.folder",
    "trinity_db.trainer.checkpoints.version",
    "trinity_db.trainer.checkpoints.writing",
    "trinity_db.trainer.checkpoints.trainer_lock",
    "trinity_db.models",
    "trinity_db.weights",
)
WRITERS = ("publish", "checkpoint", "deltas")  # the threads beside the main one whose points count
FILE_EVENTS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}

Reach = Callable[[str], None]


def main() -> None:
    undisturbed = sys.argv[1] == "--undisturbed"
    arguments = sys.argv[2 if undisturbed else 1 :]
    sys.dont_write_bytecode = True
    _import_what_lives_need()
    seen: set[str] = set()
    while True:
        life = live(arguments, None if undisturbed else seen)
        print(json.dumps(life), flush=True)
        seen.update(life["points"])
        if life["code"] != -signal.SIGKILL:
            sys.exit(life["code"])


def live(arguments: list[str], survived: set[str] | None) -> dict[str, Any]:
    """One life: its exit code, and the points it passed, the last of them the one at which it died.

    Args:
        survived: points at which it is not killed any more; None: it is not killed at all.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        watch(_reach(writing, survived))
        os._exit(_run(arguments))
    os.close(writing)
    with os.fdopen(reading) as file:
        points = file.read().splitlines()
    return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "points": points}


def _run(arguments: list[str]) -> int:
    """The command, in this process; its exit code."""
    sys.argv = ["trinity-db", *arguments]
    try:
        cli.main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr, flush=True)
            return 1
        return ended.code or 0
    return 0


def _reach(journal: int, survived: set[str] | None) -> Reach:
    passed: set[str] = set()
    one_at_a_time = threading.Lock()  # so that no thread notes a point after the one at which the life ends

    def reach(point: str) -> None:
        thread = threading.current_thread()
        if thread is not threading.main_thread() and thread.name not in WRITERS:
            return
        with one_at_a_time:
            if point in passed:
                return
            passed.add(point)
            os.write(journal, f"{point}\n".encode())
            if survived is not None and point not in survived:
                os.kill(os.getpid(), signal.SIGKILL)

    return reach


def watch(reach: Reach) -> None:
    """Report the points that this process comes to."""
    names = {query(name): name for name in queries()}
    last: WeakKeyDictionary[Transaction, str] = WeakKeyDictionary()  # query of a connection
    execute, transaction, fsync = psycopg.Connection.execute, Database.transaction, os.fsync

    def watched_execute(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(query, str) and names.get(query) == "announce":  # the first statement after a COMMIT
            reach(f"{place()}: {last.get(self)}, after COMMIT")
        elif isinstance(query, str) and query in names:
            reach(f"{place()}: {names[query]}")
            last[self] = names[query]
        return execute(self, query, *arguments, **options)

    @contextmanager
    def watched_transaction(self: Database, *arguments: Any, **options: Any) -> Iterator[Transaction]:
        where = place()
        with transaction(self, *arguments, **options) as tx:
            yield tx
            reach(f"{where}: {last.get(tx)}, before COMMIT")
        reach(f"{where}: {last.get(tx)}, after COMMIT")

    def watched_fsync(descriptor: Any) -> None:
        reach(f"{place()}: fsync {name(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def audit(event: str, values: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS:
            reach(f"{place()}: {event}")
        elif event == "open" and isinstance(values[0], str) and values[2] & WRITING:
            reach(f"{place()}: open {name(values[0])}")

    psycopg.Connection.execute = watched_execute  # type: ignore[method-assign]
    Database.transaction = watched_transaction  # type: ignore[method-assign]
    os.fsync = watched_fsync  # type: ignore[assignment]
    sys.addaudithook(audit)


def place() -> str:
    """The innermost function of ours that is running, of those that call the store or the disk."""
    frame: FrameType | None = sys._getframe(1)
    thread = threading.current_thread().name
    if thread in WRITERS and thread != "deltas":  # which does several things that only functions tell apart
        return thread
    while frame is not None:
        module = frame.f_globals["__name__"]
        if module.startswith("trinity_db.") and not module.startswith(CALLED):
            return frame.f_code.co_qualname.replace(".<locals>", "")
        frame = frame.f_back
    return "elsewhere"


def name(path: str) -> str:
    """A file's name without what differs from version to version, or from write to write."""
    written = re.sub(r"\.[0-9a-f]{8}\.tmp$", ".tmp", Path(path).name)
    return re.sub(r"^(version|checkpoint)-.*", r"\1", written)


def _import_what_lives_need() -> None:
    """Everything slow, and nothing that starts a thread, since a fork keeps only one."""
    for module in ("trainer.service", "processors.steps.rewards"):
        importlib.import_module(f"trinity_db.{module}")
    for module in ("modeling_qwen2", "tokenization_qwen2"):
        importlib.import_module(f"transformers.models.qwen2.{module}")
    assert threading.active_count() == 1


if __name__ == "__main__":
    main()
