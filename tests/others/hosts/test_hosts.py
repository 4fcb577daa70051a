"""A run over two hosts whose network fails, whose power fails, and whose clock is wrong.

It ends with the promises that hold after any disturbance, asked of the store in SQL. `make hosts` runs this.
"""

import shutil
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.aftermath import Aftermath
from tests.chaos.driver import COMMITTED
from tests.chaos.promises import *  # noqa: F403  they are tests here too
from tests.others.hosts.host import what_is_missing
from tests.others.hosts.rehearsal import Rehearsal, rehearsal
from tests.support.postgres import new_home
from trinity_db.worker.service import LEASE_SECONDS

# The fixture bounds each of its waits itself.
pytestmark = pytest.mark.timeout(300, func_only=True)

SEED = 7
SOME_BATCHES = 8
DELAY_SECONDS, LOSS = 0.03, 0.02  # in each direction
SHORT_CUT_SECONDS = 10.0  # the leases outlive it
LONG_CUT_SECONDS = LEASE_SECONDS + 15.0
HOUR = 3600

ASKS_LONG = "SELECT pg_sleep(3600)"
REFUSED = "SELECT count(*) FROM rollout WHERE state = 'refused'"
MADE_BY_ANOTHER = """
SELECT count(*) FROM rollout r JOIN rollout o USING (group_id, ordinal)
JOIN worker w ON w.id = r.worker_id JOIN worker v ON v.id = o.worker_id
WHERE r.state = 'refused' AND w.host = 'beta' AND o.state IN ('finished', 'failed') AND v.host = 'alpha'
"""
TIMES = """
SELECT table_name, column_name
FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
WHERE (table_name, column_name) NOT IN (('rollout', 'started_at'), ('rollout', 'finished_at'))
  AND table_schema = 'trinity' AND table_type = 'BASE TABLE' AND data_type = 'timestamp with time zone'
"""


def slow_and_lossy(run: Rehearsal) -> None:
    """Every packet is late, and some never come."""
    before = taken_for_gone(run)
    for what, delay, loss in (("with delay and loss", DELAY_SECONDS, LOSS), ("on a good network", 0.0, 0.0)):
        for name in ("alpha", "beta"):
            run.hosts[name].line.spoil(delay, loss)
        began = time.monotonic()
        run.driver.settle(SOME_BATCHES)
        run.note(f"a step {what}", (time.monotonic() - began) / SOME_BATCHES)
    assert taken_for_gone(run) == before


def short_cut(run: Rehearsal) -> None:
    """Beta is cut off for less than its lease, and loses nothing."""
    before = taken_for_gone(run)
    run.cut_in_hand("beta")
    threading.Event().wait(SHORT_CUT_SECONDS)
    heal(run)
    assert taken_for_gone(run) == before


def partition(run: Rehearsal) -> None:
    """Beta is cut off for longer than its lease. Alpha takes its rows; its late writes change nothing."""
    command = run.stores["beta"].start("sql", "--write", "--timeout", "3600", ASKS_LONG)
    run.store.wait_for("SELECT count(*) = 1 FROM pg_stat_activity WHERE query = %(asked)s", asked=ASKS_LONG)
    run.cut_in_hand("beta")
    cut_at = time.time()
    taken(run, cut_at)
    threading.Event().wait(max(0.0, cut_at + LONG_CUT_SECONDS - time.time()))
    assert not command.running, "a command waits for an answer that never comes"
    assert command.wait().code == 1
    heal(run)
    assert run.store.value(REFUSED) > 0
    assert run.store.value(MADE_BY_ANOTHER) > 0


def power_failure(run: Rehearsal) -> None:
    """Beta dies with all that it has in hand. Alpha takes that, and beta boots again."""
    run.cut_in_hand("beta")
    died_at = time.time()
    run.die("beta")
    taken(run, died_at)
    run.boot("beta")
    run.crew.refill()
    booted_at, last = time.time(), run.last_rollout()
    run.time_until(lambda: run.has_stored("beta", last), "from the boot to rollouts", booted_at)


