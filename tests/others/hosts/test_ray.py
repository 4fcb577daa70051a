"""A Ray cluster of two hosts, and a run on it: beta is cut off, loses power, and is about to go.

Alpha is the head. The command, the trainer and the processors are there, and an explorer; another one is on
beta, which fetches weights from a folder that both mount. `make hosts` runs this where Ray is installed.
"""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.command import Ended, Process, Store, reversals, reversing
from tests.others.hosts.host import Host, what_is_missing
from tests.others.hosts.network import Network
from tests.others.hosts.rehearsal import NUMBERS, STORED, URL, serve
from tests.others.ray.history import ALIVE, check_history, steps
from tests.support.postgres import new_home
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

# The fixture bounds each of its waits itself.
pytestmark = pytest.mark.timeout(300, func_only=True)

RUN = "ray"
PORT = 6379
BYTES = 80 << 20  # of each host's object store, which nothing of ours goes through
# Ray asks a machine five times, with 3 s between, before it gives it up; by itself it waits 10 s each time.
HEALTH = '{"health_check_timeout_ms": 5000}'
SHORT_CUT_SECONDS, LONG_CUT_SECONDS = 10.0, 45.0
LONGEST_SECONDS = 240.0  # Ray's processes, an actor and an explorer that loads torch, beside others that do
SOME_STEPS = 5
EXPLORES = """
SELECT w.pid FROM worker w WHERE w.host = %(host)s AND w.role = 'explore' AND w.stopped_at IS NULL
"""
IS_FURTHER = "SELECT count(*) >= %(count)s FROM batch WHERE state = 'committed'"


