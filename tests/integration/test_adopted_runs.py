"""A run adopts the rows of another, once: with their tokens, log-probabilities, rewards and pairs."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import setup_of
from tests.support.recipes import recipe
from tests.support.replays import differences
from tests.support.rows import WAIT_SECONDS, Scene, in_a_thread, reward, wait_until_blocked
from trinity_db.arrays.codec import NO_VERSION
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.data.copies.exporter import export_run
from trinity_db.data.copies.importer import import_run
from trinity_db.errors import ConfigError, NotFound
from trinity_db.models import source_tokenizer
from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.schema.queries import query
from trinity_db.schema.states import Draws, WorkerRole
from trinity_db.store import (
    adoption,
    deletion,
    offline,
    payloads,
    processing,
    pruning,
    reviews,
    rewards,
    runs,
    verdicts,
    workers,
)
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.rows.encode import encode_adopted
from trinity_db.trainer.rows.sources import check_tokenizers
from trinity_db.trainer.service import Trainer

COPIES = (
    "SELECT source_id, state::text, reward, use_count FROM trinity.experience"
    " WHERE run_id = %s ORDER BY source_id"
)
OWN = "SELECT id FROM trinity.experience WHERE run_id = %s AND state <> 'dropped' ORDER BY id"


def open_run(scene: Scene, name: str, draws: Draws, config: dict[str, Any] | None = None) -> runs.Run:
    """A run that names the scene's run as data, and adopts what it has."""
    with scene.database.transaction() as tx:
        run = runs.open_run(tx, name, config or {}, draws, adoption.Sources([scene.run.name]))
    adopt(scene, run)
    return run


def adopt(scene: Scene, run: runs.Run) -> int:
    hold = partial(runs.hold_adopter, run=run)
    return adoption.adopt_runs(scene.database, run.id, hold, adoption.Sources([scene.run.name]))


def encode(scene: Scene, run: runs.Run) -> None:
    with scene.database.transaction() as tx:
        worker = workers.register(tx, run, WorkerRole.TRAIN)
    tokenizer = source_tokenizer(ModelConfig(scratch=ScratchConfig()))
    encode_adopted(scene.database, run.id, worker, ChatRenderer(tokenizer), 1000, 100, lambda: False)


def test_rows_come_with_tokens_log_probabilities_and_rewards_and_lead_back(scene: Scene) -> None:
    scene.make_ready(2, rewards=(1.0, 0.5), version=0)
    scene.train(step=1, size=1)
    run = open_run(scene, "sft", "rows")
    encode(scene, run)
    own = scene.values(OWN, scene.run.id)
    assert scene.rows(COPIES, run.id) == [
        (source, "ready", value, 0) for source, value in zip(own, [1.0, 0.5] * 2, strict=True)
    ]
    ids = scene.values("SELECT id FROM trinity.experience WHERE run_id = %s ORDER BY source_id", run.id)
    copies, originals = payloads.read(scene.database, ids), payloads.read(scene.database, own)
    for copy, original in zip((copies[id] for id in ids), (originals[id] for id in own), strict=True):
        assert copy.token_ids.tolist() == original.token_ids.tolist()
        assert copy.action_mask.tolist() == original.action_mask.tolist()
        assert np.array_equal(np.asarray(copy.logprobs), np.asarray(original.logprobs))
        assert set(np.asarray(copy.versions).tolist()) == {NO_VERSION}, "the versions count in the other run"
    [states] = [scene.values("SELECT state::text FROM trinity.experience WHERE id = ANY(%s)", own)]
    assert sorted(states) == ["ready", "ready", "trained", "trained"], "the other run goes on as before"


def test_rows_that_no_version_of_the_run_wrote_have_no_staleness(scene: Scene) -> None:
    scene.make_ready(1)
    open_run(scene, "second", "rows")
    with scene.database.transaction() as tx:
        tx.execute(
            """INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)
               SELECT r.id, v, 0, 'folder', 'hash' FROM trinity.run r, generate_series(0, 1) v
               ON CONFLICT DO NOTHING"""
        )
    for name, expected in (("run", [1, 1]), ("second", [None, None])):
        ids = scene.values("SELECT id FROM trinity.experience_view WHERE run = %s", name)
        now = "SELECT staleness_now FROM trinity.experience_view WHERE run = %s"
        assert scene.values(now, name) == expected
        with scene.database.transaction() as tx:
            shown = [tx.execute(query("show_experience"), {"id": id}).fetchone() for id in ids]
        assert [row["staleness_now"] for row in shown if row] == expected


