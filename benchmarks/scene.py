"""Training run in a store for our measures: tasks, a version, workers, claimed groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks import data
from trinity_db.arrays.codec import Payload
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Task
from trinity_db.models import folder_digest
from trinity_db.postgres.connection import Database
from trinity_db.schema.states import WorkerRole
from trinity_db.store import groups, policies, runs, workers
from trinity_db.store.selection import TaskSelection

RUN = "benchmark"
NUM_TASKS = 256
UNLIMITED = groups.Pace(max_staleness=None, per_version=1)


@dataclass(frozen=True)
class Scene:
    """Run in a store. Picklable, so that other processes can open the database."""

    url: str
    run_id: int
    taskset_id: int

    @classmethod
    def open(cls, url: str, model: Path | None = None, config: Mapping[str, Any] | None = None) -> Self:
        """Create a run over a taskset, at policy version 0.

        Args:
            model: Folder of that version; None if no explorer loads it.
            config: Configuration of a run whose trainer publishes that version.
        """
        start = policies.PolicyVersion(0, 0, Path("version-0"), "hash")
        if model is not None:
            start = policies.PolicyVersion(0, 0, model, folder_digest.digest(model))
        database = Database(url)
        open_writer(database, "tasks", "tasks")(
            [Task({"prompt": f"task {number}", "answer": str(number)}) for number in range(NUM_TASKS)]
        )
        with database.transaction() as tx:
            run = runs.open_run(tx, RUN, dict(config or {"name": RUN}), "groups")
            taskset_id = runs.find_taskset(tx, "tasks")
            if config is None:
                policies.publish(tx, run.id, start)
        database.close()
        return cls(url, run.id, taskset_id)

    def new_worker(self, database: Database, role: WorkerRole) -> int:
        with database.transaction() as tx:
            return workers.register(tx, runs.find(tx, RUN), role)

    def claim(self, database: Database, worker_id: int, count: int) -> list[groups.ClaimedGroup]:
        """Claim groups of 8 to explore."""
        selection = TaskSelection({self.taskset_id: 1.0}, seed=0, walk="sequential")
        plan = groups.GroupPlan(UNLIMITED, selection, data.GROUP_SIZE)
        with database.transaction() as tx:
            return groups.claim(tx, self.run_id, worker_id, plan, version=0, limit=count)


def rollouts(group: groups.ClaimedGroup, members: Sequence[data.Experience]) -> list[groups.Rollout]:
    """Make a claimed group's rollouts from rows that we and all peers write."""
    now = datetime.now(UTC)
    return [
        groups.Rollout(
            *(group, row.member, now, now, "stop"),
            steps=[groups.Step(row.prompt, row.response, payload(row))],
        )
        for row in members
    ]


def payload(row: data.Experience) -> Payload:
    """Return the row's arrays with the version of each sampled token."""
    versions = np.full(len(row.logprobs), row.version, np.int32)
    return Payload(row.token_ids, row.action_mask, row.logprobs, versions)
