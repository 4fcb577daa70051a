"""Runs that learn from good and bad rows: who is drawn, what a late reward changes; others are as ever."""

from collections import Counter

from tests.support.replays import correct, differences
from tests.support.rows import (
    WAIT_SECONDS,
    Scene,
    demonstration,
    import_records,
    in_a_thread,
    labelled,
    payload,
    preference,
    reward,
    task,
    trajectory,
    wait_until_blocked,
)
from trinity_db.data.records.records import Preference
from trinity_db.schema.queries import query
from trinity_db.store import batches, offline, pair_labels, reviews, rewards, verdicts

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
        trainable = offline.count_trainable(tx, run.run.id, "labels")
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


def pair(number: int, chosen: str, rejected: str) -> Preference:
    return Preference(task(number), chosen, rejected, None, {})


def test_the_sides_of_pairs_are_good_and_bad_as_trl_unpairs_them(scene: Scene) -> None:
    pairs = [pair(0, "a", "b"), pair(0, "c", "b"), pair(1, "b", "a")]
    import_records(scene.database, "pairs", pairs)
    run, beside = (opened(scene, name, "pairs", algorithm=name) for name in ("kto", "sft"))
    # What unpair_preference_dataset makes of them, once each.
    assert drawn(run) == {
        "task 0: a": 1.0,
        "task 0: b": 0.0,
        "task 0: c": 1.0,
        "task 1: b": 1.0,
        "task 1: a": 0.0,
    }
    assert count(run) == (5, 0)
    assert drawn(beside) == dict.fromkeys(("task 0: a", "task 0: c", "task 1: b")), "the chosen ones"
    assert differences(run) == differences(beside) == []
    assert scene.value("SELECT count(*) FROM trinity.reward_event") == 0


def test_a_row_that_one_pair_chooses_and_another_rejects_has_no_label(scene: Scene) -> None:
    import_records(scene.database, "pairs", [pair(0, "a", "b"), pair(0, "b", "c"), pair(1, "a", "b")])
    run = opened(scene, "kto", "pairs")
    first = {"task 0: a": 1.0, "task 0: c": 0.0, "task 1: a": 1.0, "task 1: b": 0.0}
    assert drawn(run) == first
    assert count(run) == (4, 1)
    import_records(scene.database, "pairs", [pair(1, "b", "c"), pair(2, "a", "b")])
    run.adopt_again("pairs")
    run.encode()
    del first["task 1: b"]
    later = {"task 1: c": 0.0, "task 2: a": 1.0, "task 2: b": 0.0}
    assert drawn(run) == first | later, "a pair that comes later counts as well"
    assert count(run) == (6, 2)
    assert differences(run) == [], "of the first draw too"


def test_a_row_of_before_has_a_label_once_a_pair_has_it(scene: Scene) -> None:
    import_records(scene.database, "set", [preference(0), preference(2)])
    import_records(scene.database, "set", [trajectory(1, "bad"), trajectory(1, "other")])
    run, beside = (opened(scene, name, "set", algorithm=name) for name in ("kto", "sft"))
    sides = {"task 0: good": 1.0, "task 0: bad": 0.0, "task 2: good": 1.0, "task 2: bad": 0.0}
    assert drawn(run) == sides
    import_records(scene.database, "set", [preference(1)])
    for one in (run, beside):
        one.adopt_again("set")
        one.encode()
    assert drawn(run) == sides | {"task 1: good": 1.0, "task 1: bad": 0.0}
    assert count(run) == (6, 1)
    assert drawn(beside) == dict.fromkeys(
        ("task 0: good", "task 1: good", "task 1: other", "task 2: good")
    ), "the label is a matter of the other run"
    assert differences(run) == differences(beside) == []


def test_a_reward_comes_before_what_a_pair_says(scene: Scene) -> None:
    import_records(scene.database, "set", [preference(0), preference(1)])
    bad = scene.value("SELECT min(rejected_id) FROM trinity.preference")
    with scene.database.transaction() as tx:
        rewards.judge(tx, [rewards.Judgement(bad, 2.0, "human", "human", "bob", 1.0)])
    run = opened(scene, "kto", "set")
    sides = {"task 0: good": 1.0, "task 1: good": 1.0, "task 1: bad": 0.0}
    assert drawn(run) == sides | {"task 0: bad": 2.0}, "one that came with a reward keeps it"
    good = rollout_of(run, "task 1", "good")
    for value, weight, expected in ((-0.5, 1.0, -0.5), (0.0, 0.0, 1.0), (3.0, 1.0, 3.0)):
        with run.database.transaction() as tx:
            rewards.record(
                tx, run.run.id, "human", [rewards.RewardEvent(good, "human", value, weight)], "ann"
            )
        assert drawn(run) == sides | {"task 0: bad": 2.0, "task 1: good": expected}
    assert differences(run) == [], "of all four draws"


