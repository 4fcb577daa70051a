"""A server that loses commits which it had acknowledged, as after a failover to a replica that was behind.

The server is stopped and its data are put back to what they were some steps before.
"""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.bench import Bench
from tests.support.postgres import cluster_18, discard, start
from tests.support.rows import Scene
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.postgres.connection import Database
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.postgres.opening import upgrade
from trinity_db.trainer.checkpoints.recovery import Allowed
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner
from trinity_db.trainer.service import Trainer

pytestmark = pytest.mark.usefixtures("written_at_once")

SETBACKS = """
SELECT known_version, known_step, last_step, num_rows, first_version, last_version, resumed_version,
       adopted_version
FROM trinity.setback WHERE run_id = %s ORDER BY id
"""
VERSIONS = """
SELECT version, step FROM trinity.policy_version WHERE run_id = %s AND checkpoint IS NOT NULL ORDER BY version
"""
COMMITTED = "SELECT step FROM trinity.batch WHERE run_id = %s AND state = 'committed' ORDER BY step"
USES = """
SELECT e.use_count = (SELECT count(*) FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
                      WHERE i.experience_id = e.id AND b.state = 'committed'), count(*)
FROM trinity.experience e WHERE e.run_id = %s GROUP BY 1
"""


class Forgetful:
    """A server that can be set back, and trainers on it."""

    def __init__(self, cluster: Cluster, database: Database, bench: Bench) -> None:
        self._cluster = cluster
        self.database = database
        self.bench = bench
        self._kept = cluster.home / "kept"

    def remember(self) -> None:
        """Keep what the server knows now."""
        self._cluster.stop()
        shutil.copytree(self._cluster.data, self._kept)
        self._cluster.ensure_running()

    def forget(self) -> None:
        """Lose all that came after."""
        self._cluster.stop()
        shutil.rmtree(self._cluster.data)
        self._kept.rename(self._cluster.data)
        self._cluster.ensure_running()

    def train(self, trainer: Trainer, steps: int) -> None:
        """Work so many times, over lost connections."""
        for _ in range(steps):
            assert self.database.retry(trainer.work)

    def train_and_forget(self, trainer: Trainer, kept: int, lost: int, *, published: bool) -> None:
        """Take steps that the server keeps, then steps that it loses; published: each with a last version."""
        trainer.start()
        for steps, then in ((kept, self.remember), (lost, self.forget)):
            self.train(trainer, steps)
            if published:
                trainer.release()
            then()


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Forgetful]:
    cluster = cluster_18()
    try:
        start(cluster)
        upgrade(cluster.url())
        with closing(Database(cluster.url())) as database:
            yield Forgetful(cluster, database, Bench(Scene.open(database), tmp_path / "checkpoints"))
    finally:
        discard(cluster)


