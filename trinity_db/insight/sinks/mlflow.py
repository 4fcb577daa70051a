"""MLflow sink: one MLflow run per run, identified by a tag; another tag stores the last id that was written.

Tracking servers and databases deduplicate repeated metrics; a folder does not, but repetitions only happen if
a process is killed while writing. A step that was reopened and measured again has both values, the newer one
with a later time; a chart by step shows both.
"""

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from trinity_db.insight.sinks.config import MlflowConfig
from trinity_db.insight.sinks.sink import label, require
from trinity_db.store.metrics import Measurement
from trinity_db.store.runs import Run

RUN_TAG, POSITION_TAG = "trinity_db.run", "trinity_db.last_metric_id"
MAX_METRICS = 999  # a request allows 1000 entries; the last one is the position
_FORBIDDEN = re.compile(r"[^\w\-. /]")  # characters that MLflow does not allow in names on all systems


class Mlflow:
    """An MLflow run.

    Raises:
        MissingExtra: if neither mlflow nor mlflow-skinny is installed.
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
        matches = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{owner}'", max_results=1)
        sink_run = (
            matches[0]
            if matches
            else client.create_run(experiment_id, tags={RUN_TAG: owner}, run_name=run.name)
        )
        self._client, self._run_id = client, sink_run.info.run_id
        client.update_run(self._run_id, status="RUNNING")
        return int(sink_run.data.tags.get(POSITION_TAG, 0))

    def write(self, measured: Sequence[Measurement]) -> None:
        from mlflow.entities import Metric, RunTag

        batch: list[Any] = []
        for number, measurement in enumerate(measured):
            time = round(1000 * measurement.time.timestamp())
            batch += [
                Metric(_FORBIDDEN.sub("_", label(measurement.role, name)), value, time, measurement.step)
                for name, value in measurement.values.items()
            ]
            following = measured[number + 1] if number + 1 < len(measured) else None
            if following is None or len(batch) + len(following.values) > MAX_METRICS:
                tag = RunTag(POSITION_TAG, str(measurement.id))
                self._client.log_batch(self._run_id, metrics=batch, tags=[tag])
                batch = []

    def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.set_terminated(self._run_id)