def test_people_who_compare_the_rows_of_a_pair_change_their_labels(scene: Scene) -> None:
    import_records(scene.database, "set", [pair(0, "a", "b"), pair(0, "a", "c")])
    import_records(scene.database, "set", [trajectory(1, "x"), trajectory(1, "y")])
    run = opened(scene, "kto", "set")
    first = {"task 0: a": 1.0, "task 0: b": 0.0, "task 0: c": 0.0}
    assert drawn(run) == first
    with run.database.transaction() as tx:
        assert reviews.ask_pairs(tx, run.run, reviews.Question()) == 2
    for _ in range(2):
        with run.database.transaction() as tx:
            claim = verdicts.claim(tx, run.run.id, "ann", pairs=True)
            assert claim is not None
            verdicts.submit(tx, claim, "ann", 1 if claim.responses[0] > claim.responses[1] else -1)
    # Of a and c people prefer c, against the pair; a is better than b all the same.
    assert drawn(run) == {"task 0: b": 0.0, "task 0: c": 1.0, "task 1: x": 0.0, "task 1: y": 1.0}
    with run.database.transaction() as tx:
        for _ in range(2):
            last = verdicts.last_decided(tx, run.run.id, "ann", pairs=True)
            assert last is not None
            verdicts.undo(tx, last, "ann")
    assert drawn(run) == first
    assert differences(run) == []


def test_an_adoption_waits_for_a_verdict_and_leaves_it(scene: Scene) -> None:
    import_records(scene.database, "set", [trajectory(0, "good"), trajectory(0, "bad")])
    run = opened(scene, "kto", "set")
    bad = rollout_of(run, "task 0", "bad")
    import_records(scene.database, "set", [preference(0)])
    with run.database.transaction() as tx:
        rewards.record(tx, run.run.id, "human", [reward(bad, 1.0)], "ann")
        adopting = in_a_thread(run.database, lambda: run.adopt_again("set"))
        wait_until_blocked(run.database, adopting)
    adopting.result(WAIT_SECONDS)
    assert drawn(run) == {"task 0: good": 1.0, "task 0: bad": 1.0}
    assert differences(run) == []


def test_people_who_prefer_the_pair_that_an_adoption_writes_wait_for_it(scene: Scene) -> None:
    import_records(scene.database, "set", [trajectory(0, "good"), trajectory(0, "bad")])
    run = opened(scene, "kto", "set")
    with run.database.transaction() as tx:
        assert reviews.ask_pairs(tx, run.run, reviews.Question()) == 1
    import_records(scene.database, "set", [preference(0)])
    source = run.value("SELECT id FROM trinity.run WHERE name = 'set'")
    about = {"run_id": run.run.id, "source_run_id": source, "holdout": 0.0}

    def prefer() -> None:
        with run.database.transaction() as tx:
            claim = verdicts.claim(tx, run.run.id, "ann", pairs=True)
            assert claim is not None
            verdicts.submit(tx, claim, "ann", 1 if claim.responses == ("good", "bad") else -1)

    with run.database.transaction() as tx:
        made = [row["id"] for row in tx.execute(query("adopt_preferences"), about)]
        assert len(made) == 2
        preferring = in_a_thread(run.database, prefer)
        wait_until_blocked(run.database, preferring)
        pair_labels.follow(tx, made)
    preferring.result(WAIT_SECONDS)
    assert run.rows("SELECT source, upheld FROM trinity.preference WHERE gives_labels") == [("import", True)]
    assert drawn(run) == {"task 0: good": 1.0, "task 0: bad": 0.0}


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
    run = opened(scene, "labels run", "labels", "attempts", holdout=0.3)
    held_out = offline.held_out(run.database, run.run.id, pairs=False, limit=500)
    few = offline.held_out(run.database, run.run.id, pairs=False, limit=3)
    trained = drawn(run)
    assert 5 < len(held_out) < 35
    assert len(held_out) + len(trained) == 60
    assert {row.reward for row in held_out} == {0.0, 1.0}
    assert [row.experience_id for row in few] == [row.experience_id for row in held_out[:3]]
    assert held_out[0].payload.num_tokens == payload(()).num_tokens


def test_both_sides_of_a_held_out_pair_are_what_a_run_of_labels_is_judged_by(scene: Scene) -> None:
    import_records(scene.database, "pairs", [preference(n) for n in range(20)])
    run = opened(scene, "labels run", "pairs", holdout=0.5)
    held_out = offline.held_out(run.database, run.run.id, pairs=False, limit=500)
    assert 4 < len(held_out) < 36
    assert Counter(row.reward for row in held_out) == dict.fromkeys((0.0, 1.0), len(held_out) // 2)
    assert len(drawn(run)) + len(held_out) == 40
    with run.database.transaction() as tx:
        ids = [row.experience_id for row in held_out]
        rewards.judge(tx, [rewards.Judgement(row, 0.5, "human", "human", "ann", 1.0) for row in ids])
    judged = offline.held_out(run.database, run.run.id, pairs=False, limit=500)
    assert {row.reward for row in judged} == {0.5}
