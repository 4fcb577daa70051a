"""Roles at work while the schema is upgraded, by code that really is another one.

A site is a folder that the code is installed in, one for each machine. The newer code has a migration that
renames a column which every heartbeat reads: old code fails on the new schema, and new code on the old one.
"""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import trinity_db
from tests.acceptance.command import Ended, Process, Store, new_store, reversals, reversing
from tests.support.waiting import wait_until
from trinity_db import schema

NEWER = f"{int(schema.HEAD) + 1:04d}"
COLUMN, RENAMED = "stop_asked_at", "asked_to_stop_at"
MIGRATION = f'''
"""A column has another name."""
from alembic import op

revision, down_revision, branch_labels, depends_on = "{NEWER}", "{schema.HEAD}", None, None


def upgrade() -> None:
    op.alter_column("run", "{COLUMN}", new_column_name="{RENAMED}", schema="trinity")
'''
COMMITTED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"
LIVING = "SELECT count(*) FROM worker WHERE stopped_at IS NULL"
FINISHING = f"{LIVING} AND role IN ('process', 'train')"
WORKERS = "SELECT pid FROM worker WHERE role = 'explore' AND stopped_at IS NULL"
WAITS = "run: trinity-db db upgrade"
VERSION = "SELECT version_num FROM schema_version"


@dataclass(frozen=True)
class Site:
    """What one machine has installed. It changes at once, as a link does."""

    path: Path

    def install(self, code: Path) -> None:
        aside = self.path.with_suffix(".aside")
        aside.symlink_to(code)
        aside.replace(self.path)

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.path)}


class Upgraded(NamedTuple):
    run: Process
    explorer: Process
    given_up: Ended
    """An upgrade that was interrupted while it waited for a frozen explorer."""
    version_then: str
    ended: Ended
    steps: int
    """Those that were committed when the upgrade ended."""


def copied(folder: Path) -> Path:
    """The code of this project, as a wheel would install it."""
    shutil.copytree(
        Path(trinity_db.__file__).parent,
        folder / "trinity_db",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return folder


def renewed(code: Path) -> Path:
    """The same code a version later."""
    package = code / "trinity_db"
    for path in (*package.rglob("*.py"), *package.rglob("*.sql")):
        if "migrations" not in path.parts:
            text = path.read_text(encoding="utf-8")
            path.write_text(re.sub(rf"\b{COLUMN}\b", RENAMED, text), encoding="utf-8")
    head = package / "schema" / "__init__.py"
    head.write_text(head.read_text().replace(f'HEAD = "{schema.HEAD}"', f'HEAD = "{NEWER}"'))
    (package / "schema" / "migrations" / "versions" / f"{NEWER}_renamed.py").write_text(MIGRATION)
    return code


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("upgrade")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return renewed(copied(tmp_path_factory.mktemp("newer")))


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, Site]:
    """Two machines with the older code."""
    older = copied(tmp_path_factory.mktemp("older"))
    one, other = (Site(tmp_path_factory.mktemp("sites") / "site") for _ in range(2))
    one.install(older)
    other.install(older)
    return one, other


@pytest.fixture(scope="module")
def config(store: Store) -> Path:
    return store.config("upgraded", **reversing(steps=100_000, batch_size=4))


@pytest.fixture(scope="module")
def upgraded(store: Store, config: Path, sites: tuple[Site, Site], newer: Path) -> Upgraded:
    """A supervised run on one machine, an explorer on the other, which is frozen during the upgrade."""
    one, other = sites
    run = store.start("run", config, **one.environment)
    explorer = store.start("explore", config, **other.environment)
    store.wait_for(COMMITTED, run, explorer, steps=3)
    store.wait_for(f"SELECT ({LIVING}) = 4", run, explorer)
    one.install(newer)
    (explores,) = store.rows(f"{WORKERS} AND pid <> %(pid)s", pid=explorer.pid)
    os.kill(explores["pid"], signal.SIGKILL)
    wait_until(
        lambda: WAITS in store.log("upgraded", "explore"), "its successor has the newer code, and waits"
    )
    explorer.signal(signal.SIGSTOP)
    waiting = store.start("db", "upgrade", **one.environment)
    # It still waits for the frozen one, whose lease is 30 s.
    store.wait_for(f"SELECT ({FINISHING}) = 0", run, waiting)
    waiting.signal(signal.SIGINT)
    given_up = waiting.wait()
    version_then = store.value(VERSION)
    wait_until(lambda: WAITS in run.errors, "the new code waits for its schema")
    ended = store.run("db", "upgrade", **one.environment)
    steps = store.value("SELECT count(*) FROM batch WHERE state = 'committed'")
    return Upgraded(run, explorer, given_up, version_then, ended, steps)


