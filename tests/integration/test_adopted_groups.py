"""A run learns from the rollout groups of another, in passes, by the log-probabilities of their rows."""

import logging
import math
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import TINY, setup_of
from tests.support.recipes import recipe
from tests.support.replays import differences
from tests.support.rows import Scene, import_records, reward, rollout, trajectory, with_step
from trinity_db.arrays.codec import Payload, encode
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.schema.states import WorkerRole
from trinity_db.store import adoption, payloads, rewards, runs, workers
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.rows import encode as tokenising
from trinity_db.trainer.service import Trainer

GROUPS = "SELECT source_id FROM trinity.rollout_group WHERE run_id = %s ORDER BY id"
DRAWN = """
SELECT DISTINCT b.step, g.source_id
FROM trinity.batch b JOIN trinity.batch_item i ON i.batch_id = b.id
JOIN trinity.experience e ON e.id = i.experience_id JOIN trinity.rollout_group g ON g.id = e.group_id
WHERE b.run_id = %s AND b.state <> 'reopened' ORDER BY b.step, g.source_id
"""
ROWS = """
SELECT l.step, o.group_id, l.source_id, l.reward FROM trinity.lineage(1000, 'learner') l
JOIN trinity.experience o ON o.id = l.source_id ORDER BY l.step, l.ordinal
"""


def sampled(scene: Scene, num_groups: int, values: tuple[float, ...] = (1.0, 0.0, 0.5)) -> list[int]:
    """Groups of a run, each row with tokens and log-probabilities of its own; their ids."""
    chance = np.random.default_rng(num_groups)
    written = []
    for group in scene.claim(num_groups, group_size=len(values)):
        for member, value in enumerate(values):
            tokens = chance.integers(2, 250, 8 + member, dtype=np.int32)
            mask = np.arange(len(tokens)) >= 3
            logprobs = chance.uniform(-6.2, -4.8, int(mask.sum())).astype(np.float32)
            payload = Payload(tokens, mask, logprobs, np.zeros(len(logprobs), np.int32))
            written.append(with_step(rollout(group, member, str(value)), payload=payload))
    scene.write(written)
    scene.process()
    return scene.values("SELECT id FROM trinity.rollout_group WHERE run_id = %s ORDER BY id", scene.run.id)


def open_run(scene: Scene, *data: str, config: dict[str, Any] | None = None) -> runs.Run:
    """A run that adopts groups."""
    names = data or (scene.run.name,)
    with scene.database.transaction() as tx:
        run = runs.open_run(
            tx, "learner", config or {"seed": 3}, "groups", adoption.Sources(names, as_groups=True)
        )
    hold = partial(runs.hold_adopter, run=run)
    adoption.adopt_runs(scene.database, run.id, hold, adoption.Sources(names, as_groups=True))
    return run


def trainer_of(
    scene: Scene,
    run: runs.Run,
    folder: Path,
    name: str = "grpo",
    epochs: float = 2,
    starts: bool = True,
    **options: Any,
) -> Trainer:
    """A trainer, started unless `starts` is false; two groups are a step."""
    settings = TrainerConfig(batch_size=2, learning_rate=0.01, epochs=epochs, publish_every=1, max_length=32)
    setup = replace(setup_of(settings, recipe(name, **options), folder, model=TINY, seed=3), explores=False)
    trainer = Trainer(scene.database, run, setup)
    if not starts:
        return trainer
    with scene.database.transaction() as tx:
        trainer.worker_id = workers.register(tx, run, WorkerRole.TRAIN)
        workers.replace_others(tx, trainer.worker_id)
    trainer.start()
    return trainer


