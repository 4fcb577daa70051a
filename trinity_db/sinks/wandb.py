"""Weights & Biases: one run there for each run here, no matter which process brings it up to date.

Its history's own step is the id of the last metric: it only grows, and what is told twice is passed over.
Charts have the steps of the roles on their axis, `train/global_step` as with TRL. A step that was reopened
and measured again is drawn with both numbers; the summary has the later one.

Offline, in the folder that WANDB_DIR names, every start is a part of its own, `wandb sync --append` puts them
together; a file there says up to where they go.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity_db.schema.states import WorkerRole
from trinity_db.sinks.config import WandbConfig
from trinity_db.sinks.sink import EVALUATION, label, require
from trinity_db.store.metrics import Measurement
from trinity_db.store.runs import Run

STEP = "global_step"  # of each role, by the name that transformers and TRL give it


class Wandb:
    """A run at Weights & Biases.

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, config: WandbConfig) -> None:
        require("wandb", "wandb")
        self._config = config
        self._run: Any = None
        self._state: Path

    def __str__(self) -> str:
        return "Weights & Biases"

    def open(self, run: Run) -> int:
        import wandb

        name = hashlib.sha256(json.dumps(run.identity).encode()).hexdigest()[:16]
        self._run = wandb.init(
            project=self._config.project,
            id=name,
            name=run.name,
            config=run.config,
            resume="allow",
            # What this process prints is no output of the run: it may be another program's.
            settings=wandb.Settings(console="off"),
        )
        for role in WorkerRole:
            self._run.define_metric(f"{role}/{STEP}", hidden=True)
            self._run.define_metric(f"{role}/*", step_metric=f"{role}/{STEP}")
        self._run.define_metric(f"{EVALUATION}/*", step_metric=f"{WorkerRole.TRAIN}/{STEP}")
        self._state = Path(self._run.settings.wandb_dir) / f"trinity-db-{name}.json"
        if self._run.offline:
            return int(json.loads(self._state.read_text())) if self._state.exists() else 0
        return max(0, int(self._run.step) - 1)

    def write(self, measured: Sequence[Measurement]) -> None:
        for one in measured:
            values = {label(one.role, name): value for name, value in one.values.items()}
            steps = {f"{one.role}/{STEP}": one.step, "_timestamp": one.time.timestamp()}
            self._run.log(values | steps, step=one.id, commit=True)
        if self._run.offline:
            self._state.write_text(json.dumps(measured[-1].id))

    def close(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()