@pytest.fixture(scope="module")
def returned(store: Store, sites: tuple[Site, Site], newer: Path, upgraded: Upgraded) -> str:
    """The frozen explorer thaws, waits for the newer code, and joins again. What it has said by then."""
    upgraded.explorer.signal(signal.SIGCONT)
    wait_until(lambda: f"schema is {NEWER}, newer" in upgraded.explorer.errors, "it waits for newer code")
    sites[1].install(newer)
    store.wait_for(
        "SELECT count(*) = 1 FROM worker WHERE pid = %(pid)s AND stopped_at IS NULL",
        *(upgraded.run, upgraded.explorer),
        pid=upgraded.explorer.pid,
    )
    return upgraded.explorer.errors


@pytest.fixture(scope="module")
def stopped(store: Store, sites: tuple[Site, Site], upgraded: Upgraded, returned: str) -> tuple[Ended, Ended]:
    """All roles are stopped by the store when the run has made steps with the newer code."""
    store.wait_for(COMMITTED, upgraded.run, upgraded.explorer, steps=upgraded.steps + 3)
    assert store.run("stop", "upgraded", **sites[0].environment).code == 0
    return upgraded.run.wait(), upgraded.explorer.wait()


def test_an_upgrade_waits_for_roles_and_names_them(upgraded: Upgraded) -> None:
    assert upgraded.ended.code == 0, upgraded.ended.stderr
    first, *_ = upgraded.given_up.stderr.splitlines()
    assert all(f"{role} of run 'upgraded'" in first for role in ("explore", "process", "train"))


def test_a_role_that_meets_the_older_schema_waits_and_is_no_quick_death(
    store: Store, upgraded: Upgraded
) -> None:
    assert upgraded.run.errors.count("explore ended with code") == 1, upgraded.run.errors


def test_an_upgrade_that_is_given_up_leaves_the_store_as_it_was(upgraded: Upgraded) -> None:
    assert upgraded.given_up.code != 0
    assert "Traceback" not in upgraded.given_up.stderr
    assert upgraded.version_then == schema.HEAD


def test_the_run_goes_on_in_the_same_process_with_the_newer_code(
    store: Store, upgraded: Upgraded, stopped: tuple[Ended, Ended]
) -> None:
    assert store.value(VERSION) == NEWER
    run, explorer = stopped
    assert (run.code, explorer.code) == (0, 0), (run.stderr, explorer.stderr)
    assert "this command restarts" in run.stderr
    roles = "".join(store.log("upgraded", role) for role in ("explore", "process", "train"))
    assert "Traceback" not in run.stderr + roles


def test_a_process_that_slept_through_the_upgrade_comes_back(returned: str) -> None:
    assert returned.count("this command restarts") == 1


def test_nothing_is_lost_or_used_twice(store: Store, stopped: tuple[Ended, Ended]) -> None:
    steps = store.rows("SELECT step, state::text FROM batch ORDER BY step")
    assert steps == [{"step": step, "state": "committed"} for step in range(1, len(steps) + 1)]
    used = store.rows(
        "SELECT e.state::text, e.use_count, count(*) AS batches FROM batch_item i"
        " JOIN experience e ON e.id = i.experience_id GROUP BY e.id"
    )
    assert {(row["state"], row["use_count"], row["batches"]) for row in used} == {("trained", 1, 1)}