def test_greedy_dropped_and_evaluated_rows_and_those_of_open_groups_are_left(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 0.0))
    scene.explore(1, rewards=(1.0, 1.0))
    scene.process()
    scene.evaluate(1)
    kept = scene.values(OWN + " LIMIT 4", scene.run.id)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'dropped' WHERE id = %s", [kept[2]])
        tx.execute(
            "UPDATE trinity.rollout SET greedy = true WHERE id ="
            " (SELECT rollout_id FROM trinity.experience WHERE id = %s)",
            [kept[3]],
        )
    scene.explore(1)  # not processed yet
    assert [row[0] for row in scene.rows(COPIES, open_run(scene, "sft", "rows").id)] == kept[:2]


def test_an_adoption_that_was_killed_goes_on_with_the_rest(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.make_ready(3)
    scene.pair()
    monkeypatch.setattr(adoption, "SLICE_GROUPS", 1)
    monkeypatch.setattr(adoption, "SLICE_PAIRS", 1)
    retry, calls = type(scene.database).retry, 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (3, 8):  # the first call of an adoption lists the sources
            raise KeyboardInterrupt
        return retry(*arguments, **options)

    monkeypatch.setattr(type(scene.database), "retry", killed)
    counts = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            open_run(scene, "dpo", "pairs")
        run_id = scene.value("SELECT id FROM trinity.run WHERE name = 'dpo'")
        pairs = "SELECT count(*) FROM trinity.preference WHERE run_id = %s"
        counts.append((len(scene.rows(COPIES, run_id)), scene.value(pairs, run_id)))
    run = open_run(scene, "dpo", "pairs")
    assert counts == [(2, 0), (6, 0)]
    assert len(scene.rows(COPIES, run.id)) == 6
    assert scene.value("SELECT count(*) FROM trinity.preference WHERE run_id = %s", run.id) == 3
    assert adopt(scene, run) == 0, "all are there"


def test_rows_that_come_later_are_adopted_at_the_next_start(scene: Scene) -> None:
    scene.make_ready(1)
    run = open_run(scene, "kto", "labels")
    scene.make_ready(2)
    assert len(scene.rows(COPIES, run.id)) == 2
    assert open_run(scene, "kto", "labels").id == run.id
    assert len(scene.rows(COPIES, run.id)) == 6


def test_a_later_reward_of_the_original_reaches_the_copy(scene: Scene) -> None:
    [group] = scene.make_ready(1)
    run = open_run(scene, "kto", "labels")
    rollout, original = scene.rows(
        "SELECT rollout_id, id FROM trinity.experience WHERE group_id = %s AND run_id = %s ORDER BY id",
        group,
        scene.run.id,
    )[1]
    with scene.database.transaction() as tx:
        rewards.record(tx, scene.run.id, "human", [reward(rollout, 5.0)])
    now = {row[0]: row[2] for row in scene.rows(COPIES, run.id)}
    assert now[original] == 5.0
    mean = "SELECT reward_mean, reward_count FROM trinity.rollout_group WHERE id = %s"
    assert scene.rows(mean, group) == [(3.0, 2)], "copies are no members of the group"


def test_a_reward_waits_for_the_copy_of_its_row(scene: Scene) -> None:
    [group] = scene.make_ready(1)
    rollout = scene.value("SELECT min(id) FROM trinity.rollout WHERE group_id = %s", group)
    with scene.database.transaction() as tx:
        run = runs.open_run(tx, "kto", {}, "labels", adoption.Sources([scene.run.name]))

    def judge() -> None:
        with scene.database.transaction() as tx:
            rewards.record(tx, scene.run.id, "human", [reward(rollout, 7.0)])

    values = {"run_id": run.id, "source_run_id": scene.run.id, "holdout": 0.0}
    with scene.database.transaction() as tx:
        locked = tx.execute(query("rows_to_adopt"), values | {"after": 0, "limit": 9}).fetchall()
        judging = in_a_thread(scene.database, judge)
        wait_until_blocked(scene.database, judging)
        tx.execute(query("adopt_rows"), values | {"ids": [row["id"] for row in locked]})
    judging.result(WAIT_SECONDS)
    assert [row[2] for row in scene.rows(COPIES, run.id)] == [7.0, 0.0]


def test_pairs_of_a_run_are_drawn_by_another_and_its_lineage_leads_to_the_originals(
    scene: Scene, tmp_path: Path
) -> None:
    scene.make_ready(1)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    scene.make_ready(1, version=1)
    assert scene.pair() == 2
    run = open_run(scene, "dpo", "pairs", {"model": {"scratch": {}}})
    trainer = trained(scene, run, "dpo", tmp_path)
    while trainer.work():
        pass
    assert trainer.is_done()
    originals = scene.rows(
        "SELECT chosen_id, rejected_id FROM trinity.preference WHERE run_id = %s", scene.run.id
    )
    newest = scene.value("SELECT max(version) FROM trinity.policy_version WHERE run_id = %s", run.id)
    found = scene.rows(
        "SELECT source_id, source_run, source_version, reward FROM trinity.lineage(%s, 'dpo')", newest
    )
    pairs = [(found[at][0], found[at + 1][0]) for at in range(0, len(found), 2)]
    assert sorted(pairs) == sorted(originals)
    assert sorted((name, version) for _, name, version, _ in found) == [("run", 0)] * 2 + [("run", 1)] * 2
    assert [value for *_, value in found] == [1.0, 0.0] * 2
    assert differences(replace(scene, run=run)) == []


def trained(scene: Scene, run: runs.Run, name: str, folder: Path, **options: Any) -> Trainer:
    """A trainer of a run that is about to take its first step."""
    settings = TrainerConfig(batch_size=2, learning_rate=0.01, epochs=1)
    setup = setup_of(settings, recipe(name, **options), folder / "checkpoints")
    trainer = Trainer(scene.database, run, setup)
    with scene.database.transaction() as tx:
        trainer.worker_id = workers.register(tx, run, WorkerRole.TRAIN)
    trainer.start()
    return trainer


def test_a_run_that_lacks_what_another_learns_from_is_refused_in_one_line(scene: Scene) -> None:
    with pytest.raises(ConfigError, match=r"^data: run 'run' has no rollouts of its own that are fully"):
        open_run(scene, "sft", "rows")
    scene.explore(1)
    scene.judge(processing.CLEAN)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'ready' WHERE run_id = %s", [scene.run.id])
    with pytest.raises(ConfigError, match=r"'run' has no pairs; .* add processors: \{pair: \{\}\}"):
        open_run(scene, "dpo", "pairs")
    with pytest.raises(ConfigError, match=r"rows of run 'run' have no rewards; .* trinity-db rescore run"):
        open_run(scene, "kto", "labels")
    with pytest.raises(ConfigError, match=r"data: 'run' is this run itself"):
        open_run(scene, "run", "groups", scene.run.config)
    assert scene.values("SELECT name FROM trinity.run ORDER BY id") == ["run"]


def test_pairs_of_people_are_labels_where_rows_have_no_rewards(scene: Scene) -> None:
    scene.make_ready(1, rewards=(1.0, 0.5))
    scene.pair()
    scene.explore(2, rewards=(1.0, 0.0))
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'ready' WHERE state = 'raw'")
        tx.execute("UPDATE trinity.rollout_group SET state = 'ready' WHERE state <> 'ready'")
        reviews.ask_pairs(tx, scene.run, reviews.Question())
        for _ in range(2):
            claim = verdicts.claim(tx, scene.run.id, "ann", pairs=True)
            assert claim is not None
            verdicts.submit(tx, claim, "ann", 1 if claim.responses == ("0.0", "1.0") else -1)
    run = open_run(scene, "kto", "labels")
    said = "SELECT reward FROM trinity.experience WHERE run_id = %s ORDER BY id"
    assert scene.values(said, run.id) == [1.0, 0.5, 0.0, 1.0, None, None], "they find 0.0 the better answer"
    assert scene.values(said, scene.run.id)[2:] == [None] * 4, "the other run's rows are as they were"
    beside = open_run(scene, "sft", "rows")
    assert scene.values(said, beside.id) == [1.0, 0.5, *[None] * 4]


def test_people_who_are_asked_again_about_pairs_of_people_change_nothing_before_they_answer(
    scene: Scene,
) -> None:
    scene.explore(1, rewards=(1.0, 0.0))
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'ready'")
        tx.execute("UPDATE trinity.rollout_group SET state = 'ready'")
        reviews.ask_pairs(tx, scene.run, reviews.Question())
        claim = verdicts.claim(tx, scene.run.id, "ann", pairs=True)
        assert claim is not None
        verdicts.submit(tx, claim, "ann", 1 if claim.responses == ("1.0", "0.0") else -1)
    kto, dpo = (Scene.open(scene.database, name, algorithm=name) for name in ("kto", "dpo"))
    for run in (kto, dpo):
        adopt(scene, run.run)
        run.encode()
    kto.commit(kto.draw_rows(step=1, size=2), max_uses=2)
    dpo.commit(dpo.draw_pairs(step=1, size=1))
    with scene.database.transaction() as tx:
        for run in (kto, dpo):
            assert reviews.ask_pairs(tx, run.run, reviews.Question()) == 1
        rows = tx.execute("SELECT id FROM trinity.experience WHERE run_id = %s", [kto.run.id]).fetchall()
        beside = [rewards.Judgement(row["id"], 1.0, "style", "human", "ann", 0.0) for row in rows]
        assert {change.after for change in rewards.judge(tx, beside)} == {1.0, 0.0}
    kto.commit(kto.draw_rows(step=2, size=2), max_uses=2)
    assert differences(kto) == differences(dpo) == []


def test_a_run_of_adopted_rows_says_what_to_name_in_its_place(scene: Scene) -> None:
    scene.make_ready(1)
    first = open_run(scene, "first", "rows", {"data": ["run"]})
    with scene.database.transaction() as tx, pytest.raises(ConfigError, match="what it learned from: run"):
        runs.open_run(tx, "second", {}, "rows", adoption.Sources([first.name]))


def test_a_taskset_and_a_name_of_nothing_are_told_apart(scene: Scene) -> None:
    for name, kind, said in (
        ("tasks", ConfigError, "'tasks' has tasks, and no responses to learn from; name it under taskset"),
        ("rnu", NotFound, "There is no data set or run 'rnu'; did you mean 'run'?"),
    ):
        with scene.database.transaction() as tx, pytest.raises(kind, match=said):
            runs.open_run(tx, "new", {}, "rows", adoption.Sources([name]))


def test_rows_that_were_adopted_are_neither_deleted_nor_pruned(scene: Scene) -> None:
    scene.make_ready(2)
    scene.train(step=1, size=2)
    scene.publish(1, step=1)
    run = open_run(scene, "sft", "rows", {"data": ["run"]})
    scene.lose(scene.explorer)
    with scene.database.transaction() as tx:
        workers.stop(tx, scene.processor)
        workers.stop(tx, scene.trainer)
    with (
        pytest.raises(ConfigError, match=r"'run' is not deleted: other runs train on rows of it \('sft'\)"),
        scene.database.transaction() as tx,
    ):
        deletion.begin(tx, scene.run, lease_seconds=30)
    with scene.database.transaction() as tx:
        allowed = pruning.limits(tx, scene.run, timedelta(0), None)
    pruned = pruning.prune(scene.database, scene.run, pruning.PAYLOADS, allowed, dry_run=False)
    assert pruned.rows == 0
    encode(scene, run)
    assert len(payloads.read(scene.database, scene.values(OWN, run.id))) == 4


def test_another_tokenizer_is_refused_with_a_token_that_differs(scene: Scene) -> None:
    digits = {"model": {"scratch": {"alphabet": "0123456789"}}}
    other = scene.beside("digits", digits)
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.policy_version SET checkpoint = NULL WHERE run_id = %s", [other.run.id])
    other.publish(0, step=0)
    other.make_ready(1)
    run = open_run(other, "sft", "rows")
    same = source_tokenizer(ModelConfig(scratch=ScratchConfig(alphabet="0123456789")))
    check_tokenizers(scene.database, run.id, same)
    letters = source_tokenizer(ModelConfig(scratch=ScratchConfig(alphabet="abcdefghij")))
    with pytest.raises(ConfigError, match=r"run 'digits' has other tokens than this run's model, such as '"):
        check_tokenizers(scene.database, run.id, letters)


def test_a_copy_of_a_run_takes_the_runs_along_that_it_adopted_rows_of(scene: Scene, tmp_path: Path) -> None:
    scene.make_ready(2)
    run = open_run(scene, "sft", "rows", {"data": ["run"], "name": "sft"})
    encode(scene, run)

    def nothing(*_: Any) -> None: ...

    exported = export_run(scene.database, "sft", tmp_path / "copy", False, nothing)
    assert exported.data == ["run"]
    imported = import_run(scene.database, tmp_path / "copy", "again", nothing)
    assert imported.data == {"run": "run-2"}
    origins = scene.rows(
        "SELECT r.name, count(*) FROM trinity.experience e JOIN trinity.experience o ON o.id = e.source_id"
        " JOIN trinity.run r ON r.id = o.run_id JOIN trinity.run c ON c.id = e.run_id WHERE c.name = 'again'"
        " GROUP BY r.name"
    )
    assert origins == [("run-2", 4)]
    with scene.database.transaction() as tx:
        assert sum(offline.count_trainable(tx, run.id, "rows").values()) == 2
