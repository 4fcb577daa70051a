"""Makes one run in one mode, as processes on a store of its own, and reads its outcome from the store.

Outcomes are kept in a file, so that a benchmark that was killed goes on with the next run.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml
from psycopg.rows import dict_row

from benchmarks import machine
from benchmarks.modes.workloads import DEMONSTRATIONS, HELD_OUT, NUM_HELD_OUT, TASKS, Workload
from benchmarks.server import Server
from trinity_db.cli import launch, supervise
from trinity_db.cli.demo import TEMPLATE
from trinity_db.database import Database
from trinity_db.imports.columns import Columns
from trinity_db.imports.importer import import_rows
from trinity_db.imports.readers import open_rows
from trinity_db.imports.records import Kind
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import policies, runs

WARM_UP = 8  # steps that are not counted: roles load their libraries, and the first batches fill up

STEPS = """
SELECT extract(epoch FROM committed_at)::float8 AS at, reward::float8 AS reward
FROM batch_view WHERE state = 'committed' ORDER BY step
"""
TRAINER_WAITED = """
SELECT coalesce(sum(value), 0)::float8 FROM metric
WHERE name = 'time/wait_for_batch' AND step > %(warm_up)s
"""
EXPLORER_WAITED = """
SELECT (coalesce(sum(value) FILTER (WHERE name = 'explore/wait_for_training'), 0)
        / nullif(sum(value) FILTER (WHERE name = 'explore/time'), 0))::float8
FROM metric WHERE extract(epoch FROM created_at) BETWEEN %(first)s AND %(last)s
"""
EXPIRED = """
SELECT (count(*) FILTER (WHERE state = 'expired')::float8 / greatest(count(*), 1))::float8 AS share
FROM experience WHERE NOT held_out
"""
ATTEMPTS = "SELECT count(*)::float8 FROM experience WHERE NOT held_out"
EVALUATED = "SELECT value::float8 FROM metric WHERE name = %(name)s ORDER BY step DESC, id DESC LIMIT 1"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    seconds: list[float]
    """Of each step after the warm-up, the time of its commit since the end of the warm-up."""
    rewards: list[float]
    """Of each of these steps, the mean reward of its batch."""
    trainer_idle: float
    """Share of the time in which the trainer waited for a batch."""
    explorer_idle: float
    """Share of the explorer's places that were empty because no group could be started."""
    expired: float
    """Share of the rows that became too stale to be trained on."""
    attempts: int
    """Rows that the explorer wrote."""
    held_out: float
    """Mean reward of the last version on tasks that it was not trained on."""
    others: float
    """Cores that were busy just before, when nothing of this benchmark worked."""

    @property
    def steps_per_hour(self) -> float:
        return 3600 * len(self.seconds) / self.seconds[-1]


class Kept:
    """Outcomes in a file, each under the digest of its configuration."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Outcome] = {}
        if path.exists():
            told = json.loads(path.read_text(encoding="utf-8"))
            self._found = {key: Outcome(**outcome) for key, outcome in told.items()}

    def get(self, key: str) -> Outcome | None:
        return self._found.get(key)

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep one more. The file is there whole at any time."""
        self._found[key] = outcome
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".part")
        told = {key: asdict(one) for key, one in self._found.items()}
        unfinished.write_text(json.dumps(told), encoding="utf-8")
        unfinished.replace(self._path)

    def forget(self) -> None:
        """Remove the file: the next benchmark measures anew."""
        self._path.unlink(missing_ok=True)


def key_of(workload: Workload, config: Mapping[str, Any]) -> str:
    """A key that differs between runs with different configurations or tasks."""
    told = {**config, "workload": repr(workload)}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def warm_start(server: Server, workload: Workload, folder: Path) -> Path:
    """Imitate the tasks' answers from random weights; the folder of the checkpoint that came of it."""
    with store(server, folder) as database:
        _import(database, folder, "demonstrations", DEMONSTRATIONS, _demonstrations(workload))
        run_config(folder, workload.warm_start())
        with database.transaction() as tx:
            policy = policies.newest(tx, runs.find(tx, "warm-start").id)
    assert policy is not None
    return policy.checkpoint


def outcome_of(
    server: Server, workload: Workload, config: Mapping[str, Any], start: Path, scratch: Path
) -> Outcome:
    """Run a configuration to its end, from a checkpoint."""
    model = {"path": str(start), "prompt_template": TEMPLATE}
    folder = Path(tempfile.mkdtemp(prefix="trinity-db-bench-modes-", dir=scratch))
    try:
        with store(server, folder) as database:
            tasks = workload.tasks()
            _import(database, folder, "tasks", HELD_OUT, tasks[:NUM_HELD_OUT])
            _import(database, folder, "tasks", TASKS, tasks[NUM_HELD_OUT:][: workload.trained])
            server.settle()
            others = machine.busy_cores()
            run_config(folder, {**config, "model": model})
            return _read(database.url, others)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _demonstrations(workload: Workload) -> list[dict[str, Any]]:
    trained = workload.tasks()[NUM_HELD_OUT:]
    return [{"prompt": one["prompt"], "completion": one["answer"]} for one in trained]


def _import(
    database: Database, folder: Path, kind: Kind, name: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    import_rows(database, open_rows(path), Columns(kind), name, lambda done, total: None)


def run_config(folder: Path, config: Mapping[str, Any]) -> None:
    """All roles as processes; they end when this process is gone, because it is their supervisor."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    supervise.run(launch.read(path, None), launch.arguments(path, None))


@contextmanager
def store(server: Server, folder: Path) -> Iterator[Database]:
    """A new store, which the environment names meanwhile."""
    url = server.new_store()
    ours = {"TRINITY_DB_URL": url, "TRINITY_DB_HOME": str(folder / "home")}
    before = {name: os.environ.get(name) for name in ours}
    os.environ |= ours
    try:
        with closing(Database(url, LEASE_SECONDS)) as database:
            yield database
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _read(url: str, others: float) -> Outcome:
    with closing(psycopg.connect(url, row_factory=dict_row, options="-c search_path=trinity")) as connection:

        def value(statement: str, **values: Any) -> float:
            row = connection.execute(statement.encode(), values).fetchone()
            assert row is not None
            (found,) = row.values()
            return float(found or 0)

        steps = connection.execute(STEPS.encode()).fetchall()
        first, last = steps[WARM_UP - 1]["at"], steps[-1]["at"]
        return Outcome(
            seconds=[step["at"] - first for step in steps[WARM_UP:]],
            rewards=[step["reward"] for step in steps[WARM_UP:]],
            trainer_idle=value(TRAINER_WAITED, warm_up=WARM_UP) / (last - first),
            explorer_idle=value(EXPLORER_WAITED, first=first, last=last),
            expired=value(EXPIRED),
            attempts=int(value(ATTEMPTS)),
            held_out=value(EVALUATED, name=f"eval/{HELD_OUT}/mean@1"),
            others=others,
        )
