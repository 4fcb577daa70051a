"""`store.trainer` in this process: what a program draws, commits and saves, and which errors it gets."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trinity_db
from tests.support.postgres import execute
from tests.support.rows import Scene, demonstration, import_records, preference
from trinity_db.config import base
from trinity_db.errors import ConfigError, LeaseLost, StoreUpgraded, TrinityError
from trinity_db.run import joining
from trinity_db.run.configuration import RunConfig
from trinity_db.run.train import run_trainer
from trinity_db.schema.states import WorkerRole
from trinity_db.store import replay, runs, stopping, workers
from trinity_db.store.batches import SetBack
from trinity_db.worker.service import LEASE_SECONDS

Open = Callable[..., Scene]

MODEL = {"scratch": {"hidden_size": 8, "layers": 1, "heads": 1, "context": 64}}
USES = """
SELECT e.state::text, e.use_count,
       (SELECT count(*) FROM trinity.batch_item i JOIN trinity.batch b ON b.id = i.batch_id
        WHERE i.experience_id = e.id AND b.state = 'committed'), count(*)
FROM trinity.experience e WHERE e.run_id = %s GROUP BY 1, 2, 3
"""
LEASED = "SELECT count(*) FROM trinity.experience WHERE run_id = %s AND state = 'leased'"
STATE = "SELECT state::text FROM trinity.run WHERE id = %s"
WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%%'
"""
BATCHES = "SELECT step, state::text, included_version FROM trinity.batch WHERE run_id = %s ORDER BY id"
VERSIONS = """
SELECT version, step, resume_from IS NOT NULL, withdrawn_at IS NOT NULL FROM trinity.policy_version
WHERE run_id = %s ORDER BY version
"""


