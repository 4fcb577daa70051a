"""Runs that learn from good and bad rows: who is drawn, what a late reward changes; others are as ever."""

from tests.replays import correct, differences
from tests.rows import (
    Scene,
    demonstration,
    import_records,
    labelled,
    payload,
    preference,
    trajectory,
)
from trinity_db.store import batches, offline, rewards

DRAWN = """
SELECT x.prompt || ': ' || x.response, i.reward
FROM trinity.batch_item i
JOIN trinity.experience e ON e.id = i.experience_id
JOIN trinity.experience_text x ON x.experience_id = e.source_id
WHERE i.batch_id = %s ORDER BY 1
"""


def opened(scene: Scene, name: str, *data: str, algorithm: str = "kto", holdout: float = 0.0) -> Scene:
    """Another run, over data sets, with tokens."""
    run = Scene.open(scene.database, name, data=data, algorithm=algorithm, holdout=holdout)
    run.encode()
    return run


def drawn(run: Scene, step: int = 1, size: int = 100) -> dict[str, float | None]:
    """What a step uses, with the rewards; given back."""
    batch = run.draw_rows(step=step, size=size)
    if batch is None:
        return {}
    found = dict(run.rows(DRAWN, batch.id))
    with run.database.transaction() as tx:
        batches.reopen_leased(tx, batches.Draw(run.run.id, run.trainer, step, size, run.run.seed))
    return found


def count(run: Scene) -> tuple[int, int]:
    """Rows that are learned from, and rows that lack a reward."""
    with run.database.transaction() as tx:
        trainable = offline.count_trainable(tx, run.run.id, pairs=False)
        return sum(trainable.values()), offline.count_unlabelled(tx, run.run.id)


def rollout_of(run: Scene, prompt: str, response: str) -> int:
    found: int = run.value(
        "SELECT e.rollout_id FROM trinity.experience e"
        " JOIN trinity.experience_text x ON x.experience_id = e.source_id"
        " WHERE e.run_id = %s AND x.prompt = %s AND x.response = %s",
        run.run.id,
        prompt,
        response,
    )
    return found


def test_good_and_bad_rows_are_drawn_and_none_without_a_reward(scene: Scene) -> None:
    import_records(
        scene.database, "labels", [labelled(n, label) for n in range(2) for label in (True, False)]
    )
    import_records(scene.database, "attempts", [trajectory(2, "worse", -0.5), trajectory(3, "unknown")])
    import_records(scene.database, "set", [demonstration(4)])
    run = opened(scene, "labels run", "labels", "attempts", "set")
    expected = {f"task {n}: {word}": value for n in range(2) for word, value in (("good", 1.0), ("bad", 0.0))}
    assert drawn(run) == expected | {"task 2: worse": -0.5}
    assert count(run) == (5, 2)
    assert differences(run) == []


def test_a_run_that_imitates_the_same_rows_is_as_ever(scene: Scene) -> None:
    import_records(
        scene.database, "labels", [labelled(n, label) for n in range(2) for label in (True, False)]
    )
    import_records(scene.database, "attempts", [trajectory(2, "worse", -0.5), trajectory(3, "unknown")])
    run = opened(scene, "labels run", "labels", "attempts")
    beside = opened(scene, "imitation", "labels", "attempts", algorithm="sft")
    run.commit(run.draw_rows(step=1, size=4))
    assert drawn(beside) == {"task 0: good": 1.0, "task 1: good": 1.0, "task 3: unknown": None}
    assert count(beside) == (3, 0)
    assert differences(beside) == []


def test_the_places_of_rows_follow_the_rule_that_the_statements_ask(scene: Scene) -> None:
    values = (None, -1.0, 0.0, 0.5)
    import_records(scene.database, "set", [trajectory(n, "answer", value) for n, value in enumerate(values)])
    for name, expected in (("kto", [False, True, True, True]), ("sft", [True, False, False, True])):
        run = opened(scene, name, "set", algorithm=name)
        said = run.rows(
            "SELECT place IS NOT NULL, trinity.is_learned_from(reward, draws_labels)"
            " FROM trinity.experience WHERE run_id = %s ORDER BY id",
            run.run.id,
        )
        assert said == [(value, value) for value in expected], name


def test_the_worse_row_of_a_pair_is_drawn_where_it_has_a_reward(scene: Scene) -> None:
    import_records(scene.database, "set", [preference(0), preference(2)])
    import_records(scene.database, "set", [trajectory(1, "bad"), trajectory(1, "other")])
    run, beside = (opened(scene, name, "set", algorithm=name) for name in ("kto", "sft"))
    import_records(scene.database, "set", [preference(1)])
    for one in (run, beside):
        one.adopt_again("set")
        one.encode()
    for number, response, value in ((0, "good", 1.0), (0, "bad", 0.0), (1, "bad", 2.0)):
        correct(run, rollout_of(run, f"task {number}", response), value, "reward")
    assert drawn(run) == {"task 0: good": 1.0, "task 0: bad": 0.0, "task 1: bad": 2.0}
    assert count(run) == (3, 4)
    assert drawn(beside) == {"task 0: good": 1.0} | dict.fromkeys(
        ("task 1: good", "task 1: other", "task 2: good")
    )
    assert differences(run) == differences(beside) == []


def test_the_worse_row_of_a_pair_that_the_run_derives_is_drawn(scene: Scene) -> None:
    attempts = [trajectory(n, word, value) for n in range(2) for word, value in (("good", 1.0), ("bad", 0.5))]
    import_records(scene.database, "set", attempts)
    run, beside = (opened(scene, name, "set", algorithm=name) for name in ("kto", "sft"))
    assert run.pair() == beside.pair() == 2
    assert drawn(run) == {
        f"task {n}: {word}": value for n in (0, 1) for word, value in (("good", 1.0), ("bad", 0.5))
    }
    assert drawn(beside) == {"task 0: good": 1.0, "task 1: good": 1.0}
    assert differences(run) == differences(beside) == []


