"""Weights & Biases sink: one W&B run per run, whichever process brings it up to date.

W&B's own step is the id of the last metric: it only grows, and repeated metrics are ignored. Charts use the
steps of the roles, such as `train/global_step` in TRL. A step that was reopened and measured again is drawn
with both values; the summary has the newer one.

Offline, in the folder that WANDB_DIR names, every start is a separate part, and `wandb sync --append` joins
them; a file there stores the last id.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity_db.insight.sinks.config import WandbConfig
from trinity_db.insight.sinks.sink import EVALUATION, label, require
from trinity_db.schema.states import WorkerRole
from trinity_db.store.metrics import Measurement
from trinity_db.store.runs import Run

STEP = "global_step"  # step of each role, named as in transformers and TRL


class Wandb:
    """A run at Weights & Biases.

    Raises:
        MissingExtra: if wandb is not installed.
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
            # This process's output is not the run's: it may belong to another program.
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
        for measurement in measured:
            values = {label(measurement.role, name): value for name, value in measurement.values.items()}
            steps = {
                f"{measurement.role}/{STEP}": measurement.step,
                "_timestamp": measurement.time.timestamp(),
            }
            self._run.log(values | steps, step=measurement.id, commit=True)
        if self._run.offline:
            self._state.write_text(json.dumps(measured[-1].id))

    def close(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()