def wrong_clock(run: Rehearsal) -> None:
    """Beta's clock is an hour ahead, and then an hour behind, for the rest of the run."""
    before = taken_for_gone(run)
    for seconds in (HOUR, -HOUR):
        run.clock.set(seconds)
        run.driver.settle(SOME_BATCHES)
        refused = run.stores["beta"].run("train", run.crew.config, **run.crew.environment)
        assert (refused.code, "has a train worker already" in refused.stderr) == (1, True), refused
    assert taken_for_gone(run) == before


def trainer_moves(run: Rehearsal) -> None:
    """The trainer dies on alpha, and another one takes its place on beta, whose clock is still wrong."""
    for place, member in enumerate(run.crew.places):
        if member.role == "train":
            run.crew.seats[place] = ("train", run.stores["beta"])
            member.kill()
    run.driver.settle(SOME_BATCHES)


def heal(run: Rehearsal) -> None:
    """Beta goes on by itself: with the processes that it had."""
    before = [member.process.pid for member in run.members("beta")]
    healed_at, last = time.time(), run.last_rollout()
    run.hosts["beta"].line.heal()
    run.time_until(lambda: run.has_stored("beta", last), "from the heal to rollouts", healed_at)
    run.driver.settle(SOME_BATCHES)
    assert [member.process.pid for member in run.members("beta")] == before


def taken(run: Rehearsal, since: float) -> None:
    """Wait until alpha has what beta holds, and has gone on alone."""
    run.time_until(lambda: not run.held("beta"), "until its rows are given back", since)
    before = run.store.value(COMMITTED)
    run.store.wait_for(f"SELECT ({COMMITTED}) >= %(count)s", count=before + SOME_BATCHES)


def taken_for_gone(run: Rehearsal) -> tuple[int, ...]:
    """How many workers lost their place so far, and how many of their late results were refused."""
    questions = (
        "SELECT count(*) FROM worker WHERE stopped_at IS NOT NULL",
        REFUSED,
        "SELECT count(*) FROM processing WHERE outcome = 'refused'",
    )
    return tuple(run.store.value(question) for question in questions)


STAGES = (wrong_clock, slow_and_lossy, short_cut, partition, power_failure, trainer_moves)


@pytest.fixture(scope="module")
def after(request: pytest.FixtureRequest, figures: dict[str, float]) -> Iterator[Aftermath]:
    """The run, after all stages."""
    if reason := what_is_missing():
        pytest.skip(reason)
    failures, folder = request.session.testsfailed, new_home()
    print(f"What the processes say, the journal and the store are in {folder}")
    with rehearsal(folder, SEED) as run:
        run.figures = figures
        for stage in STAGES:
            run.stage = stage.__name__.replace("_", " ")
            run.driver.say(run.stage)
            stage(run)
        yield run.after()
    if request.session.testsfailed == failures:
        shutil.rmtree(folder, ignore_errors=True)


def test_both_hosts_took_part(after: Aftermath) -> None:
    made = after.store.rows(
        "SELECT w.host, count(*) FROM rollout r JOIN worker w ON w.id = r.worker_id GROUP BY w.host"
    )
    assert {row["host"] for row in made} == {"alpha", "beta"}
    assert all(row["count"] > SOME_BATCHES for row in made), made


def test_every_time_but_those_of_attempts_is_the_servers(after: Aftermath) -> None:
    """Whatever a host's clock says. An hour is far from what a rehearsal takes."""
    columns = after.store.rows(TIMES)
    assert columns
    for column in columns:
        name, table = column["column_name"], column["table_name"]
        distance = f'abs(extract(epoch FROM now() - "{name}"))'
        odd = after.store.rows(f'SELECT "{name}" AS at FROM "{table}" WHERE {distance} > {HOUR / 2}')
        assert odd == [], f"{table}.{name}"
