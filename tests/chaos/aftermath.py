"""What is left of a run that was disturbed: the journal, the store at rest, the processes' last words.

Everything here is asked of the database in SQL, of the journal, and of what the driver did. None of the
store's own verbs takes part.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from tests.acceptance.command import Store
from tests.chaos import workflow
from tests.chaos.crew import Crew
from tests.chaos.driver import Driver, Zombie
from tests.chaos.workflow import Acknowledged

# The journal has the same hash.
STORED = """
SELECT r.group_id, r.ordinal, r.attempt, coalesce(encode(sha256(c.bytes), 'hex'), '') AS content
FROM rollout r
LEFT JOIN experience e ON e.rollout_id = r.id
LEFT JOIN LATERAL (
    SELECT convert_to(x.response, 'UTF8') || p.data AS bytes
    FROM experience_text x JOIN payload p USING (experience_id)
    WHERE x.experience_id = e.id
) c ON true
"""
USES = """
SELECT e.id, e.use_count, count(b.id) AS uses
FROM experience e
LEFT JOIN batch_item i ON i.experience_id = e.id
LEFT JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
GROUP BY e.id
"""
FIRST_BATCHES = """
SELECT w.pid, extract(epoch FROM min(b.created_at))::float8 AS at
FROM worker w JOIN batch b ON b.worker_id = w.id GROUP BY w.id
"""
COUNTS = """
SELECT (SELECT count(*) FROM batch WHERE state = 'committed') AS batches_committed,
       (SELECT count(*) FROM batch WHERE state = 'reopened') AS batches_reopened,
       (SELECT count(*) FROM policy_version WHERE version > 0) AS versions_published,
       (SELECT count(*) FROM rollout) AS rollouts_stored,
       (SELECT count(*) FROM rollout WHERE state = 'refused') AS rollouts_refused,
       (SELECT count(*) FROM processing WHERE outcome = 'refused') AS verdicts_refused
"""


@dataclass
class Aftermath:
    """A run at rest, and how it came to be there."""

    server: str
    seed: int
    seconds: float
    max_staleness: int
    store: Store
    journal: Path
    crew: Crew
    driver: Driver
    max_uses: int = 1

    @cached_property
    def acknowledged(self) -> list[Acknowledged]:
        return workflow.read(self.journal)

    @cached_property
    def stored(self) -> list[dict[str, Any]]:
        return self.store.rows(STORED)

    @cached_property
    def lost(self) -> list[Acknowledged]:
        """Acknowledged, and not in the store once with the same content."""
        found: defaultdict[tuple[int, int, int], list[str]] = defaultdict(list)
        for row in self.stored:
            found[row["group_id"], row["ordinal"], row["attempt"]].append(row["content"])
        return [line for line in self.acknowledged if found[line[:3]] != [line.content]]

    @cached_property
    def twice(self) -> list[int]:
        """Rows with more committed uses than allowed."""
        return [row["id"] for row in self.store.rows(USES) if row["uses"] > self.max_uses]

    @property
    def replaced_trainers(self) -> list[Zombie]:
        return [zombie for zombie in self.driver.zombies if zombie.member.role == "train"]

    @cached_property
    def restart_seconds(self) -> list[float]:
        """From the start of each later trainer's process to its first batch, where it lived to draw one."""
        first = {row["pid"]: row["at"] for row in self.store.rows(FIRST_BATCHES)}
        trainers = [member for member in self.crew.members if member.role == "train"]
        return [
            first[member.process.pid] - member.started_at
            for member in trainers[1:]
            if member.process.pid in first
        ]

    def summary(self) -> dict[str, Any]:
        """What the run went through, and what became of it."""
        did = Counter(self.driver.count)
        return {
            "server": self.server,
            "seed": self.seed,
            "seconds": self.seconds,
            "killed": {role: did[f"kill {role}"] for role in ("explore", "process", "train")},
            "connections_cut": did["cut"],
            "server_restarts": did["restart"],
            "server_crashes": did["crash"],
            "pooler_cuts": did["pooler cut"],
            "pooler_restarts": did["pooler restart"],
            "frozen": {role: did[f"freeze {role}"] for role in ("explore", "process", "train")},
            "zombies": did["zombie"],
            "trainers_replaced": len(self.replaced_trainers),
            "processes_started": len(self.crew.members),
            "rollouts_acknowledged": len(self.acknowledged),
            "lost": len(self.lost),
            "twice": len(self.twice),
            **self.store.rows(COUNTS)[0],
            "restart_to_first_batch_seconds": _spread(self.restart_seconds),
        }


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {"restarts": 0}
    return {
        "restarts": len(seconds),
        "median": round(median(seconds), 1),
        "longest": round(max(seconds), 1),
    }
