"""Traces of ours, read by OpenEnv's own class."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.others.environments.conftest import PYTHON
from tests.support.rows import Scene, attempt, rollout, with_step
from trinity_db.arrays.codec import Payload
from trinity_db.data.exporter import export_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.traces.traces import Trace
from trinity_db.postgres.connection import Database

READ = """
import json, sys
from openenv.core.harness.training import TrainingTrace
for line in sys.stdin:
    trace = TrainingTrace.model_validate_json(line)
    print(trace.model_dump_json())
"""


def theirs(text: str) -> list[dict[str, Any]]:
    """What the class makes of lines; it refuses those that break a rule of its own."""
    read = subprocess.run([PYTHON, "-c", READ], input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in read.stdout.splitlines()]


@pytest.fixture
def scene(database_url: str) -> Iterator[Scene]:
    with closing(Database(database_url)) as database:
        yield Scene.open(database)


def test_an_export_is_what_openenv_calls_a_trace_with_nothing_changed(scene: Scene, tmp_path: Path) -> None:
    [one, other] = scene.claim(2)
    mask = np.array([0, 0, 1, 1, 0, 1, 0], np.bool_)
    logprobs, versions = np.array([-0.1, 0.0, -9.5], np.float32), np.zeros(3, np.int32)
    turns = Payload(np.arange(7, dtype=np.int32), mask, logprobs, versions)
    scene.write([rollout(one, 0), with_step(rollout(one, 1), payload=turns)])
    scene.write([attempt(other, 0, ["1", "0"], rewards=[1.0, None])])
    path = tmp_path / "run.jsonl"
    export_rows(scene.database, "traces", scene.run.name, path, lambda rows: None)
    read = theirs(path.read_text())
    assert read == [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(trace["turns"]) for trace in read] == [1, 3, 2]
    assert all(isinstance(Columns("traces").read(trace)[0], Trace) for trace in read)


@pytest.mark.parametrize("spoilt", ["per_token_logps", "loss_mask", "prompt_token_ids"])
def test_what_openenv_refuses_is_refused_here(spoilt: str) -> None:
    turn: dict[str, Any] = {
        "node_id": "a",
        "prompt_token_ids": [1],
        "completion_token_ids": [2],
        "per_token_logps": [-1.0],
        "loss_mask": [0, 1],
    }
    [_] = theirs(json.dumps({"turns": [turn]}))
    turn[spoilt] = []
    with pytest.raises(subprocess.CalledProcessError):
        theirs(json.dumps({"turns": [turn]}))
    [rejected] = Columns("traces").read({"turns": [turn]})
    assert hasattr(rejected, "reason")
