"""Restart: from the start of a trainer's process, the server's included, to the rows of its first batch.

Before each repetition all processes end: the trainer that holds a batch is killed, and the server too, with
rows in its log that it has nowhere else, or it is stopped in order. Then that batch is reopened, and drawn.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import data, history, ingest
from benchmarks.context import Context
from benchmarks.measure import OURS, Bar, Result, figure
from benchmarks.peer import ROOT
from benchmarks.scene import Scene
from benchmarks.server import Server
from trinity_db import opening

MEASURE = "restart"
SIZES = {"100 k rows": (102_400, 102_400), "1 M rows": (1_024_000, 102_400)}
"""Rows of the run, and how many of them (the newest) have texts and arrays."""
UNSAVED_ROWS = 2048  # about 15 MB of log to replay
BARS = {("100 k rows", "killed"): Bar(2.0, at_most=True)}


def run(context: Context) -> list[Result]:
    """Each size, killed and stopped in turn."""
    found = []
    for size, (num_rows, with_arrays) in SIZES.items():
        with context.server() as server:
            context.say(f"{size}: filling a store")
            scene = _fill(server, context.rows(num_rows), context.rows(with_arrays))
            for ending in ("killed", "stopped"):
                context.say(f"{size}: {ending}")
                reached = [_restart(server, scene, ending, number) for number in range(context.repetitions)]
                found.append(
                    figure(
                        MEASURE,
                        OURS,
                        f"{size}, server and roles {ending}",
                        "s",
                        [marks["read"] for marks in reached],
                        BARS.get((size, ending)),
                        _note(reached),
                    )
                )
    return found


def _fill(server: Server, num_rows: int, with_arrays: int) -> Scene:
    url = server.cluster.url()
    opening.upgrade(url)
    scene = Scene.open(url)
    history.online(scene, num_rows, with_arrays)
    server.settle()
    return scene


def _restart(server: Server, scene: Scene, ending: str, number: int) -> dict[str, float]:
    """End everything, start again; when the new process had come how far, in seconds."""
    server.cluster.ensure_running()
    server.settle()
    num_groups = UNSAVED_ROWS // data.GROUP_SIZE
    part = ingest.Part(scene, num_groups, num_groups * number, rows_a_commit=64)
    write = ingest.prepare_ours(part)
    write()
    if ending == "killed":
        _kill(server)
    else:
        server.cluster.stop()
    environment = {**os.environ, "TRINITY_DB_HOME": str(server.cluster.home)}
    environment.pop("TRINITY_DB_URL", None)
    begun = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.restarted", str(begun), "benchmark"]
    trainer = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert trainer.stdout is not None
        said = json.loads(trainer.stdout.readline())
        assert said["rows"] == history.BATCH_GROUPS * data.GROUP_SIZE
    finally:
        trainer.kill()
        trainer.wait()
    reached: dict[str, float] = said["reached"]
    return reached


def _kill(server: Server) -> None:
    """SIGKILL to every process of the server, and return when none is left."""
    while processes := _processes(server.cluster.data):
        for process in processes:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def _processes(folder: Path) -> list[int]:
    """The processes whose working directory is the server's data folder (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
        except OSError:  # ended meanwhile
            continue
    return found


def _note(reached: list[dict[str, float]]) -> str:
    """How long each part took, the median of all repetitions."""
    names = list(reached[0])
    before = dict(zip(names, ["", *names], strict=False))
    parts = {name: [marks[name] - marks.get(before[name], 0.0) for marks in reached] for name in names}
    return ", ".join(f"{name} {statistics.median(values):.2f}" for name, values in parts.items())
