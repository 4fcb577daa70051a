"""Weights & Biases offline and MLflow in a folder and a database, where these packages are installed."""

import json
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import Scene
from trinity_db.insight.sinks.config import MlflowConfig, WandbConfig
from trinity_db.insight.sinks.follow import Follower
from trinity_db.insight.sinks.mlflow import MAX_METRICS, Mlflow
from trinity_db.insight.sinks.sink import Sink
from trinity_db.insight.sinks.wandb import Wandb
from trinity_db.schema.states import WorkerRole

pytestmark = pytest.mark.filterwarnings("default")  # other people's


def catch_up(scene: Scene, sink: Sink) -> int:
    with closing(Follower(scene.database, scene.run, sink)) as follower:
        return follower.catch_up()


@pytest.fixture(params=["folder", "database"])
def client(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of an MLflow store of the test's own."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = str(tmp_path / "mlruns") if request.param == "folder" else f"sqlite:///{tmp_path}/mlflow.db"
    return mlflow.MlflowClient(tracking_uri=uri)


def history(client: Any, name: str) -> list[tuple[int, float]]:
    (one,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    return [(metric.step, metric.value) for metric in client.get_metric_history(one.info.run_id, name)]


def test_mlflow_has_every_number_once_in_one_run(scene: Scene, client: Any) -> None:
    sink = Mlflow(MlflowConfig(tracking_uri=client.tracking_uri, experiment="mine"))
    scene.record(1, {"loss": 0.5, "clip_ratio": 0.0, "clip_ratio/low_mean": 0.25, "rewards/a.py:b/mean": 1.0})
    scene.record(0, {"explore/seconds": 4.0}, WorkerRole.EXPLORE)
    assert catch_up(scene, sink) == 5
    scene.record(2, {"loss": 0.25})
    assert catch_up(scene, sink) == 1
    assert catch_up(scene, sink) == 0
    assert history(client, "train/loss") == [(1, 0.5), (2, 0.25)]
    assert history(client, "train/clip_ratio/region_mean") == [(1, 0.0)]
    assert history(client, "train/clip_ratio/low_mean") == [(1, 0.25)]
    assert history(client, "train/rewards/a.py_b/mean") == [(1, 1.0)]
    assert history(client, "explore/seconds") == [(0, 4.0)]
    (one,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (one.info.run_name, one.info.status) == ("run", "FINISHED")


def test_mlflow_is_given_no_more_than_one_request_may_hold(scene: Scene, client: Any) -> None:
    for step in range(3):
        scene.record(step, {f"m{number}": float(number) for number in range(MAX_METRICS // 2)})
    sink = Mlflow(MlflowConfig(tracking_uri=client.tracking_uri, experiment="mine"))
    assert catch_up(scene, sink) == 3 * (MAX_METRICS // 2)
    assert history(client, "train/m7") == [(0, 7.0), (1, 7.0), (2, 7.0)]


def test_weights_and_biases_has_every_number_once(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    scene.record(1, {"loss": 0.5})
    scene.record(0, {"explore/seconds": 4.0}, WorkerRole.EXPLORE)
    sink = Wandb(WandbConfig(project="mine"))
    assert catch_up(scene, sink) == 2
    scene.record(2, {"loss": 0.25})
    assert catch_up(scene, sink) == 1
    assert catch_up(scene, sink) == 0
    lines = logged(tmp_path)
    assert [line["train/loss"] for line in lines if "train/loss" in line] == [0.5, 0.25]
    assert [line["train/global_step"] for line in lines if "train/loss" in line] == [1, 2]
    assert [line["explore/global_step"] for line in lines if "explore/seconds" in line] == [0]
    steps = [line["_step"] for line in lines]
    assert steps == scene.values("SELECT id FROM trinity.metric ORDER BY id")
    times = scene.values("SELECT extract(epoch FROM created_at)::float8 FROM trinity.metric ORDER BY id")
    assert [line["_timestamp"] for line in lines] == pytest.approx(times)


def logged(folder: Path) -> list[dict[str, Any]]:
    """The history of all parts of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    lines = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                lines.append(
                    {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                )
    return lines


def records(data: bytes) -> Iterator[bytes]:
    """The records of a log of one block, of 32 KiB at most: LevelDB's format after seven bytes."""
    place = 7
    while place < len(data):
        length, kind = struct.unpack_from("<HB", data, place + 4)
        assert kind == 1, "a record is whole"
        yield data[place + 7 : place + 7 + length]
        place += 7 + length
