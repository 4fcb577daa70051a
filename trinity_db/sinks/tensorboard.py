"""TensorBoard: event files, written so that what is read of the table twice stands there once.

What a file holds follows from the rows alone, and a file beside it says how much of it counts: what a process
that was killed wrote beyond that is cut off, and written again with the same bytes.

A step that was reopened and measured again has both numbers, under the same step with a later wall time.
TensorBoard shows the later one: its data server lets go of what it has of a step, and of those after it, when
one arrives again. With `--load_fast=false` it draws both.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.sinks.sink import label, require
from trinity_db.store.metrics import Measurement
from trinity_db.store.runs import Run

STATE_FILE = "trinity-db.json"
_NOTHING = {"last_id": 0, "size": 0}


class TensorBoard:
    """Event files of runs, each in a folder below `folder`.

    Raises:
        MissingExtra: tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "tensorboard")
        self._folder = folder.expanduser().absolute()
        self._events: BinaryIO | None = None
        self._state: Path
        self._run: Run

    def __str__(self) -> str:
        return f"TensorBoard ({self._folder})"

    def open(self, run: Run) -> int:
        """The folder as it is, or a new one. Only the process that has opened it may write there.

        Raises:
            ConfigError: another run of that name has its events there.
            TrinityError: another process writes there.
        """
        folder = self._folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        self._run, self._state = run, folder / STATE_FILE
        self._stored()  # before anything is changed
        # The word in the middle is how TensorBoard knows event files.
        self._events = (folder / f"events.out.tfevents.{int(run.created_at.timestamp())}.trinity-db").open(
            "ab"
        )
        try:
            fcntl.flock(self._events, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TrinityError(f"{folder}: another process writes its metrics there") from error
        state = self._stored()
        if self._events.seek(0, os.SEEK_END) < state["size"]:  # its end was lost
            state = _NOTHING
        self._events.truncate(state["size"])
        if not state["size"]:
            self._record(wall_time=run.created_at.timestamp(), file_version="brain.Event:2")
        return int(state["last_id"])

    def write(self, measured: Sequence[Measurement]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        assert self._events is not None
        for one in measured:
            values = [
                Summary.Value(tag=label(one.role, name), simple_value=value)
                for name, value in one.values.items()
            ]
            self._record(wall_time=one.time.timestamp(), step=one.step, summary=Summary(value=values))
        self._events.flush()
        os.fsync(self._events.fileno())
        state = {"run": self._run.identity, "last_id": measured[-1].id, "size": self._events.tell()}
        aside = self._state.with_name(f"{STATE_FILE}.tmp")
        aside.write_text(json.dumps(state))
        aside.replace(self._state)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None

    def _stored(self) -> dict[str, Any]:
        """Up to where the events are written.

        Raises:
            ConfigError: they are another run's.
        """
        if not self._state.exists():
            return _NOTHING
        state: dict[str, Any] = json.loads(self._state.read_text())
        if state["run"] != self._run.identity:
            raise ConfigError(f"{self._state.parent} has the metrics of another store's run; move it away")
        return state

    def _record(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        RecordWriter(self._events).write(Event(**event).SerializeToString())
