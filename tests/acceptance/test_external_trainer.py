"""The loops of docs/guides/python.md next to `trinity-db run`: killed, started again, finished."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.acceptance.command import Store, new_store, reversals
from tests.support.documents import ROOT, of_page
from trinity_db.postgres.connection import Database
from trinity_db.store import replay

STEPS, BATCH_SIZE, GROUP_SIZE = 12, 2, 4
RUN: dict[str, Any] = {
    "taskset": "reverse",
    "max_staleness": 1,
    "algorithm": "external",
    "explorer": {"group_size": GROUP_SIZE, "concurrency": 4 * GROUP_SIZE, "max_new_tokens": 4},
    "processors": {"score": ["position_match"]},
    "trainer": {"steps": STEPS, "batch_size": BATCH_SIZE},
}
KILLER = ROOT / "tests" / "support" / "killed_loop.py"
SCRIPT_SECONDS = 900.0  # each start loads torch and transformers, on a busy machine
MOST_LINES = 60

USES = """
SELECT e.state::text AS state, e.use_count, i.commits, count(*) AS rows
FROM experience e
CROSS JOIN LATERAL (SELECT count(*) AS commits FROM batch_item i JOIN batch b ON b.id = i.batch_id
                    WHERE i.experience_id = e.id AND b.state = 'committed') i
WHERE e.use_count > 0 OR i.commits > 0 OR e.state IN ('leased', 'trained')
GROUP BY 1, 2, 3
"""
STATES = "SELECT id, step, state::text AS state, included_version FROM batch ORDER BY id"


@pytest.fixture
def store(server: str, template: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(server, template, tmp_path) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


def written(store: Store, name: str) -> Path:
    """A script of the page, as a file."""
    (text,) = (b.text for b in of_page(ROOT / "docs" / "guides" / "python.md") if b.file == name)
    assert len(text.splitlines()) <= MOST_LINES
    script = store.folder / name
    script.write_text(text)
    return script


@pytest.mark.timeout(4 * SCRIPT_SECONDS)
def test_a_loop_that_is_killed_uses_each_row_once(store: Store) -> None:
    script = written(store, "train.py")
    roles = store.start("run", store.config("sums", **RUN))
    store.wait_for("SELECT count(*) = 1 FROM run", roles)

    died = store.start_python(KILLER, script, "before", str(STEPS)).wait(SCRIPT_SECONDS)
    assert died.code == -signal.SIGKILL, died.stderr
    last = store.rows(STATES)[-1]
    assert (last["step"], last["state"]) == (STEPS, "leased"), "between the draw and the commit"
    died = store.start_python(KILLER, script, "after", str(STEPS - 1)).wait(SCRIPT_SECONDS)
    assert died.code == -signal.SIGKILL, died.stderr
    after = [(row["step"], row["state"]) for row in store.rows(STATES)][STEPS - 2 :]
    assert after[:2] == [(STEPS - 1, "reopened"), (STEPS, "reopened")], "after the checkpoint of step 10"
    assert after[-1] == (STEPS - 1, "committed"), "between the commit and the checkpoint"
    ended = store.start_python(script).wait(SCRIPT_SECONDS)
    assert ended.code == 0, ended.stderr
    assert roles.wait(SCRIPT_SECONDS).code == 0, "the run is finished"

    trained = BATCH_SIZE * STEPS * GROUP_SIZE
    assert store.rows(USES) == [{"state": "trained", "use_count": 1, "commits": 1, "rows": trained}]
    committed = [row for row in store.rows(STATES) if row["state"] == "committed"]
    assert [row["step"] for row in committed] == list(range(1, STEPS + 1))
    newest = "SELECT version, step, resume_from FROM policy_version ORDER BY version DESC LIMIT 1"
    (version,) = store.rows(newest)
    assert (version["step"], version["version"]) == (STEPS, max(row["included_version"] for row in committed))
    optimizer = torch.load(Path(version["resume_from"]) / "optimizer.pt")
    assert {int(state["step"]) for state in optimizer["state"].values()} == {STEPS}, "updates in the weights"
    with closing(Database(store.url)) as database, database.transaction(read_only=True) as tx:
        assert [replay.first_difference(tx, replay.find(tx, row["id"])) for row in committed] == [
            None
        ] * STEPS
    assert store.run("replay", str(committed[-1]["id"]), "--check").code == 0


@pytest.mark.slow
@pytest.mark.timeout(3 * SCRIPT_SECONDS)
def test_a_program_is_the_whole_loop_and_is_killed(store: Store) -> None:
    steps = 4
    script = written(store, "own.py")
    own = {
        "explorer": {"workflow": "external", "group_size": GROUP_SIZE},
        "processors": {},
        "trainer": {"steps": steps, "batch_size": BATCH_SIZE},
    }
    roles = store.start("run", store.config("own", **(RUN | own)))
    store.wait_for("SELECT count(*) = 1 FROM run", roles)
    died = store.start_python(KILLER, script, "after", "2").wait(SCRIPT_SECONDS)
    assert died.code == -signal.SIGKILL, died.stderr
    ended = store.start_python(script).wait(SCRIPT_SECONDS)
    assert ended.code == 0, ended.stderr
    ended = roles.wait(SCRIPT_SECONDS)
    assert (ended.code, "explores and trains run 'own'" in ended.stderr) == (0, True), ended.stderr

    roles_of_workers = "SELECT DISTINCT role::text, count(*) AS workers FROM worker GROUP BY 1 ORDER BY 1"
    assert store.rows(roles_of_workers) == [
        *({"role": "explore", "workers": 2}, {"role": "process", "workers": 1}),
        {"role": "train", "workers": 2},
    ]
    trained = BATCH_SIZE * steps * GROUP_SIZE
    assert store.rows(USES) == [{"state": "trained", "use_count": 1, "commits": 1, "rows": trained}]
    rewards = (
        "SELECT count(DISTINCT source::text || name) AS kinds, min(source::text || name) FROM reward_event"
    )
    assert store.rows(rewards) == [{"kinds": 1, "min": "exploreworkflow"}]
    assert store.value("SELECT count(*) FROM rollout_group WHERE worker_id IS NOT NULL") == 0
    with closing(Database(store.url)) as database, database.transaction(read_only=True) as tx:
        for row in store.rows("SELECT id FROM batch WHERE state = 'committed'"):
            assert replay.first_difference(tx, replay.find(tx, row["id"])) is None