def plain_losses(folder: Path, scene: Scene, step: int, temperature: float) -> dict[str, float]:
    """The losses of a step's rows by the formulas, from the source's rows and the library's own model."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = [row[1:] for row in scene.rows(ROWS) if row[0] == step]
    stored = payloads.read(scene.database, [source for _, source, _ in rows])
    clipped, corrected, tokens = 0.0, 0.0, 0
    for group, source, value in rows:
        among = np.array([other for of, _, other in rows if of == group])
        advantage = (value - among.mean()) / (among.std(ddof=1) + 1e-6)
        row = stored[source]
        with torch.no_grad():
            logits = model(torch.tensor([row.token_ids.tolist()])).logits[0].double() / temperature
        logprobs = logits.log_softmax(-1)
        behaviour = iter(np.asarray(row.logprobs, np.float64))
        for at in np.flatnonzero(row.action_mask):
            now = float(logprobs[at - 1, row.token_ids[at]])
            ratio = math.exp(now - next(behaviour))
            clipped += max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.2))
            corrected += -advantage * min(ratio, 2.0)
            tokens += 1
    return {"clipped": clipped / tokens, "corrected": corrected / tokens}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("kind", ["clipped", "corrected"])
def test_the_loss_is_that_of_the_formula_over_the_rows_of_the_source(
    scene: Scene, tmp_path: Path, kind: str, temperature: float
) -> None:
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.run SET config = config || jsonb_build_object('explorer',"
            " jsonb_build_object('temperature', %s::float8))",
            [temperature],
        )
    sampled(scene, 3)
    run = open_run(scene)
    options: dict[str, Any] = {"correction": "truncated_importance_sampling"} if kind == "corrected" else {}
    trainer = trainer_of(scene, run, tmp_path, **options)
    assert [trainer.work(), trainer.work()] == [True, True]
    trainer.release()
    losses = "SELECT value FROM trinity.metric WHERE run_id = %s AND name = 'loss' ORDER BY step"
    expected = [
        plain_losses(tmp_path / f"version-{step - 1:06d}", scene, step, temperature)[kind] for step in (1, 2)
    ]
    assert scene.values(losses, run.id) == pytest.approx(expected, abs=1e-5)
    assert all(abs(value) > 1e-4 for value in expected)


def test_each_group_is_used_once_a_pass_and_a_lost_step_is_made_again(scene: Scene, tmp_path: Path) -> None:
    groups = sampled(scene, 3)
    run = open_run(scene)
    trainer = trainer_of(scene, run, tmp_path)
    for _ in range(3):
        assert trainer.work()
    first = scene.rows(DRAWN, run.id)
    again = trainer_of(scene, run, tmp_path)  # no release: what no checkpoint includes is drawn again
    while again.work():
        pass
    assert again.is_done()
    drawn = scene.rows(DRAWN, run.id)
    assert drawn[: len(first)] == first
    passes = [[group for step, group in drawn if step in steps] for steps in ((1, 2), (3, 4))]
    assert [sorted(one) for one in passes] == [groups, groups]
    assert (
        scene.values("SELECT epoch FROM trinity.batch WHERE run_id = %s AND step IN (1, 4)", run.id)[-1] == 1
    )
    ends = "SELECT DISTINCT state::text, use_count FROM trinity.rollout_group WHERE run_id = %s"
    assert scene.rows(ends, run.id) == [("trained", 2)]
    states = "SELECT DISTINCT state::text FROM trinity.rollout_group WHERE run_id = %s"
    assert scene.values(states, scene.run.id) == ["ready"], "the groups of the other run stay as they are"
    assert differences(replace(scene, run=run)) == []
    measured = "SELECT value FROM trinity.metric WHERE run_id = %s AND name = 'reward' AND step = 1"
    assert scene.values(measured, run.id)[-1] == pytest.approx(0.5)


@pytest.mark.parametrize(("epochs", "steps"), [(0.5, 1), (1.5, 3)])
def test_a_part_of_a_pass_ends_the_run(scene: Scene, tmp_path: Path, epochs: float, steps: int) -> None:
    sampled(scene, 3)
    run = open_run(scene)
    trainer = trainer_of(scene, run, tmp_path, epochs=epochs)
    while trainer.work():
        pass
    assert trainer.is_done()
    taken = "SELECT step FROM trinity.batch WHERE run_id = %s ORDER BY step"
    assert scene.values(taken, run.id) == list(range(1, steps + 1))
    measured = (
        "SELECT value FROM trinity.metric WHERE run_id = %s AND name = 'epoch' ORDER BY step DESC LIMIT 1"
    )
    assert scene.value(measured, run.id) == pytest.approx(epochs)


def test_an_adoption_that_was_killed_goes_on_with_whole_groups(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = sampled(scene, 4)
    monkeypatch.setattr(adoption, "SLICE_GROUPS", 1)
    retry, calls = type(scene.database).retry, 0

    def killed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:  # the first call lists the sources
            raise KeyboardInterrupt
        return retry(*arguments, **options)

    monkeypatch.setattr(type(scene.database), "retry", killed)
    with pytest.raises(KeyboardInterrupt):
        open_run(scene)
    run_id = scene.value("SELECT id FROM trinity.run WHERE name = 'learner'")
    sizes = "SELECT count(*) FROM trinity.experience WHERE run_id = %s GROUP BY group_id"
    assert scene.values(sizes, run_id) == [3, 3]
    assert open_run(scene).id == run_id
    assert scene.values(GROUPS, run_id) == groups
    assert scene.values(sizes, run_id) == [3] * 4


def test_groups_that_cannot_be_compared_as_a_whole_are_left(scene: Scene) -> None:
    whole, pruned, unrewarded = sampled(scene, 3)
    member = "(SELECT max(id) FROM trinity.experience WHERE group_id = %s)"
    with scene.database.transaction() as tx:
        tx.execute(
            f"UPDATE trinity.payload SET data = NULL, pruned_at = now() WHERE experience_id = {member}",
            [pruned],
        )
        tx.execute(f"UPDATE trinity.experience SET reward = NULL WHERE id = {member}", [unrewarded])
    assert scene.values(GROUPS, open_run(scene).id) == [whole]


def test_a_later_reward_changes_the_advantages_and_the_statistics_of_the_adopted_group(
    scene: Scene, tmp_path: Path
) -> None:
    [group] = sampled(scene, 1, values=(1.0, 0.0))
    run = open_run(scene)
    trainer = trainer_of(scene, run, tmp_path)
    second = scene.value("SELECT max(id) FROM trinity.rollout WHERE group_id = %s", group)
    with scene.database.transaction() as tx:
        rewards.record(tx, scene.run.id, "human", [reward(second, 3.0)])
    means = "SELECT reward_mean FROM trinity.rollout_group WHERE id = %s OR source_id = %s"
    assert scene.values(means, group, group) == [2.0, 2.0]
    assert trainer.work()
    used = "SELECT reward FROM trinity.batch_item ORDER BY reward"
    assert scene.values(used) == [1.0, 3.0]


def test_attempts_that_come_later_join_a_group_until_it_is_drawn(scene: Scene, tmp_path: Path) -> None:
    def attempts(*numbers: int) -> None:
        records = [trajectory(task, f"answer {n}", float(n)) for task in range(2) for n in numbers]
        import_records(scene.database, "set", records)

    sizes = (
        "SELECT g.arrived, g.reward_count, g.reward_mean, count(e.id) FROM trinity.rollout_group g"
        " JOIN trinity.experience e ON e.group_id = g.id WHERE g.run_id = %s GROUP BY g.id ORDER BY g.id"
    )
    attempts(0, 1)
    run = open_run(scene, "set")
    trainer_of(scene, run, tmp_path, "raft")  # the groups have tokens and wait to be drawn
    attempts(2)
    open_run(scene, "set")
    assert scene.rows(sizes, run.id) == [(3, 3, 1.0, 3)] * 2
    trainer = trainer_of(scene, run, tmp_path, "raft")
    assert trainer.work()
    assert scene.value("SELECT count(*) FROM trinity.batch_item") == 6
    attempts(3)
    open_run(scene, "set")
    assert scene.rows(sizes, run.id) == [(3, 3, 1.0, 3)] * 2, "as they were drawn"
    trainer.work()
    assert differences(replace(scene, run=run)) == []


def test_texts_with_rewards_are_imitated_by_raft_and_refused_by_a_ratio(scene: Scene, tmp_path: Path) -> None:
    answers = [trajectory(number % 2, f"answer {number}", float(number > 1)) for number in range(4)]
    import_records(scene.database, "set", answers)
    run = open_run(scene, "set")
    refusal = r"^data: 4 rows are texts without log-probabilities .* 'ppo_clip' reads"
    with pytest.raises(ConfigError, match=refusal):
        trainer_of(scene, run, tmp_path)
    trainer = trainer_of(scene, run, tmp_path, "raft", reward_above=0.5)
    assert trainer.work()
    learned = "SELECT reward, advantage FROM trinity.batch_item WHERE advantage > 0"
    assert scene.rows(learned) == [(1.0, 1.0)] * 2


def test_a_group_of_which_the_model_takes_too_few_rows_is_dropped(scene: Scene, tmp_path: Path) -> None:
    groups = sampled(scene, 2, values=(1.0, 0.0))
    with scene.database.transaction() as tx:
        first = "SELECT min(id) AS id FROM trinity.experience WHERE group_id = %s"
        row = tx.execute(first, [groups[0]]).fetchone()
        assert row is not None
        mask = np.array([False, False, True, True])
        sampled_by_0 = np.zeros(2, np.float32), np.zeros(2, np.int32)
        far = Payload(np.array([1, 2, 999_999, 4], np.int32), mask, *sampled_by_0)
        values = {"data": encode(far), "id": row["id"]}
        tx.execute(
            "UPDATE trinity.payload SET data = %(data)s, num_tokens = 4 WHERE experience_id = %(id)s", values
        )
    run = open_run(scene)
    trainer = trainer_of(scene, run, tmp_path)
    while trainer.work():
        pass
    assert {group for _, group in scene.rows(DRAWN, run.id)} == {groups[1]}
    reasons = 'SELECT reason, detail FROM trinity."drop" WHERE run_id = %s AND group_id IS NOT NULL'
    assert scene.rows(reasons, run.id) == [("group_too_small", {"size": 1})]


def test_a_source_without_groups_or_rewards_is_refused_in_one_line(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^data: run 'run' has no rollout groups to compare rewards in; name"
    ):
        open_run(scene)
    import_records(scene.database, "set", [trajectory(0, "answer")])
    with pytest.raises(
        ConfigError, match=r"^data: the rows of data set 'set' have no rewards; give them some"
    ):
        open_run(scene, "set")
    assert scene.values("SELECT count(*) FROM trinity.run WHERE name = 'learner'") == [0]
    sampled(scene, 1)
    with scene.database.transaction() as tx:
        tx.execute(
            "UPDATE trinity.experience SET reward = NULL"
            " WHERE id = (SELECT min(id) FROM trinity.experience WHERE run_id = %s)",
            [scene.run.id],
        )
        tx.execute("UPDATE trinity.experience SET state = 'expired' WHERE run_id = %s", [scene.run.id])
    with pytest.raises(TrinityError, match="Run 'learner' has no adopted rollout groups; "):
        trainer_of(scene, open_run(scene), tmp_path)


def test_a_stop_while_adopted_groups_are_tokenised_ends_the_trainer_as_other_stops_do(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled(scene, 4)
    run = open_run(scene)
    monkeypatch.setattr(tokenising, "CHUNK_ROWS", 1)

    class Stopper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("tokenised 1 of 12"):
                signal.raise_signal(signal.SIGTERM)

    stopper = Stopper()
    tokenising.logger.addHandler(stopper)
    tokenising.logger.setLevel(logging.INFO)
    try:
        served = trainer_of(scene, run, tmp_path, starts=False)
        served.serve()
    finally:
        tokenising.logger.removeHandler(stopper)
        tokenising.logger.setLevel(logging.NOTSET)
    tokenised = "SELECT count(*) FROM trinity.experience WHERE run_id = %s AND prompt_length IS NOT NULL"
    assert scene.value(tokenised, run.id) == 1
    trainer_of(scene, run, tmp_path)
    assert scene.value(tokenised, run.id) == 12
