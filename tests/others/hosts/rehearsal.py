"""Two hosts and a server, and a run over them.

Host alpha has an explorer, a processor and the trainer, host beta an explorer and a processor. The server is
on a third. Alpha and beta share a folder, as by a network file system: checkpoints, configuration and
journal are there. The checker asks the server by its socket, past the network.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from tests.acceptance.command import Store, reversals
from tests.chaos import workflow
from tests.chaos.aftermath import Aftermath
from tests.chaos.crew import Crew, Member
from tests.chaos.driver import Driver
from tests.chaos.experiment import RUN
from tests.others.hosts.host import Clock, Host
from tests.others.hosts.network import PREFIX, Network
from tests.support.postgres import execute
from tests.support.waiting import wait_until
from trinity_db.postgres import embedded, opening
from trinity_db.postgres.embedded.binaries import Binaries
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.postgres.embedded.home_paths import DATABASE, PORT, SUPERUSER
from trinity_db.worker.service import SUPERVISOR

NUMBERS = {"server": 1, "alpha": 2, "beta": 3}  # the last of their addresses
SEATS = (
    *(("explore", "alpha"), ("process", "alpha"), ("train", "alpha")),
    *(("explore", "beta"), ("process", "beta")),
)
MAX_STALENESS = 2
LAST_SECONDS = 0.3  # in which the server ends what had reached it when a line was cut
URL = f"postgresql://{SUPERUSER}@{PREFIX}{NUMBERS['server']}:{PORT}/{DATABASE}"

START_SECONDS = 300.0  # for five processes that load torch, beside others that do
BEGUN = """
SELECT (SELECT count(*) FROM worker WHERE stopped_at IS NULL) = %(processes)s
       AND EXISTS (SELECT FROM batch WHERE state = 'committed')
"""
HELD = """
SELECT w.role::text, count(*) AS num
FROM worker w
JOIN (SELECT worker_id FROM experience UNION ALL SELECT worker_id FROM rollout_group) held
  ON held.worker_id = w.id
WHERE w.host = %(host)s
GROUP BY w.role
"""
STORED = """
SELECT count(*) > 0 FROM rollout r JOIN worker w ON w.id = r.worker_id
WHERE w.host = %(host)s AND r.state IN ('finished', 'failed') AND r.id > %(last)s
"""


@dataclass(frozen=True)
class NetworkBinaries(Binaries):
    """Programs of a server that hears an address besides its socket."""

    address: str = ""

    def start(self, data: Path, options: str, log: IO[str], inherited: Sequence[int]) -> bool:
        return super().start(data, f"{options} -c listen_addresses={self.address}", log, inherited)


@dataclass
class Rehearsal:
    """A run over two hosts, all processes at work."""

    folder: Path
    network: Network
    hosts: dict[str, Host]
    stores: dict[str, Store]
    """Whose commands run on a host, by its name."""
    crew: Crew
    driver: Driver
    clock: Clock
    """Of beta."""
    seed: int
    began: float
    """Seconds since the epoch."""
    stage: str = ""
    """What is being done to it."""
    figures: dict[str, float] = field(default_factory=dict)
    """What was measured, by stage."""

    @property
    def store(self) -> Store:
        """The store for those who ask."""
        return self.driver.store

    def has_begun(self) -> bool:
        """Whether all processes are at work, and the first batch is committed."""
        assert all(member.process.running for member in self.crew.places), "a process ended at its start"
        return bool(self.store.value(BEGUN, processes=len(self.crew.places)))

    def members(self, host: str) -> list[Member]:
        """The processes that work on a host."""
        return [member for member in self.crew.places if member.store is self.stores[host]]

    def held(self, host: str) -> dict[str, int]:
        """How many rows and groups the workers of a host hold, by role, where they hold any."""
        return {row["role"]: row["num"] for row in self.store.rows(HELD, host=host)}

    def cut_in_hand(self, host: str) -> dict[str, int]:
        """Cut a host off at a moment when its explorer and its processor hold something; how much."""
        line = self.hosts[host].line
        found: dict[str, int] = {}

        def caught() -> bool:
            line.cut()
            if len(self.held(host)) == 2:
                threading.Event().wait(LAST_SECONDS)
                found.update(self.held(host))
            if len(found) < 2:
                found.clear()
                line.heal()
            return bool(found)

        wait_until(caught, f"{host}'s explorer and processor hold something")
        self.driver.say(f"cut off {host}, which holds {found}")
        return found

    def time_until(self, condition: Callable[[], bool], what: str, since: float) -> None:
        """Wait for a condition, and note how many seconds after a time it came true."""
        wait_until(condition, what)
        self.note(what, time.time() - since)

    def note(self, what: str, seconds: float) -> None:
        """Keep a figure."""
        self.figures[f"{self.stage}: {what}"] = round(seconds, 2)
        self.driver.say(f"{what}: {seconds:.2f} s")

    def last_rollout(self) -> int:
        """The newest that is stored; its times are by an explorer's clock."""
        return int(self.store.value("SELECT max(id) FROM rollout"))

    def has_stored(self, host: str, last: int) -> bool:
        """Whether a host has stored a rollout after that one."""
        return bool(self.store.value(STORED, host=host, last=last))

    def boot(self, name: str) -> None:
        """Let a host boot that has died. Nothing runs on it yet."""
        self.hosts[name] = host = Host(name, NUMBERS[name], self.network, [self.folder / "shared"])
        self.stores[name].leads_to = host.leads_to

    def die(self, name: str) -> None:
        """A host loses power."""
        for member in self.members(name):
            member.killed = True
        self.hosts.pop(name).die()

    def after(self) -> Aftermath:
        """Stop all processes kindly. What is left."""
        self.crew.stop()
        seconds = time.time() - self.began
        return Aftermath(
            "two hosts",
            self.seed,
            seconds,
            MAX_STALENESS,
            self.store,
            self.folder / "shared" / "journal",
            self.crew,
            self.driver,
        )


