"""One run through all that can happen to its processes, as a story: each fixture is a chapter.

A chapter goes on where the one before ended, and the store is asked after it; at the end, whether the run
is as if nothing had happened.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.command import Ended, Process, Store, new_store, reversals, reversing
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

STEPS, BATCH_SIZE = 80, 4
RUN = reversing(
    STEPS, BATCH_SIZE, checkpoint_every=3
)  # so most versions have none, and a crash withdraws them
COMMITTED = "SELECT count(*) FROM batch WHERE state = 'committed'"
COMMITTED_REACHED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"
HELD = """
SELECT (SELECT count(*) FROM experience WHERE worker_id = ANY(%(workers)s))
     + (SELECT count(*) FROM rollout_group WHERE worker_id = ANY(%(workers)s))
     + (SELECT count(*) FROM batch WHERE state = 'leased' AND worker_id = ANY(%(workers)s))
"""
RUNNING = "SELECT array_agg(id ORDER BY id) FROM worker WHERE stopped_at IS NULL"
PID = "SELECT pid FROM worker WHERE role::text = %(role)s AND stopped_at IS NULL ORDER BY id DESC LIMIT 1"
CUT_CONNECTIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
ALL_WORKERS = "SELECT array_agg(id) FROM worker"


class Alone(NamedTuple):
    """Roles that were started one by one and stopped by a signal."""

    trainer: Ended
    explorer: Ended
    second_trainer: Ended


class Survivor(NamedTuple):
    """A supervised run whose roles were each killed once."""

    process: Process
    killed: dict[str, int]
    """The workers that were killed, by role."""


class Resumed(NamedTuple):
    """A run that went on from a damaged checkpoint, and whose supervisor was killed then."""

    damaged_version: int
    log: str


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("crashes")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


@pytest.fixture(scope="module")
def config(store: Store) -> Path:
    return store.config("crashes", **RUN)


@pytest.fixture(scope="module")
def alone(store: Store, config: Path, terminal: None) -> Alone:
    """Chapter 1: without processors nothing can be trained; trainer and explorer wait, and are stopped."""
    trainer, explorer = store.start("train", config), store.start("explore", config)
    store.wait_for("SELECT count(*) > 0 FROM rollout", trainer, explorer)
    second = store.run("train", config)
    trainer.signal(signal.SIGTERM)
    for _ in range(2):  # a terminal that closes may say so twice
        explorer.signal(signal.SIGHUP)
    return Alone(trainer.wait(), explorer.wait(), second)


@pytest.fixture(scope="module")
def survivor(store: Store, config: Path, alone: Alone) -> Survivor:
    """Chapter 2: a supervised run, whose roles are each killed once."""
    process = store.start("run", config)
    killed: dict[str, int] = {}
    for steps, role in ((2, "explore"), (5, "process"), (8, "train")):
        store.wait_for(COMMITTED_REACHED, process, steps=steps)
        killed[role] = _kill(store, role)
    store.wait_for(COMMITTED_REACHED, process, steps=store.value(COMMITTED) + 3)
    return Survivor(process, killed)


@pytest.fixture(scope="module")
def workers_around_cuts(store: Store, survivor: Survivor) -> tuple[list[int], list[int]]:
    """Chapter 3: the database cuts every connection, again and again; who worked before and after it."""
    before = store.value(RUNNING)
    for _ in range(3):
        store.value(CUT_CONNECTIONS)
        store.wait_for(COMMITTED_REACHED, survivor.process, steps=store.value(COMMITTED) + 2)
    return before, store.value(RUNNING)


@pytest.fixture(scope="module")
def interrupted(survivor: Survivor, workers_around_cuts: tuple[list[int], list[int]]) -> Ended:
    """Chapter 4: Ctrl-C."""
    survivor.process.signal(signal.SIGINT)
    return survivor.process.wait(timeout=30)


@pytest.fixture(scope="module")
def hurried(store: Store, config: Path, interrupted: Ended) -> Ended:
    """Chapter 5: the run goes on and gets two signals."""
    process = store.start("run", config)
    store.wait_for(COMMITTED_REACHED, process, steps=store.value(COMMITTED) + 2)
    for role in ("explore", "process", "train"):
        # Frozen, or it could be gone before the second signal.
        os.kill(store.value(PID, role=role), signal.SIGSTOP)
    process.signal(signal.SIGTERM)
    wait_until(lambda: "repeat to kill" in process.errors, "the first signal arrives")
    process.signal(signal.SIGTERM)
    return process.wait(timeout=10)


@pytest.fixture(scope="module")
def resumed(store: Store, config: Path, hurried: Ended) -> Resumed:
    """Chapter 6: the latest checkpoint is damaged, the run goes on, and its supervisor is killed."""
    (latest,) = store.rows(
        "SELECT version, checkpoint FROM policy_version WHERE resume_from IS NOT NULL"
        " ORDER BY version DESC LIMIT 1"
    )
    os.truncate(Path(latest["checkpoint"]) / "model.safetensors", 100)
    known = max(store.value(ALL_WORKERS))
    process = store.start("run", config)
    # By a new trainer: versions after the damaged checkpoint include batches already.
    included = "SELECT count(*) > 0 FROM batch WHERE worker_id > %(known)s AND included_version IS NOT NULL"
    store.wait_for(included, process, known=known)
    log = process.kill().stderr + store.log("crashes", "train")
    store.wait_for("SELECT count(*) = 0 FROM worker WHERE stopped_at IS NULL")
    return Resumed(latest["version"], log)


@pytest.fixture(scope="module")
def finished(store: Store, config: Path, resumed: Resumed) -> Ended:
    """Chapter 7: the end."""
    return store.run("run", config)


def test_a_second_trainer_is_refused_in_one_line(alone: Alone) -> None:
    assert alone.second_trainer.code == 1
    (line,) = alone.second_trainer.error_lines
    assert line.startswith("error: Run 'crashes' has a train worker already")


def test_a_role_ends_well_at_sigterm(alone: Alone) -> None:
    assert (alone.trainer.code, alone.explorer.code) == (0, 0), alone


def test_roles_that_were_stopped_hold_nothing(store: Store, alone: Alone) -> None:
    workers = store.rows(
        "SELECT role::text, stopped_at IS NOT NULL AS gone FROM worker ORDER BY role LIMIT 2"
    )
    assert workers == [{"role": "explore", "gone": True}, {"role": "train", "gone": True}]


def test_a_killed_role_is_started_again(store: Store, survivor: Survivor) -> None:
    for role, worker in survivor.killed.items():
        statement = "SELECT count(*) FROM worker WHERE role::text = %(role)s AND id > %(worker)s"
        assert store.value(statement, role=role, worker=worker) == 1


def test_what_killed_roles_held_is_given_back(store: Store, survivor: Survivor) -> None:
    assert len(survivor.killed) == 3
    assert store.value(HELD, workers=list(survivor.killed.values())) == 0


def test_an_explorer_that_has_a_withdrawn_version_goes_on_with_later_ones(
    store: Store, survivor: Survivor
) -> None:
    sampled = """
        SELECT count(*) FROM policy_version w
        JOIN experience before ON before.version_max = w.version
        JOIN rollout b ON b.id = before.rollout_id
        JOIN rollout a ON a.worker_id = b.worker_id
        JOIN experience after ON after.rollout_id = a.id AND after.version_min > w.version
        JOIN policy_version p ON p.version = after.version_min AND p.withdrawn_at IS NULL
        WHERE w.withdrawn_at IS NOT NULL
    """
    assert store.value(sampled) > 0


def test_roles_go_on_after_lost_connections(workers_around_cuts: tuple[list[int], list[int]]) -> None:
    before, after = workers_around_cuts
    assert len(before) == 3
    assert after == before


def test_ctrl_c_ends_a_run_well_and_says_how_it_goes_on(interrupted: Ended) -> None:
    assert interrupted.code == 0, interrupted.stderr
    assert interrupted.error_lines == ["Stopped; repeat the command to continue."]


def test_ctrl_c_leaves_no_process_behind(store: Store, interrupted: Ended) -> None:
    workers = store.rows("SELECT pid, role::text, stopped_at IS NOT NULL AS gone FROM worker")
    assert len(workers) == 8
    assert not [worker for worker in workers if is_alive(worker["pid"]) or not worker["gone"]]


def test_ctrl_c_leaves_no_row_behind(store: Store, interrupted: Ended) -> None:
    assert store.value(HELD, workers=store.value(ALL_WORKERS)) == 0
    assert store.value("SELECT count(*) FROM batch WHERE state = 'leased'") == 0
    assert (
        store.value("SELECT count(*) FROM batch WHERE state = 'committed' AND included_version IS NULL") == 0
    )


def test_a_second_signal_ends_a_run_at_once_with_all_its_roles(store: Store, hurried: Ended) -> None:
    assert hurried.code == 128 + signal.SIGTERM, hurried.stderr
    assert hurried.error_lines == []
    wait_until(lambda: not _alive(store), "every role has ended")


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(store: Store, resumed: Resumed) -> None:
    assert f"version {resumed.damaged_version}: its checkpoint at" in resumed.log
    assert "is damaged or missing" in resumed.log
    damaged = "SELECT checkpoint IS NULL FROM policy_version WHERE version = %(version)s"
    assert store.value(damaged, version=resumed.damaged_version)


def test_batches_of_a_damaged_checkpoint_are_reopened(store: Store, resumed: Resumed) -> None:
    included = "SELECT count(*) FROM batch WHERE included_version = %(version)s"
    assert store.value(included, version=resumed.damaged_version) == 0
    assert store.value("SELECT count(*) FROM batch WHERE state = 'reopened'") > 0


def test_roles_end_with_their_supervisor(store: Store, resumed: Resumed) -> None:
    assert store.value(HELD, workers=store.value(ALL_WORKERS)) == 0
    wait_until(lambda: not _alive(store), "every role has ended")


def test_the_run_finishes_after_all(store: Store, finished: Ended) -> None:
    assert finished.code == 0, finished.stderr
    assert store.value("SELECT state::text FROM run") == "finished"


def test_every_step_was_committed_once(store: Store, finished: Ended) -> None:
    steps = store.rows("SELECT step FROM batch WHERE state = 'committed' ORDER BY step")
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert (
        store.value("SELECT count(*) FROM batch WHERE state = 'committed' AND included_version IS NULL") == 0
    )
    assert store.value("SELECT count(*) FROM batch WHERE state = 'leased'") == 0


def test_no_row_was_used_twice(store: Store, finished: Ended) -> None:
    used = store.rows(
        "SELECT e.state::text, e.use_count, count(*) AS batches FROM batch_item i "
        "JOIN batch b ON b.id = i.batch_id JOIN experience e ON e.id = i.experience_id "
        "WHERE b.state = 'committed' GROUP BY e.id"
    )
    assert len(used) >= 2 * STEPS * BATCH_SIZE
    assert {(row["state"], row["use_count"], row["batches"]) for row in used} == {("trained", 1, 1)}


def test_no_draw_was_too_stale(store: Store, finished: Ended) -> None:
    assert store.value("SELECT max(staleness) FROM batch_item") == 1


def test_no_rollout_is_lost_or_there_twice(store: Store, finished: Ended) -> None:
    groups = store.rows(
        """
        SELECT g.state::text, g.expected, g.arrived, g.failed, count(DISTINCT o.ordinal) AS members,
               count(o.id) AS rollouts, count(e.id) AS experiences
        FROM rollout_group g
        LEFT JOIN rollout o ON o.group_id = g.id
        LEFT JOIN experience e ON e.rollout_id = o.id
        GROUP BY g.id
        """
    )
    assert len(groups) >= STEPS * BATCH_SIZE
    for group in groups:
        assert group["members"] == group["rollouts"] == group["experiences"] == group["arrived"]
        assert group["state"] == "open" or group["arrived"] + group["failed"] == group["expected"]


def test_the_states_of_rows_add_up(store: Store, finished: Ended) -> None:
    states = store.rows("SELECT state::text, count(*) AS rows FROM experience GROUP BY state")
    counts = {row["state"]: row["rows"] for row in states}
    assert sum(counts.values()) == store.value("SELECT count(*) FROM rollout WHERE state = 'finished'")
    assert counts["trained"] == store.value(
        "SELECT count(*) FROM batch_item i JOIN batch b ON b.id = i.batch_id WHERE b.state = 'committed'"
    )
    assert counts.get("dropped", 0) + counts.get("expired", 0) == store.value(
        'SELECT count(experience_id) FROM "drop"'
    )
    assert "leased" not in counts
    assert store.value(HELD, workers=store.value(ALL_WORKERS)) == 0


def test_nothing_ended_with_a_traceback(store: Store, finished: Ended) -> None:
    logs = {role: store.log("crashes", role) for role in ("explore", "process", "train")}
    assert not [role for role, log in logs.items() if "Traceback" in log]


def _kill(store: Store, role: str) -> int:
    """Kill the worker of a role as a power cut would; returns its id when another has taken its place."""
    worker = store.rows(
        "SELECT id, pid FROM worker WHERE role::text = %(role)s AND stopped_at IS NULL", role=role
    )[0]
    os.kill(worker["pid"], signal.SIGKILL)
    store.wait_for(
        "SELECT count(*) > 0 FROM worker WHERE role::text = %(role)s AND id > %(id)s", role=role, **worker
    )
    return int(worker["id"])


def _alive(store: Store) -> list[int]:
    return [row["pid"] for row in store.rows("SELECT pid FROM worker") if is_alive(row["pid"])]
