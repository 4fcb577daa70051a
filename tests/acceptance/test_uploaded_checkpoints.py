"""A trainer dies with its machine, and another machine goes on from what the object store has.

Before that the object store is away while the trainer is told to stop.
"""

import re
import shutil
import signal
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals, reversing
from tests.support.object_store import new_object_store

RUN, STEPS, BATCH_SIZE = "moved", 32, 4
UPLOADED = "SELECT count(*) >= %(count)s FROM policy_version WHERE resume_address IS NOT NULL"
STOP_SECONDS = 60.0  # a supervisor kills a role after so long
COMMITTED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"


class Moved(NamedTuple):
    """How the roles ended, and the store at the time at which the first machine was lost."""

    stopped: Ended
    """The first trainer."""
    trainer: Ended
    explorer: Ended
    processor: Ended
    uploaded: int
    """The newest version whose checkpoint was uploaded."""
    published: int


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("moved")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


@pytest.fixture(scope="module")
def moved(store: Store) -> Iterator[Moved]:
    content = reversing(STEPS, BATCH_SIZE, explored=4, checkpoint_every=1)
    with new_object_store() as objects:
        content["trainer"] |= {"weights": objects.address}
        config = store.config(RUN, **content)
        trainer = store.start("train", config, **objects.environment)
        home = {"TRINITY_DB_HOME": str(store.folder / "home-of-the-explorer")}
        explorer = store.start("explore", config, **objects.environment, **home)
        processor = store.start("process", config)
        store.wait_for(COMMITTED, trainer, explorer, processor, steps=4)
        objects.go_away()
        trainer.signal(signal.SIGTERM)
        stopped = trainer.wait(STOP_SECONDS)
        objects.come_back()
        trainer = store.start("train", config, **objects.environment)
        store.wait_for(UPLOADED, trainer, explorer, processor, count=2)
        store.wait_for(COMMITTED, trainer, explorer, processor, steps=12)
        trainer.kill()
        shutil.rmtree(store.home / "checkpoints")
        newest = "SELECT max(version) FROM policy_version WHERE resume_address IS NOT NULL"
        uploaded, published = store.value(newest), store.value("SELECT max(version) FROM policy_version")
        assert store.value("SELECT count(*) < %(steps)s FROM batch WHERE state = 'committed'", steps=STEPS)
        home = {"TRINITY_DB_HOME": str(store.folder / "home-of-another-machine")}
        trainer = store.start("train", config, **objects.environment, **home)
        yield Moved(stopped, trainer.wait(), explorer.wait(), processor.wait(), uploaded, published)


def test_every_role_ends_with_the_run(moved: Moved, store: Store) -> None:
    for ended in moved[1:4]:
        assert (ended.code, ended.error_lines) == (0, [])
    assert store.value("SELECT state::text FROM run WHERE kind = 'train'") == "finished"


def test_a_trainer_that_is_told_to_stop_gives_the_object_store_up(moved: Moved) -> None:
    assert (moved.stopped.code, moved.stopped.error_lines) == (0, [])
    assert "is not uploaded" in moved.stopped.stderr


def test_it_went_on_from_the_newest_checkpoint_that_was_uploaded(moved: Moved, store: Store) -> None:
    fetched = re.findall(r"fetching s3://\S+/checkpoint-(\d+)", moved.trainer.stderr)
    assert list(map(int, fetched)) == [moved.uploaded]
    withdrawn = store.rows(
        "SELECT version FROM policy_version WHERE withdrawn_at IS NOT NULL ORDER BY version"
    )
    assert [row["version"] for row in withdrawn] == list(range(moved.uploaded + 1, moved.published + 1))
    assert not (store.home / "checkpoints").exists()


@pytest.mark.usefixtures("moved")
def test_each_step_was_committed_once_and_each_row_used_once(store: Store) -> None:
    steps = store.rows("SELECT step FROM batch WHERE state = 'committed' ORDER BY step")
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    uses = store.rows(
        """
        SELECT DISTINCT e.use_count, u.uses
        FROM experience e
        JOIN LATERAL (SELECT count(*) AS uses FROM batch_item i JOIN batch b ON b.id = i.batch_id
                      WHERE i.experience_id = e.id AND b.state = 'committed') u ON true
        WHERE e.state = 'trained'
        """
    )
    assert uses == [{"use_count": 1, "uses": 1}]
    assert store.value("SELECT count(*) FROM experience WHERE state <> 'trained' AND use_count > 0") == 0


@pytest.mark.usefixtures("moved")
def test_each_step_is_in_a_version_of_the_runs_line(store: Store) -> None:
    lost = """
        SELECT count(*) FROM batch b LEFT JOIN policy_version p
            ON p.run_id = b.run_id AND p.version = b.included_version AND p.withdrawn_at IS NULL
        WHERE b.state = 'committed' AND p.version IS NULL
    """
    assert store.value(lost) == 0
    assert store.value("SELECT count(*) FROM experience WHERE state = 'leased'") == 0


@pytest.mark.usefixtures("moved")
def test_the_last_checkpoint_is_in_the_object_store(store: Store) -> None:
    last = "SELECT resume_address IS NOT NULL FROM policy_version ORDER BY version DESC LIMIT 1"
    assert store.value(last) is True
