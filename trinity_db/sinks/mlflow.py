"""MLflow: one run there for each run here, found by a tag; another tag says up to where it has the metrics.

Tracking servers and databases keep a number once that is told twice; a folder keeps both, which happens only
when a process is killed while it writes. A step that was reopened and measured again has both numbers, the
later one with a later time; a chart by step draws both.
"""

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from trinity_db.sinks.config import MlflowConfig
from trinity_db.sinks.sink import label, require
from trinity_db.store.metrics import Measurement
from trinity_db.store.runs import Run

RUN_TAG, POSITION_TAG = "trinity_db.run", "trinity_db.last_metric_id"
MAX_METRICS = 999  # of the 1000 things that one request may hold; the last one is the position
_FORBIDDEN = re.compile(r"[^\w\-. /]")  # in a name, for MLflow on any system


class Mlflow:
    """A run of MLflow.

    Raises:
        MissingExtra: neither mlflow nor mlflow-skinny is installed.
    """

    def __init__(self, config: MlflowConfig) -> None:
        require("mlflow", "mlflow")
        self._config = config
        self._client: Any = None
        self._run_id = ""

    def __str__(self) -> str:
        return "MLflow"

    def open(self, run: Run) -> int:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self._config.tracking_uri)
        name = self._config.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        experiment = client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
        owner = json.dumps(run.identity)
        found = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{owner}'", max_results=1)
        one = (
            found[0] if found else client.create_run(experiment_id, tags={RUN_TAG: owner}, run_name=run.name)
        )
        self._client, self._run_id = client, one.info.run_id
        client.update_run(self._run_id, status="RUNNING")
        return int(one.data.tags.get(POSITION_TAG, 0))

    def write(self, measured: Sequence[Measurement]) -> None:
        from mlflow.entities import Metric, RunTag

        batch: list[Any] = []
        for number, one in enumerate(measured):
            time = round(1000 * one.time.timestamp())
            batch += [
                Metric(_FORBIDDEN.sub("_", label(one.role, name)), value, time, one.step)
                for name, value in one.values.items()
            ]
            following = measured[number + 1] if number + 1 < len(measured) else None
            if following is None or len(batch) + len(following.values) > MAX_METRICS:
                tag = RunTag(POSITION_TAG, str(one.id))
                self._client.log_batch(self._run_id, metrics=batch, tags=[tag])
                batch = []

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.set_terminated(self._run_id)