@pytest.fixture
def open_run(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Makes a run that a program trains, with workers that write and process its rollouts."""
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)

    def make(draws: str = "groups", **content: Any) -> Scene:
        config = {
            "name": "sums",
            "model": MODEL,
            "algorithm": {"name": "external", "draws": draws},
            **content,
        }
        database, run = joining.open_run(RunConfig.model_validate(config))
        database.close()
        with scene.database.transaction() as tx:
            explorer = workers.register(tx, run, WorkerRole.EXPLORE)
            processor = workers.register(tx, run, WorkerRole.PROCESS)
        return replace(scene, run=run, explorer=explorer, processor=processor, trainer=0)

    return make


def online(steps: int = 3, batch_size: int = 1, max_staleness: int | None = None) -> dict[str, Any]:
    """Keys of a run that explores."""
    trainer = {"steps": steps, "batch_size": batch_size}
    return {"taskset": "tasks", "max_staleness": max_staleness, "trainer": trainer}


@pytest.fixture
def store(scene: Scene) -> Iterator[trinity_db.Store]:
    with trinity_db.connect(scene.database.url, read_only=False) as store:
        yield store


def save(context: Any) -> Path:
    """Write a file as a program's model or checkpoint."""
    with context as folder:
        (folder / "state.txt").write_text("state")
    return Path(folder)


def drawn(trainer: trinity_db.Trainer) -> trinity_db.Batch:
    batch = trainer.draw(wait=0)
    assert batch is not None
    return batch


def check_draws(scene: Scene) -> None:
    """Every committed batch draws the same rows again."""
    committed = "SELECT id FROM trinity.batch WHERE run_id = %s AND state = 'committed'"
    for batch_id in scene.values(committed, scene.run.id):
        with scene.database.transaction(read_only=True) as tx:
            assert replay.first_difference(tx, replay.find(tx, batch_id)) is None


def test_rows_have_what_the_store_has_and_no_transaction_waits(
    open_run: Open, store: trinity_db.Store
) -> None:
    scene = open_run(**online(batch_size=2))
    with store.trainer("sums") as trainer:
        assert (trainer.step, trainer.version, trainer.resume_folder) == (0, 0, None)
        assert (trainer.model_folder / "config.json").is_file()
        assert (trainer.steps, trainer.temperature, trainer.start_folder) == (3, 1.0, trainer.model_folder)
        assert trainer.draw(wait=0) is None
        scene.make_ready(2, (1.0, 0.0, 0.0))
        batch = drawn(trainer)
        assert (batch.step, len(batch), len(batch[1:3])) == (1, 6, 2)
        assert scene.value(WAITING) == 0
        of_run = store.run("sums").experiences(at=1, arrays=True).to_list()
        for row, stored in zip(batch, of_run, strict=True):
            assert (row.id, row.reward, row.advantage) == (
                stored["id"],
                stored["reward"],
                stored["advantage"],
            )
            assert (row.weight, row.staleness, row.pair_id, row.temperatures) == (1.0, 0, None, None)
            assert row.token_ids.tolist() == stored["token_ids"]
            assert row.action_mask.tolist() == stored["action_mask"]
            assert row.versions is not None
            assert row.versions.tolist() == stored["versions"]
            assert row.logprobs is not None
            assert np.allclose(row.logprobs, stored["logprobs"])
            with pytest.raises(ValueError, match="read-only"):
                row.token_ids[0] = 1
        best = [row.advantage for row in batch if row.reward == 1.0]
        assert best == [pytest.approx(2 / 3 / np.std([1, 0, 0], ddof=1), abs=1e-3)] * 2
        assert batch.commit({"loss": np.float32(0.5)})
        assert not batch.commit()
        assert trainer.step == 1
    assert store.run("sums").metrics().where("name = 'loss'").select("step", "value").to_list() == [
        {"step": 1, "value": 0.5}
    ]


def test_a_batch_that_is_drawn_again_or_given_back_cannot_be_committed(
    open_run: Open, store: trinity_db.Store
) -> None:
    scene = open_run(**online())
    with store.trainer("sums") as trainer:
        scene.make_ready(1)
        first = drawn(trainer)
        second = drawn(trainer)
        assert [row.id for row in first] == [row.id for row in second]
        with pytest.raises(trinity_db.LeaseLost, match=r"given back before.* Stop this program"):
            first.commit()
        first.give_back()
        second.give_back()
        with pytest.raises(LeaseLost, match="given back before"):
            second.commit()
        third = drawn(trainer)
        assert third.commit()
        third.give_back()
        scene.make_ready(1)
        drawn(trainer)
    assert [state for _, state, _ in scene.rows(BATCHES, scene.run.id)] == [
        *("reopened", "reopened", "committed", "reopened")
    ]
    assert scene.value(LEASED, scene.run.id) == 0


def test_rollouts_that_are_too_stale_expire(open_run: Open, store: trinity_db.Store) -> None:
    scene = open_run(**online(steps=9, max_staleness=1))
    with store.trainer("sums") as trainer:
        scene.make_ready(4)
        for _ in range(2):
            drawn(trainer).commit()
            save(trainer.publish())
        assert trainer.draw(wait=0) is None
        [fresh] = scene.make_ready(1, version=1)
        batch = drawn(trainer)
        assert {(row.group_id, row.staleness) for row in batch} == {(fresh, 1)}
        batch.commit()
    expired = "SELECT count(*) FROM trinity.experience WHERE run_id = %s AND state = 'expired'"
    assert scene.value(expired, scene.run.id) == 4
    check_draws(scene)


def test_a_draw_that_would_wait_for_explorers_that_wait_for_a_version_is_refused(
    open_run: Open, store: trinity_db.Store
) -> None:
    keys = online(steps=4, max_staleness=1)
    keys["trainer"]["publish_every"] = 2
    scene = open_run(**keys)
    with store.trainer("sums") as trainer:
        scene.make_ready(4)
        due = [drawn(trainer).commit() and trainer.is_version_due for _ in range(2)]
        assert due == [False, True]
        with pytest.raises(TrinityError, match=r"a version every 2 steps, .* newest is of step 0: publish"):
            trainer.draw()
        save(trainer.checkpoint())
        for _ in range(2):
            drawn(trainer).commit()
        assert trainer.draw() is None, "after the last step explorers need no version"


def test_a_version_or_a_checkpoint_has_whole_steps_only(open_run: Open, store: trinity_db.Store) -> None:
    scene = open_run(**online(steps=4))
    with store.trainer("sums") as trainer:
        scene.make_ready(4)
        for context, title in ((trainer.publish, "version"), (trainer.checkpoint, "checkpoint")):
            with pytest.raises(TrinityError, match=f"Step 0 has a {title} already"), context():
                pass
        batch = drawn(trainer)
        for context, title in ((trainer.publish, "version"), (trainer.checkpoint, "checkpoint")):
            with pytest.raises(TrinityError, match=f"Step 1 is not committed, and the {title}"), context():
                pass
        batch.commit()
        with pytest.raises(TrinityError, match="Nothing was written"), trainer.publish():
            pass
        with pytest.raises(ZeroDivisionError), trainer.checkpoint() as folder:
            (folder / "half").write_text(f"{1 / 0}")
        with pytest.raises(TrinityError, match="begins with 'part-'"), trainer.checkpoint() as folder:
            (folder / "part-0").mkdir()
        home = trainer.model_folder.parent
        assert sorted(path.name for path in home.glob("*-0*")) == ["version-000000"]
        assert (trainer.version, trainer.is_saved) == (0, False)
        save(trainer.publish())
        assert (trainer.version, trainer.is_saved, trainer.resume_folder) == (1, False, None)
        save(trainer.checkpoint())
        assert (trainer.version, trainer.is_saved) == (1, True)
        drawn(trainer).commit()
        save(trainer.checkpoint())
        assert (trainer.version, trainer.resume_folder) == (2, home / "checkpoint-000002")
        assert (home / "version-000002" / "state.txt").samefile(home / "checkpoint-000002" / "state.txt")
    assert scene.rows(VERSIONS, scene.run.id) == [
        *((0, 0, False, False), (1, 1, True, False), (2, 2, True, False))
    ]


def test_old_versions_and_checkpoints_are_deleted(open_run: Open, store: trinity_db.Store) -> None:
    scene = open_run(**online(steps=6))
    with store.trainer("sums") as trainer:
        scene.make_ready(6)
        while (batch := trainer.draw()) is not None:
            batch.commit()
            save(trainer.checkpoint())
        kept = sorted(path.name for path in trainer.model_folder.parent.iterdir() if path.is_dir())
    assert kept == [
        *("checkpoint-000004", "checkpoint-000005", "checkpoint-000006"),
        *("version-000000", "version-000004", "version-000005", "version-000006"),
    ]


def test_a_program_continues_from_the_newest_whole_checkpoint(
    open_run: Open, store: trinity_db.Store, tmp_path: Path
) -> None:
    scene = open_run(**online(steps=3))
    places = tmp_path / "large disk"
    with store.trainer("sums", checkpoints=places) as trainer:
        scene.make_ready(4)
        for _ in range(2):
            drawn(trainer).commit()
            save(trainer.checkpoint())
        drawn(trainer).commit()
    assert scene.value(STATE, scene.run.id) == "active"
    (places / "sums" / "checkpoint-000002" / "state.txt").write_text("damage")
    with store.trainer("sums", checkpoints=places) as trainer:
        assert (trainer.step, trainer.resume_folder) == (1, places / "sums" / "checkpoint-000001")
    (places / "sums" / "checkpoint-000001" / "state.txt").write_text("damage")
    with pytest.raises(TrinityError, match="from_start=True"), store.trainer("sums", checkpoints=places):
        pass
    with store.trainer("sums", checkpoints=places, from_start=True) as trainer:
        assert (trainer.step, trainer.resume_folder) == (0, None)
        while (batch := trainer.draw(wait=0)) is not None:
            batch.commit()
        save(trainer.checkpoint())
    assert scene.value(STATE, scene.run.id) == "finished"
    uses = [(state, uses, commits) for state, uses, commits, _ in scene.rows(USES, scene.run.id)]
    assert sorted(uses) == [("ready", 0, 0), ("trained", 1, 1)]
    with store.trainer("sums", checkpoints=places) as trainer:
        assert trainer.draw() is None


def test_a_trainer_works_in_its_block_only(store: trinity_db.Store) -> None:
    with pytest.raises(TrinityError, match=r"use `with store\.trainer\(run\) as trainer`"):
        store.trainer("sums").draw()


def test_a_run_has_one_trainer_and_one_that_was_replaced_saves_nothing(
    open_run: Open, store: trinity_db.Store
) -> None:
    scene = open_run(**online())
    with suppress(LeaseLost), store.trainer("sums") as trainer:
        scene.make_ready(2)
        with pytest.raises(ConfigError, match="has a train worker already"), store.trainer("sums"):
            pass
        drawn(trainer).commit()
        batch = drawn(trainer)
        execute(scene.database.url, "UPDATE trinity.worker SET stopped_at = now() WHERE role = 'train'")
        with pytest.raises(LeaseLost, match=r"another has its place.* Stop this program"):
            batch.commit()
        batch.give_back()
        with pytest.raises(LeaseLost, match="Stop this program"):
            save(trainer.publish())
    assert scene.rows(VERSIONS, scene.run.id) == [(0, 0, False, False)]
    with store.trainer("sums") as trainer:
        assert trainer.step == 0
        drawn(trainer).commit()


def test_lost_commits_are_noticed_and_their_rows_are_drawn_again(
    open_run: Open, store: trinity_db.Store
) -> None:
    scene = open_run(**online())
    with store.trainer("sums") as trainer:
        scene.make_ready(1)
        drawn(trainer).commit()
        _lose_batches(scene)
        with pytest.raises(trinity_db.SetBack, match="enter it again, and continue from its resume_folder"):
            trainer.draw()
    with store.trainer("sums") as trainer:
        assert trainer.step == 0
        batch = drawn(trainer)
        _lose_batches(scene)
        with pytest.raises(SetBack):
            batch.commit()


def _lose_batches(scene: Scene) -> None:
    """Undo what the server knows of batches, like a failover to a replica that lagged."""
    for statement in (
        "DELETE FROM trinity.batch_item",
        "DELETE FROM trinity.batch",
        "UPDATE trinity.experience SET state = 'ready', use_count = 0, worker_id = NULL",
        "UPDATE trinity.rollout_group SET state = 'ready', use_count = 0, worker_id = NULL",
    ):
        execute(scene.database.url, statement)


def test_a_run_that_is_asked_to_stop_ends_the_loop_and_is_not_finished(
    open_run: Open, store: trinity_db.Store
) -> None:
    scene = open_run(**online())
    with store.trainer("sums") as trainer:
        scene.make_ready(1)
        drawn(trainer).commit()
        with scene.database.transaction() as tx:
            stopping.ask(tx, scene.run, LEASE_SECONDS)
        assert trainer.draw() is None, "after the next heartbeat"
        save(trainer.checkpoint())
    assert scene.value(STATE, scene.run.id) == "active"
    with store.trainer("sums") as trainer:
        assert trainer.step == 1


def test_a_loop_saves_its_steps_before_an_upgrade(open_run: Open, store: trinity_db.Store) -> None:
    scene = open_run(**online())
    trainer = store.trainer("sums").__enter__()
    scene.make_ready(1)
    drawn(trainer).commit()
    trainer._inner.make_room(StoreUpgraded("the store is being upgraded"))
    assert trainer.draw() is None
    save(trainer.checkpoint())
    with pytest.raises(StoreUpgraded):
        trainer.__exit__(None, None, None)
    assert scene.rows(VERSIONS, scene.run.id)[-1] == (1, 1, True, False)
    assert scene.value("SELECT count(*) FROM trinity.worker WHERE role = 'train' AND stopped_at IS NULL") == 1


@pytest.mark.parametrize("draws", ["rows", "pairs", "groups"])
def test_imported_rows_are_drawn_in_passes_until_none_is_left(
    open_run: Open, store: trinity_db.Store, scene: Scene, draws: str
) -> None:
    records = [demonstration(number) if draws == "rows" else preference(number) for number in range(3)]
    if draws == "groups":
        attempts = [
            {"prompt": f"task {number}", "response": str(value), "reward": float(value)}
            for number in range(3)
            for value in (0, 1)
        ]
        store.import_trajectories(attempts, name="set")
    else:
        import_records(scene.database, "set", records)
    adopted = open_run(draws, data=["set"], trainer={"batch_size": 2, "epochs": 2})
    with store.trainer("sums") as trainer:
        sizes = []
        while (batch := trainer.draw()) is not None:
            assert [row.pair_id is None for row in batch] == [draws != "pairs"] * len(batch)
            assert [row.advantage is None for row in batch] == [draws != "groups"] * len(batch)
            sizes.append(len(batch))
            batch.commit()
        assert sizes == [size * (1 if draws == "rows" else 2) for size in (2, 1, 2, 1)]
        save(trainer.checkpoint())
    check_draws(adopted)
    assert adopted.value(STATE, adopted.run.id) == "finished"
    table = "preference" if draws == "pairs" else "experience"
    uses = f"SELECT DISTINCT state::text, use_count FROM trinity.{table} WHERE run_id = %s"
    assert adopted.rows(uses, adopted.run.id) == [("trained", 2)]


def test_a_run_of_another_algorithm_is_refused(scene: Scene, open_run: Open, store: trinity_db.Store) -> None:
    open_run(**online())
    with pytest.raises(ConfigError, match="'run' is no run with algorithm: external"), store.trainer("run"):
        pass
    with pytest.raises(TrinityError, match="did you mean 'sums'"), store.trainer("sum"):
        pass
    with (
        trinity_db.connect(scene.database.url) as reader,
        pytest.raises(TrinityError, match="read_only=False"),
    ):
        reader.trainer("sums")
    with scene.database.transaction() as tx:
        config = RunConfig.model_validate(runs.find(tx, "sums").config, context=base.STORED)
    with pytest.raises(ConfigError, match="is trained by a program of yours"):
        run_trainer(config)