def test_every_row_is_used_once_in_each_epoch(scene: Scene) -> None:
    import_records(scene.database, "labels", [labelled(n, n % 3 == 0) for n in range(10)])
    run = opened(scene, "labels run", "labels")
    used: list[list[int]] = [[], []]
    step = 1
    while batch := run.draw_rows(step=step, size=4):
        items = "SELECT experience_id FROM trinity.batch_item WHERE batch_id = %s"
        used[batch.epoch] += run.values(items, batch.id)
        run.commit(batch, max_uses=2)
        step += 1
    ids = run.values("SELECT id FROM trinity.experience WHERE run_id = %s", run.run.id)
    assert step == 7
    assert [sorted(epoch) for epoch in used] == [sorted(ids)] * 2
    assert used[0] != used[1]
    assert run.values(
        "SELECT DISTINCT state::text FROM trinity.experience WHERE run_id = %s", run.run.id
    ) == ["trained"]
    assert differences(run) == []


def test_a_late_reward_changes_the_label_of_the_next_draw(scene: Scene) -> None:
    import_records(scene.database, "attempts", [trajectory(0, "a", 1.0), trajectory(1, "b", 0.0)])
    import_records(scene.database, "attempts", [trajectory(2, "c")])
    run = opened(scene, "labels run", "attempts")
    first = run.draw_rows(step=1, size=10)
    assert first is not None
    correct(run, rollout_of(run, "task 1", "b"), 2.0, "reward")
    correct(run, rollout_of(run, "task 0", "a"), -1.0, "reward")
    correct(run, rollout_of(run, "task 2", "c"), 0.0, "reward")
    before = {"task 0: a": 1.0, "task 1: b": 0.0}
    assert dict(run.rows(DRAWN, first.id)) == before, "what a batch used stays"
    run.commit(first, max_uses=2)
    # The one that has had no reward is still to be used for the first time.
    assert drawn(run, step=2) == {"task 2: c": 0.0}
    run.commit(run.draw_rows(step=2, size=10), max_uses=2)
    assert drawn(run, step=3) == {"task 0: a": -1.0, "task 1: b": 2.0, "task 2: c": 0.0}
    assert differences(run) == []


def test_one_runs_own_opinion_of_an_adopted_row_is_its_label(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(0), demonstration(1)])
    one, two = opened(scene, "one", "set"), opened(scene, "two", "set")
    assert drawn(one) == drawn(two) == {}
    [adopted, _] = one.values("SELECT id FROM trinity.experience WHERE run_id = %s ORDER BY id", one.run.id)
    with one.database.transaction() as tx:
        rewards.judge(tx, [rewards.Judgement(adopted, 0.0, "human", "human", "ann", 1.0)])
    assert (drawn(one), drawn(two)) == ({"task 0: response 0": 0.0}, {})
    assert (count(one), count(two)) == ((1, 1), (0, 2))


def test_rows_that_come_later_are_drawn_good_and_bad(scene: Scene) -> None:
    import_records(scene.database, "labels", [labelled(0, False)])
    run = opened(scene, "labels run", "labels")
    run.commit(run.draw_rows(step=1, size=10), max_uses=2)
    import_records(scene.database, "labels", [labelled(1, False), labelled(2, True)])
    run.adopt_again("labels")
    assert drawn(run, step=2) == {"task 0: bad": 0.0}, "they have no tokens yet"
    run.encode()
    assert drawn(run, step=2) == {"task 1: bad": 0.0, "task 2: good": 1.0}
    assert differences(run) == []


def test_rows_that_are_held_out_have_their_labels_and_are_never_drawn(scene: Scene) -> None:
    import_records(scene.database, "labels", [labelled(n, n % 2 == 0) for n in range(60)])
    import_records(scene.database, "attempts", [trajectory(n, "unknown") for n in range(60)])
    import_records(scene.database, "pairs", [preference(n) for n in range(60)])
    run = opened(scene, "labels run", "labels", "attempts", "pairs", holdout=0.3)
    held_out = offline.held_out(run.database, run.run.id, pairs=False, limit=500)
    few = offline.held_out(run.database, run.run.id, pairs=False, limit=3)
    trained = drawn(run)
    assert 5 < len(held_out) < 35
    assert len(held_out) + len(trained) == 60
    assert {row.reward for row in held_out} == {0.0, 1.0}
    assert [row.experience_id for row in few] == [row.experience_id for row in held_out[:3]]
    assert held_out[0].payload.num_tokens == payload(()).num_tokens


def test_held_out_pairs_are_not_what_a_run_of_labels_is_judged_by(scene: Scene) -> None:
    import_records(scene.database, "pairs", [preference(n) for n in range(20)])
    run = opened(scene, "labels run", "pairs", holdout=0.5)
    assert offline.held_out(run.database, run.run.id, pairs=False, limit=500) == []
    with run.database.transaction() as tx:
        rejected = tx.execute(
            "SELECT e.id FROM trinity.experience e JOIN trinity.preference p ON p.rejected_id = e.source_id"
            " WHERE e.run_id = %s AND e.held_out",
            [run.run.id],
        ).fetchall()
        ids = [row["id"] for row in rejected]
        rewards.judge(tx, [rewards.Judgement(row, 0.0, "human", "human", "ann", 1.0) for row in ids])
    judged = offline.held_out(run.database, run.run.id, pairs=False, limit=500)
    assert ids
    assert sorted(row.experience_id for row in judged) == sorted(ids)
