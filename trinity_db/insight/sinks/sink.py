"""The interface of a sink, and the names of metrics in all sinks."""

import importlib.util
from collections.abc import Sequence
from typing import Protocol

from trinity_db.errors import MissingExtra
from trinity_db.schema.states import WorkerRole
from trinity_db.store.metrics import Measurement
from trinity_db.store.runs import Run

EVALUATION = "eval"  # its metrics are shown next to the trainer's others in every peer, not below them
# TRL's name where the table's is shorter. MLflow may store metrics as files, so no name may be a folder of
# another.
_LONGER = {"clip_ratio": "clip_ratio/region_mean"}


class Sink(Protocol):
    """A destination for metrics. Errors of its package are passed to the caller."""

    def open(self, run: Run) -> int:
        """Open or create the run at the destination. Returns the last id that it has.

        May be called again after `close`, such as after an error.
        """

    def write(self, measured: Sequence[Measurement]) -> None:
        """Write metrics and store the last id, from which the next process to open the sink continues."""

    def close(self) -> None:
        """Close the sink. Does nothing if it is not open."""


def require(package: str, extra: str) -> None:
    """Check early, without importing it, that a sink's package is installed.

    Raises:
        MissingExtra: if it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(extra, package)


def label(role: WorkerRole, name: str) -> str:
    """Return a metric's name, prefixed with its role (train/loss) unless it starts with the role or eval."""
    name = _LONGER.get(name, name)
    return name if name.split("/")[0] in (role.value, EVALUATION) else f"{role}/{name}"
