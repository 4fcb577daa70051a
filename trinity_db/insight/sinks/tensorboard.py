"""TensorBoard sink: event files in which every metric is written exactly once.

The content of a file depends only on the rows, and a file next to it stores how much of it is valid: anything
that a killed process wrote beyond that is truncated, and written again with the same bytes.

A step that was reopened and measured again has both values, with the same step and a later wall time.
TensorBoard shows the newer one: its data server discards a step and those after it when it arrives again.
With `--load_fast=false` it shows both.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.insight.sinks.sink import label, require
from trinity_db.store.metrics import Measurement
from trinity_db.store.runs import Run

STATE_FILE = "trinity-db.json"
_NOTHING = {"last_id": 0, "size": 0}


class TensorBoard:
    """Event files of runs, each in a subfolder of `folder`.

    Raises:
        MissingExtra: if tensorboard is not installed.
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
        """Open or create the run's folder. Only the process that has opened it may write there.

        Raises:
            ConfigError: if the folder contains another run of that name.
            TrinityError: if another process is writing there.
        """
        folder = self._folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        self._run, self._state = run, folder / STATE_FILE
        self._stored()  # check before changing anything
        # TensorBoard recognises event files by "tfevents" in the name.
        self._events = (folder / f"events.out.tfevents.{int(run.created_at.timestamp())}.trinity-db").open(
            "ab"
        )
        try:
            fcntl.flock(self._events, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TrinityError(f"{folder}: another process is writing its metrics there") from error
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
        for measurement in measured:
            values = [
                Summary.Value(tag=label(measurement.role, name), simple_value=value)
                for name, value in measurement.values.items()
            ]
            self._record(
                wall_time=measurement.time.timestamp(), step=measurement.step, summary=Summary(value=values)
            )
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
        """Read the state file.

        Raises:
            ConfigError: if it belongs to another run.
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