@contextmanager
def rehearsal(folder: Path, seed: int) -> Iterator[Rehearsal]:
    """A run over two hosts that has made its first batch."""
    network = Network(seed)
    network.start()
    hosts: dict[str, Host] = {}
    cluster = None
    try:
        hosts["server"] = Host("server", NUMBERS["server"], network)
        cluster = serve(folder / "home", hosts["server"])
        made = _begin(folder, cluster, network, hosts, seed)
        try:
            made.crew.start()
            wait_until(made.has_begun, "every process is at work", seconds=START_SECONDS)
            yield made
        finally:
            for store in made.stores.values():
                store.clear_away()
    finally:
        if cluster is not None:
            cluster.stop()
        for host in hosts.values():
            host.die()
        network.close()


def serve(home: Path, host: Host) -> Cluster:
    """Start a server on a host. It trusts the network."""
    found = embedded.cluster(home)
    heard = NetworkBinaries(
        found.binaries.folder, found.binaries.major, found.binaries.initdb_options, host.address
    )
    served = replace(found, binaries=heard)
    host.inside(served.ensure_running)
    with (served.data / "pg_hba.conf").open("a") as rules:
        rules.write(f"host all all {PREFIX}0/24 trust\n")
    execute(served.url("postgres"), "SELECT pg_reload_conf()")
    opening.upgrade(served.url())
    return served


def _begin(
    folder: Path,
    cluster: Cluster,
    network: Network,
    hosts: dict[str, Host],
    seed: int,
) -> Rehearsal:
    """The hosts that work, and a run that no process has begun."""
    began, shared = time.time(), folder / "shared"
    journal = shared / "journal"
    journal.mkdir(parents=True)
    checker = Store(cluster.url(), folder)
    checker.import_rows("reverse", "tasks", reversals(2))
    stores = {name: Store(cluster.url(), shared) for name in NUMBERS if name != "server"}
    for name, store in stores.items():
        hosts[name] = Host(name, NUMBERS[name], network, [shared])
        store.leads_to = hosts[name].leads_to
        own = {"HOME": "/tmp/home", "TRINITY_DB_HOME": "/tmp/home/trinity-db", "TRINITY_DB_URL": URL}
        store.environment |= own
    clock = Clock(shared)
    clock.make()
    stores["beta"].environment |= clock.environment
    checkpoints = {"checkpoints": str(shared / "checkpoints"), "publish_every": 1, "checkpoint_every": 3}
    run = RUN | {"max_staleness": MAX_STALENESS, "trainer": RUN["trainer"] | checkpoints}
    config = stores["alpha"].config("hosts", **run)

    def say(text: str) -> None:
        print(f"{time.time() - began:7.2f} s  {text}", flush=True)

    environment = {workflow.JOURNAL: str(journal), SUPERVISOR: str(os.getpid())}
    crew = Crew([(role, stores[name]) for role, name in SEATS], config, environment, say)
    driver = Driver(checker, cluster, crew, say)
    return Rehearsal(folder, network, hosts, stores, crew, driver, clock, seed, began)
