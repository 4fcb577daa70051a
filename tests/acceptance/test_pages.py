"""Pages of docs/start are walked with few steps; what they leave answers every query that a page shows."""

import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest

from tests.acceptance.command import COMMAND, Store, new_store
from tests.support.documents import ROOT, of_page, sql

START = ROOT / "docs" / "start"
NUM_STEPS = 4
MAX_SECONDS = 600  # for a command; a quiet machine takes fifteen
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * MAX_SECONDS)]

WALKED = {  # the runs that a page makes
    "tasks-and-rewards.md": ["larger"],
    "preferences.md": ["sorted-dpo"],
    "agent.md": ["guess"],
    "environment.md": ["lake"],
}


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store in which everything that the pages say was done."""
    with new_store(server, template, tmp_path_factory.mktemp("pages")) as store:
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(walk, store), WALKED))
        yield store


def walk(store: Store, page: str) -> None:
    """Write the files of a page and give its commands, with few steps."""
    environment = store.environment | {"PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"}
    for block in of_page(START / page):
        if block.file:
            text = re.sub(r"\bsteps: \d+", f"steps: {NUM_STEPS}", block.text)
            (store.folder / block.file).write_text(re.sub(r"\bepochs: \d+", "epochs: 1", text))
        elif block.language == "sh" and block.reason is None:
            ended = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                cwd=store.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=MAX_SECONDS,
            )
            assert ended.returncode == 0, f"{block}: {ended.stderr}"


@pytest.mark.parametrize("run", [run for runs in WALKED.values() for run in runs])
def test_what_a_page_starts_ends_well(store: Store, run: str) -> None:
    assert store.value("SELECT state::text FROM run WHERE name = %(run)s", run=run) == "finished"
    assert (
        store.value("SELECT count(*) FROM batch_view WHERE run = %(run)s AND state = 'committed'", run=run)
        >= NUM_STEPS
    )


def test_the_agent_of_the_page_took_several_steps(store: Store) -> None:
    assert store.value("SELECT max(step) FROM experience_view WHERE run = 'guess' AND state = 'trained'") == 2


@pytest.fixture(scope="module")
def connection(store: Store) -> Iterator[psycopg.Connection]:
    """Finds tables without their schema, as `trinity-db sql` does."""
    with psycopg.connect(store.url, autocommit=True, options="-c search_path=trinity") as connection:
        yield connection


@pytest.mark.parametrize(("place", "statements"), sql(), ids=[place for place, _ in sql()])
def test_the_sql_that_a_page_shows_is_carried_out(
    connection: psycopg.Connection, place: str, statements: list[str]
) -> None:
    with connection.transaction(force_rollback=True):
        answers = [connection.execute(statement.encode()).statusmessage for statement in statements]
    assert answers, "the page shows no statement"
    assert None not in answers, "one of them asks nothing"