@dataclass
class Machines:
    """The hosts, their Ray, and the command."""

    folder: Path
    network: Network
    hosts: dict[str, Host]
    store: Store
    """For those who ask, past the network."""
    alpha: Store
    """Whose commands run on alpha."""
    note: Callable[[str, float], None]
    driver: Process = field(init=False)

    def boot(self, name: str) -> None:
        self.hosts[name] = Host(name, NUMBERS[name], self.network, [self.folder / "shared"])

    def ray(self, name: str, *arguments: str) -> None:
        """Run Ray's command on a host."""
        command = [*self.hosts[name].leads_to, str(Path(sys.executable).with_name("ray")), *arguments]
        environment = self.alpha.environment | {"RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    def join(self, name: str, *more: str) -> None:
        """Let a host be a machine of the cluster."""
        own = ("--node-ip-address", self.hosts[name].address, "--object-store-memory", str(BYTES))
        self.ray(name, "start", *own, *more)

    @property
    def address(self) -> str:
        return f"{self.hosts['alpha'].address}:{PORT}"

    def let_beta_join(self, when: str) -> None:
        """Let beta be a machine of the cluster, until its explorer has stored rollouts."""
        began, last = time.time(), self.last_rollout()
        self.join("beta", "--address", self.address, "--num-cpus", "1")
        self.time_until(lambda: self.has_stored(last), f"until rollouts of beta, which joins {when}", began)

    def time_until(self, condition: Callable[[], bool], what: str, since: float) -> None:
        """Wait for a condition while the command lives, and note how long it took."""

        def found() -> bool:
            assert self.driver.running, self.driver.errors
            return condition()

        wait_until(found, what, seconds=LONGEST_SECONDS)
        self.note(what, time.time() - since)

    def last_rollout(self) -> int:
        return int(self.store.value("SELECT coalesce(max(id), 0) FROM rollout"))

    def has_stored(self, last: int) -> bool:
        """Whether beta has stored a rollout after that one."""
        return bool(self.store.value(STORED, host="beta", last=last))

    def explorers(self, host: str) -> list[int]:
        """The processes of a host's explorers."""
        return [int(row["pid"]) for row in self.store.rows(EXPLORES, host=host)]

    def lost(self) -> int:
        """How many roles Ray has lost so far, as the command says."""
        return self.driver.errors.count("Ray has lost it on beta")


class Facts(NamedTuple):
    """What was seen."""

    kept: bool
    """Whether beta's explorer outlived the short cut, and Ray lost nothing."""
    steps_alone: int
    """Of alpha, while beta was cut off for long."""
    asked: Ended
    """`trinity-db stop` on the server's host."""
    ended: Ended
    left: int
    store: Store


@contextmanager
def cluster_of_hosts(folder: Path, note: Callable[[str, float], None]) -> Iterator[Machines]:
    """A run on two hosts that Ray has started, both exploring."""
    network = Network(seed=7)
    network.start()
    hosts: dict[str, Host] = {}
    served = None
    try:
        hosts["server"] = Host("server", NUMBERS["server"], network)
        served = serve(folder / "home", hosts["server"])
        (folder / "shared").mkdir()
        store, alpha = Store(served.url(), folder), Store(served.url(), folder / "shared")
        store.import_rows("reverse", "tasks", reversals(2))
        own = {"HOME": "/tmp/home", "TRINITY_DB_HOME": "/tmp/home/trinity-db", "TRINITY_DB_URL": URL}
        alpha.environment |= own
        made = Machines(folder, network, hosts, store, alpha, note)
        for name in ("alpha", "beta"):
            made.boot(name)
        alpha.leads_to = hosts["alpha"].leads_to
        head = ("--head", "--port", str(PORT), "--include-dashboard=false", "--system-config", HEALTH)
        made.join("alpha", *head, "--num-cpus", "2", "--resources", '{"home": 1}')
        try:
            _begin(made)
            yield made
        finally:
            alpha.clear_away()
    finally:
        if served is not None:
            served.stop()
        for host in hosts.values():
            host.die()
        network.close()


def _begin(made: Machines) -> None:
    """Start the command on alpha, then beta's Ray: until both explore."""
    run = reversing(1_000_000, 8)
    weights = {"weights": f"file://{made.folder / 'shared' / 'versions'}"}
    home = {role: {"resources": {"home": 0.1}} for role in ("train", "process")}
    content = run | {"max_staleness": 2, "trainer": run["trainer"] | weights}
    path = made.alpha.config(RUN, explorers=2, ray=home, **content)
    made.driver = made.alpha.start("run", path, "--ray", made.address)
    made.store.wait_for("SELECT count(*) = 3 FROM (" + ALIVE + ") w", made.driver, run=RUN)
    made.let_beta_join("at first")


def short_cut(made: Machines) -> bool:
    """Beta is cut off for less than Ray waits. Whether it costs nothing."""
    before, line = made.explorers("beta"), made.hosts["beta"].line
    line.cut()
    threading.Event().wait(SHORT_CUT_SECONDS)
    last, healed_at = made.last_rollout(), time.time()
    line.heal()
    made.time_until(lambda: made.has_stored(last), "until rollouts of beta, after a cut of 10 s", healed_at)
    return made.explorers("beta") == before and len(before) == 1 and made.lost() == 0


def partition(made: Machines) -> int:
    """Beta is cut off for longer. Ray gives it up, and it has to join again. How many steps alpha makes."""
    (explorer,) = made.explorers("beta")
    before, lost, cut_at = steps(made.store, RUN), made.lost(), time.time()
    made.hosts["beta"].line.cut()
    made.time_until(lambda: made.lost() > lost, "until Ray gives beta up, after the cut", cut_at)
    assert made.explorers("beta") == [], "it is fenced"
    assert is_alive(explorer), "it does not know"
    threading.Event().wait(max(0.0, cut_at + LONG_CUT_SECONDS - time.time()))
    alone = steps(made.store, RUN) - before
    made.hosts["beta"].line.heal()
    healed_at = time.time()
    what = "until beta's explorer has ended, after a cut of 45 s"
    made.time_until(lambda: not is_alive(explorer), what, healed_at)
    made.let_beta_join("after a cut of 45 s")
    return alone


def power_failure(made: Machines) -> None:
    """Beta dies, and boots again."""
    lost, died_at = made.lost(), time.time()
    made.hosts.pop("beta").die()
    made.time_until(lambda: made.lost() > lost, "until Ray gives beta up, after it lost power", died_at)
    made.boot("beta")
    made.let_beta_join("after it lost power")


def departure(made: Machines) -> None:
    """Beta is a spot machine that is about to go, and says so to Ray: its explorer leaves in order."""
    told_at = time.time()
    why = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a spot machine")
    made.ray("beta", "drain-node", "--address", made.address, *why, "--deadline-remaining-seconds", "120")
    left = "explore-2 ended with code 0, restarting it"
    made.time_until(lambda: left in made.driver.errors, "until beta's explorer has left, as told", told_at)


@pytest.fixture(scope="module")
def facts(request: pytest.FixtureRequest, figures: dict[str, float]) -> Iterator[Facts]:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: make .venv/.ray")
    if reason := what_is_missing():
        pytest.skip(reason)
    failures, folder = request.session.testsfailed, new_home()
    print(f"What the processes say and the store are in {folder}")

    def note(what: str, seconds: float) -> None:
        figures[f"ray: {what}"] = round(seconds, 1)

    with cluster_of_hosts(folder, note) as made:
        kept = short_cut(made)
        alone = partition(made)
        power_failure(made)
        departure(made)
        made.store.wait_for(IS_FURTHER, made.driver, count=steps(made.store, RUN) + SOME_STEPS)
        elsewhere = Store(URL, folder, made.hosts["server"].leads_to)
        asked = elsewhere.run("stop", RUN, TRINITY_DB_HOME="/tmp/home")
        ended = made.driver.wait()
        left = len(made.store.rows(ALIVE, run=RUN))
        yield Facts(kept, alone, asked, ended, left, made.store)
    if request.session.testsfailed == failures:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_short_cut_costs_nothing(facts: Facts) -> None:
    assert facts.kept


def test_the_run_goes_on_without_a_host_that_is_cut_off(facts: Facts) -> None:
    assert facts.steps_alone > SOME_STEPS


def test_each_loss_and_the_departure_are_said_once(facts: Facts) -> None:
    said = facts.ended.stderr
    assert said.count("restarting it: Ray has lost it on beta") == 2, said
    assert said.count("beta is about to leave the cluster in") == 1, said


def test_a_command_on_another_host_stops_it(facts: Facts) -> None:
    assert facts.asked.code == 0, facts.asked.stderr
    assert facts.ended.code == 0, facts.ended.stderr
    assert facts.left == 0


def test_its_history_is_whole(facts: Facts) -> None:
    check_history(facts.store, RUN)