def test_a_trainer_goes_back_to_what_the_store_still_knows(
    forgetful: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    bench = forgetful.bench
    trainer = bench.trainer(publish_every=100)
    forgetful.train_and_forget(trainer, kept=1, lost=2, published=False)
    assert forgetful.database.retry(trainer.work)
    assert bench.rows(SETBACKS) == [(0, 1, 3, 4, None, None, 0, None)]
    assert "the server has lost steps 2 to 3 (4 rows): resuming from version 0, step 0" in caplog.text
    assert bench.rows(COMMITTED) == [], "no checkpoint includes the step that it knew"
    forgetful.train(trainer, 8)
    assert not trainer.work()
    assert trainer.is_done()
    assert bench.rows(COMMITTED) == [(step,) for step in range(1, 9)]
    assert bench.rows(USES) == [(True, 8)]
    assert bench.rows("SELECT DISTINCT use_count FROM trinity.experience WHERE run_id = %s") == [(2,)]


def test_a_draw_that_the_server_forgot_is_not_said_to_be_another_trainers(
    forgetful: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = forgetful.bench
    trainer = bench.trainer(publish_every=100)
    trainer.start()
    forgetful.remember()
    learn = Learner.step

    def interrupted(learner: Learner, batch: Batch) -> dict[str, float]:
        forgetful.forget()
        monkeypatch.undo()
        return learn(learner, batch)

    monkeypatch.setattr(Learner, "step", interrupted)
    assert forgetful.database.retry(trainer.work)
    assert bench.rows(SETBACKS) == [(0, 0, 1, 2, None, None, 0, None)]
    forgetful.train(trainer, 1)
    assert bench.rows(COMMITTED) == [(1,)]


def test_checkpoints_that_the_server_forgot_are_kept_and_offered(
    forgetful: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    bench = forgetful.bench
    trainer = bench.trainer(publish_every=1, keep=9)
    trainer.start()
    forgetful.train(trainer, 3)
    forgetful.remember()
    forgetful.train(trainer, 3)
    trainer.release()
    forgetful.forget()
    assert forgetful.database.retry(trainer.work)
    assert bench.rows(SETBACKS) == [(2, 3, 6, 6, 3, 6, 2, None)]
    assert "versions 3 to 6: resuming from version 2, step 2" in caplog.text
    assert "to resume from the newest instead, start once with --from-version 6" in caplog.text
    later = [f"version-{number:06d}.later" for number in range(3, 7)]
    assert bench.folders() == ["version-000000", "version-000001", "version-000002", *later]
    forgetful.train(trainer, 2)
    assert bench.rows(VERSIONS) == [(0, 0), (1, 1), (2, 2), (7, 3)], "no number is used twice"
    bench.trainer(keep=9).start()
    assert set(later) < set(bench.folders()), "nothing removes them"
    assert len(bench.rows(SETBACKS)) == 1


def test_a_run_can_go_on_from_a_checkpoint_that_the_server_forgot(
    forgetful: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    bench = forgetful.bench
    trainer = bench.trainer(publish_every=1)
    forgetful.train_and_forget(trainer, kept=1, lost=5, published=True)  # the files of version 1 are pruned
    weights = (bench.checkpoints / "version-000006" / "model.safetensors").read_bytes()
    forgetful.database.close()
    trainer = bench.trainer()  # as after a crash: nothing in memory tells
    asked = (
        r"none of its checkpoints is whole \(version 1\) and the server has lost steps 2 to 6 and versions 2 "
        r"to 6; restore one of them, or resume from .* --from-version 6 .*, or train again .* --from-start"
    )
    for _ in range(2):
        with pytest.raises(TrinityError, match=asked):
            forgetful.database.retry(trainer.start)
    assert bench.rows(VERSIONS) == [(0, 0), (1, 1)]
    assert bench.rows(SETBACKS) == []
    with pytest.raises(ConfigError, match=r"--from-version 3 .*: .* has no whole checkpoint of a"):
        bench.trainer(allowed=Allowed(from_version=3)).start()
    trainer = bench.trainer(allowed=Allowed(from_version=6), publish_every=1)
    trainer.start()
    assert "resuming from the lost version 6 as version 7, step 6" in caplog.text
    assert bench.rows(VERSIONS) == [(0, 0), (1, 1), (7, 6)]
    assert bench.rows(SETBACKS) == [(1, 1, 6, None, 2, 6, 7, 6)]
    assert (bench.checkpoints / "version-000007" / "model.safetensors").read_bytes() == weights
    forgetful.train(trainer, 1)
    trainer.release()
    assert bench.rows(COMMITTED) == [(1,), (7,)]
    assert bench.rows(VERSIONS)[-1] == (8, 7)
    again = bench.trainer(allowed=Allowed(from_version=6))
    again.start()  # it was done before
    assert bench.rows(VERSIONS)[-1] == (8, 7)


def test_a_run_that_went_on_can_still_go_on_from_the_lost_checkpoint(forgetful: Forgetful) -> None:
    bench = forgetful.bench
    trainer = bench.trainer(publish_every=1, keep=9)
    forgetful.train_and_forget(trainer, kept=1, lost=2, published=True)
    forgetful.train(trainer, 3)  # goes back to version 1, and makes steps 2 and 3 again
    trainer.release()
    assert bench.rows(COMMITTED) == [(1,), (2,), (3,)]
    bench.trainer(allowed=Allowed(from_version=3), keep=9).start()
    assert bench.rows(COMMITTED) == [(1,)], "the steps that were made instead are taken back"
    assert bench.rows(VERSIONS) == [(0, 0), (1, 1), (6, 3)]
    assert bench.rows(SETBACKS) == [(1, 1, 3, 4, 2, 3, 6, 3)]
    assert bench.rows(USES) == [(True, 8)]
