"""The run that is disturbed: a small model that learns to reverse numbers, on a server of its own.

Two explorers, two processors and a trainer are started, a plan is played on them, they are left alone until
they have gone on, and are stopped kindly. What is left is an Aftermath.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.command import Store, reversals
from tests.chaos import workflow
from tests.chaos.aftermath import Aftermath
from tests.chaos.crew import ROLES, Crew
from tests.chaos.driver import POOLER, Driver, plan
from tests.support.pooler import Pooler
from trinity_db.postgres import opening
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.worker.service import SUPERVISOR

SETTLE_BATCHES = 20
OWN_TRAINER = Path(__file__).with_name("own_trainer.py")
READ_BY_PROGRAM = ("steps", "batch_size", "publish_every")
GROUP_SIZE, BATCH_SIZE = 4, 4
RUN: dict[str, Any] = {
    "taskset": "reverse",
    "algorithm": "grpo",
    "explorer": {
        "group_size": GROUP_SIZE,
        "concurrency": 2 * GROUP_SIZE,
        "max_new_tokens": 4,
        "workflow": f"{Path(workflow.__file__).resolve()}:journaled",
    },
    "processors": {"score": ["position_match"], "claim_size": 8},
    # More steps than it can do: it ends when it is stopped.
    "trainer": {"steps": 1_000_000, "batch_size": BATCH_SIZE, "learning_rate": 3e-4},
}


@dataclass(frozen=True)
class Variant:
    """A server, the way to it, and a run whose figures differ from the other variants'."""

    name: str
    major: int
    """Of the PostgreSQL server."""
    share: float
    """Of the minutes that the run is disturbed."""
    max_staleness: int
    publish_every: int
    max_uses: int = 1
    has_own_trainer: bool = False
    """A program trains by `store.trainer`."""
    pooled: bool = False
    """The roles connect through a PgBouncer in transaction mode. The checker asks the server itself."""


VARIANTS = (
    Variant("PostgreSQL 18", 18, share=1.0, max_staleness=1, publish_every=1, max_uses=2),
    Variant("PostgreSQL 15", 15, share=2 / 3, max_staleness=2, publish_every=2),
    Variant("PgBouncer", 18, share=2 / 3, max_staleness=1, publish_every=1, pooled=True),
    Variant("Own trainer", 18, share=1.0, max_staleness=1, publish_every=1, max_uses=2, has_own_trainer=True),
)


def new_store(cluster: Cluster, folder: Path, pooler: Pooler | None = None) -> Store:
    """A store whose processes connect through the pooler, where there is one. Its rows are read directly.

    Without a pooler the processes find the embedded server and start it again. Other servers have an address.
    """
    cluster.ensure_running()
    store = Store(cluster.url(), folder)
    opening.upgrade(store.url)
    if pooler is not None:
        store.environment["TRINITY_DB_URL"] = pooler.url
    elif cluster.binaries.major == 18:
        del store.environment["TRINITY_DB_URL"]
    store.import_rows("reverse", "tasks", reversals(2))
    return store


def log_into(folder: Path) -> Callable[[str], None]:
    """A function that prints what happens, with the seconds since now, and writes it into chaos.log."""
    began, log = time.monotonic(), folder / "chaos.log"

    def say(text: str) -> None:
        line = f"{time.monotonic() - began:7.2f} s  {text}"
        print(line, flush=True)
        with log.open("a") as file:
            file.write(line + "\n")

    return say


def go_through(
    variant: Variant, store: Store, cluster: Cluster, pooler: Pooler | None, seed: int, minutes: float
) -> Aftermath:
    """Disturb a run for so many minutes, and stop it."""
    seconds = variant.share * 60 * minutes
    say = log_into(store.folder)
    say(f"seed {seed}, {seconds:.0f} s on {variant.name}")
    journal = store.folder / "journal"
    journal.mkdir()
    # Every third version is a checkpoint, so a crash withdraws up to two.
    cadence = {"publish_every": variant.publish_every, "checkpoint_every": 3 * variant.publish_every}
    trainer = RUN["trainer"] | cadence
    differs = {"max_staleness": variant.max_staleness, "max_uses": variant.max_uses, "trainer": trainer}
    if variant.has_own_trainer:
        differs |= {"algorithm": "external", "trainer": {key: trainer[key] for key in READ_BY_PROGRAM}}
    config = store.config("chaos", **(RUN | differs))
    environment = {workflow.JOURNAL: str(journal), SUPERVISOR: str(os.getpid())}
    programs = {"train": OWN_TRAINER} if variant.has_own_trainer else {}
    crew = Crew([(role, store) for role in ROLES], config, environment, say, programs)
    driver = Driver(store, cluster, crew, say, pooler)
    try:
        crew.start()
        driver.settle(1)
        driver.play(plan(seed, seconds, POOLER if variant.pooled else ()))
        driver.settle(SETTLE_BATCHES)
        crew.stop()
        say("all processes have stopped")
    finally:
        crew.release()
    return Aftermath(
        variant.name,
        seed,
        seconds,
        variant.max_staleness,
        store,
        journal,
        crew,
        driver,
        variant.max_uses,
    )
