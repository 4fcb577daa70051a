"""KTO in a trainer of this process, over responses with labels as they are imported from a file."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import setup_of
from tests.support.recipes import recipe
from tests.support.replays import differences
from tests.support.rows import Scene, import_records, preference, trajectory
from trinity_db.data.files.readers import open_rows
from trinity_db.data.importer import import_rows
from trinity_db.data.records.columns import Columns
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.schema.states import WorkerRole
from trinity_db.store import adoption, rewards, runs, workers
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.service import Trainer

KTO = recipe("kto", beta=0.5)
METRICS = "SELECT name, step, value FROM trinity.metric WHERE run_id = %s ORDER BY step"
USED = """
SELECT use_count, reward, count(*) FROM trinity.experience
WHERE run_id = %s AND NOT held_out GROUP BY 1, 2 ORDER BY 2
"""
ITEMS = """
SELECT count(*) FROM trinity.batch b JOIN trinity.batch_item i ON i.batch_id = b.id
WHERE b.run_id = %s GROUP BY b.id ORDER BY b.id
"""


def import_labels(scene: Scene, folder: Path) -> None:
    """Ten responses as TRL has them, every other one good, some in a conversation."""
    rows: list[dict[str, Any]] = [
        {"prompt": f"task {n}", "completion": "yes" if n % 2 else "no", "label": n % 2 == 1} for n in range(8)
    ]
    turns = [[{"role": "user", "content": "Well?"}], [{"role": "assistant", "content": "Yes."}]]
    rows += [{"prompt": turns[0], "completion": turns[1], "label": label} for label in (True, False)]
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns("preferences")
    summary = import_rows(scene.database, open_rows(path, None), columns, "labels", lambda done, total: None)
    assert (summary.added, summary.rejected) == (10, 0)


def started(
    scene: Scene, folder: Path, *data: str, holdout: float = 0.0, reference: str = "start"
) -> Trainer:
    config = {"algorithm": KTO.model_dump(mode="json")}
    with scene.database.transaction() as tx:
        run = runs.open_run(tx, "kto", config, "labels", adoption.Sources(data, holdout))
        worker = workers.register(tx, run, WorkerRole.TRAIN)
    setup = setup_of(
        TrainerConfig.model_validate(
            {
                "epochs": 2,
                "batch_size": 3,
                "micro_batch_size": 2,
                "learning_rate": 0.01,
                "eval_every": 2,
                "reference": reference,
            }
        ),
        KTO,
        folder / "checkpoints",
    )
    trainer = Trainer(scene.database, run, setup)
    trainer.worker_id = worker
    trainer.start()
    return trainer


def test_a_run_of_kto_uses_good_and_bad_rows_once_an_epoch(scene: Scene, tmp_path: Path) -> None:
    import_labels(scene, tmp_path)
    trainer = started(scene, tmp_path, "labels")
    while trainer.work():
        pass
    assert trainer.is_done()
    run_id = trainer.run.id
    assert scene.rows(USED, run_id) == [(2, 0.0, 5), (2, 1.0, 5)]
    assert scene.values(ITEMS, run_id) == [3, 3, 3, 1] * 2, "the last row of an epoch is compared with none"
    assert scene.value("SELECT state FROM trinity.run WHERE id = %s", run_id) == "finished"
    found = {(name, step): value for name, step, value in scene.rows(METRICS, run_id)}
    assert {"loss", "kl", "entropy", "rewards/margins", "logps/chosen", "grad_norm"} <= {
        name for name, _ in found
    }
    assert found["loss", 1] == pytest.approx(0.5, abs=1e-5), "nothing has moved yet"
    assert found["kl", 4] == 0.0
    run = Scene(scene.database, trainer.run, scene.selection, 0, 0, trainer.worker_id)
    assert differences(run) == []


def test_rows_that_are_held_out_are_evaluated_by_their_labels(scene: Scene, tmp_path: Path) -> None:
    import_labels(scene, tmp_path)
    trainer = started(scene, tmp_path, "labels", holdout=0.5)
    while trainer.work():
        pass
    assert trainer.is_done()
    held_out = "SELECT count(*) FROM trinity.experience WHERE run_id = %s AND held_out"
    assert 2 < scene.value(held_out, trainer.run.id) < 8
    rows = scene.rows(METRICS, trainer.run.id)
    margins = [value for name, _, value in rows if name == "eval/rewards/margins"]
    assert margins[0] == pytest.approx(0.0, abs=1e-5), "nothing has moved yet"
    assert margins[-1] != 0.0
    assert {"eval/kl", "eval/loss", "eval/rewards/chosen", "eval/logps/rejected"} <= {
        name for name, _, _ in rows
    }


def test_rows_without_a_reward_are_counted_and_said(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import_labels(scene, tmp_path)
    import_records(scene.database, "attempts", [trajectory(20, "a response"), trajectory(21, "another")])
    with caplog.at_level(logging.WARNING):
        started(scene, tmp_path, "labels", "attempts")
    assert "2 rows have no reward: nothing is learned from them until they have one" in caplog.text


def test_a_run_without_any_label_says_where_some_come_from(scene: Scene, tmp_path: Path) -> None:
    import_records(scene.database, "attempts", [trajectory(0, "one"), trajectory(1, "another")])
    with pytest.raises(
        TrinityError, match=r"has no rows with a reward; import some .* with: trinity-db reward$"
    ):
        started(scene, tmp_path, "attempts")


def test_a_run_of_kto_learns_from_pairs_and_a_verdict_changes_the_rest(scene: Scene, tmp_path: Path) -> None:
    import_records(scene.database, "pairs", [preference(n) for n in range(5)])
    trainer = started(scene, tmp_path, "pairs")
    assert trainer.work()
    run_id = trainer.run.id
    good = "SELECT min(id) FROM trinity.experience WHERE run_id = %s AND reward = 1"
    judged = scene.value(good, run_id)
    with scene.database.transaction() as tx:
        rewards.judge(tx, [rewards.Judgement(judged, -1.0, "human", "human", "ann", 1.0)])
    while trainer.work():
        pass
    assert trainer.is_done()
    assert scene.rows(USED, run_id) == [(2, -1.0, 1), (2, 0.0, 5), (2, 1.0, 4)]
    assert scene.values(ITEMS, run_id) == [3, 3, 3, 1] * 2
    used = (
        "SELECT i.reward FROM trinity.batch b JOIN trinity.batch_item i ON i.batch_id = b.id"
        " WHERE i.experience_id = %s ORDER BY b.id"
    )
    assert scene.values(used, judged)[-1] == -1.0
    names = {name for name, _, _ in scene.rows(METRICS, run_id)}
    assert {"rewards/margins", "logps/chosen", "logps/rejected"} <= names
    run = Scene(scene.database, trainer.run, scene.selection, 0, 0, trainer.worker_id)
    assert differences(run) == []


def test_a_reference_that_was_asked_beforehand_does_not_know_what_is_compared(
    scene: Scene, tmp_path: Path
) -> None:
    import_labels(scene, tmp_path)
    with pytest.raises(
        ConfigError, match=r"reference: label loss 'kto' also scores each prompt .*; remove precomputed"
    ):
        started(scene, tmp_path, "labels", reference="precomputed")
