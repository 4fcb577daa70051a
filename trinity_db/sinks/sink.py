"""What a sink is, which there are, and how a metric is called in all of them."""

import importlib.util
from collections.abc import Sequence
from typing import Protocol

from trinity_db.errors import MissingExtra
from trinity_db.schema.states import WorkerRole
from trinity_db.store.metrics import Measurement
from trinity_db.store.runs import Run

EVALUATION = "eval"  # its metrics stand beside the trainer's others in every peer, not below them
# TRL's name where the table's is shorter. MLflow may keep metrics as files: none can be a folder of others.
_LONGER = {"clip_ratio": "clip_ratio/region_mean"}


class Sink(Protocol):
    """A place where metrics are shown. Errors of its package go to the caller."""

    def open(self, run: Run) -> int:
        """Open the run there, or begin it. Returns the id up to which its metrics are there.

        May be called again after `close`, as after an error.
        """

    def write(self, measured: Sequence[Measurement]) -> None:
        """Take these metrics, and remember the last id: the next process to open the sink goes on there."""

    def close(self) -> None:
        """Let go. Harmless when it is not open."""


def require(package: str, extra: str) -> None:
    """Find out early, without importing it, that a sink's package is missing.

    Raises:
        MissingExtra: it is.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(extra, package)


def label(role: WorkerRole, name: str) -> str:
    """The name of a metric: below its role, as train/loss, except eval/loss and explore/seconds."""
    name = _LONGER.get(name, name)
    return name if name.split("/")[0] in (role.value, EVALUATION) else f"{role}/{name}"
