"""Adopted rows: copied into a run once, drawn once an epoch, never those that are held out."""

import math
from collections import Counter
from pathlib import Path

import pytest

from tests.support.recipes import recipe
from tests.support.replays import correct
from tests.support.rows import (
    WAIT_SECONDS,
    Scene,
    demonstration,
    import_records,
    in_a_thread,
    payload,
    preference,
    reward,
    task,
    trajectory,
    wait_until_blocked,
)
from trinity_db.data.records.records import Demonstration, Preference, Task
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import adoption, batches, offline, rewards, runs, workers
from trinity_db.trainer.config import TrainerConfig

HELD_OUT = "SELECT count(*) FILTER (WHERE held_out), count(*) FROM trinity.experience WHERE run_id = %s"

HELD_OUT_BY_PROMPT = (
    "SELECT count(DISTINCT e.held_out) FROM trinity.experience e"
    " JOIN trinity.experience_text x ON x.experience_id = e.source_id"
    " WHERE e.run_id = %s GROUP BY x.prompt"
)


def adopt(scene: Scene, name: str, *data: str, holdout: float = 0.0) -> Scene:
    """Another run, over data sets, with tokens."""
    run = Scene.open(scene.database, name, data=data, holdout=holdout)
    run.encode()
    return run


@pytest.fixture
def imitation(scene: Scene) -> Scene:
    """A run over ten demonstrations."""
    import_records(scene.database, "set", [demonstration(number) for number in range(10)])
    return adopt(scene, "imitation", "set")


@pytest.fixture
def comparison(scene: Scene) -> Scene:
    """A run over ten pairs."""
    import_records(scene.database, "set", [preference(number) for number in range(10)])
    return adopt(scene, "comparison", "set")


def epochs(scene: Scene, *, pairs: bool, max_uses: int = 2, first_step: int = 1) -> list[list[int]]:
    """Draw fours and commit them until nothing is left; the rows, or pairs, of each batch in order."""
    draw = scene.draw_pairs if pairs else scene.draw_rows
    drawn: list[list[int]] = []
    while batch := draw(step=first_step + len(drawn), size=4):
        drawn.append(items(scene, batch, pairs=pairs))
        scene.commit(batch, max_uses=max_uses)
    return drawn


def items(scene: Scene, batch: batches.Batch, *, pairs: bool) -> list[int]:
    column, step = ("preference_id", 2) if pairs else ("experience_id", 1)
    return scene.values(
        f"SELECT {column} FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal", batch.id
    )[::step]


def count(scene: Scene, *, pairs: bool = False) -> int:
    with scene.database.transaction() as tx:
        return sum(offline.count_trainable(tx, scene.run.id, "pairs" if pairs else "rows").values())


@pytest.mark.parametrize("pairs", [False, True])
def test_each_row_is_used_once_an_epoch_and_no_batch_reaches_into_the_next(
    request: pytest.FixtureRequest, pairs: bool
) -> None:
    run: Scene = request.getfixturevalue("comparison" if pairs else "imitation")
    drawn = epochs(run, pairs=pairs)
    assert [len(batch) for batch in drawn] == [4, 4, 2, 4, 4, 2]
    first, second = (
        [row for batch in drawn[:3] for row in batch],
        [row for batch in drawn[3:] for row in batch],
    )
    assert len(set(first)) == count(run, pairs=pairs) == 10
    assert sorted(first) == sorted(second)
    assert first != second, "shuffled anew in each epoch"
    assert first != sorted(first)
    assert run.values("SELECT epoch FROM trinity.batch ORDER BY id") == [0, 0, 0, 1, 1, 1]
    table = "preference" if pairs else "experience"
    ends = run.rows(f"SELECT DISTINCT state, use_count FROM trinity.{table} WHERE run_id = %s", run.run.id)
    assert ends == [("trained", 2)]


@pytest.mark.parametrize("pairs", [False, True])
def test_the_order_is_the_same_after_everything_was_given_back(
    request: pytest.FixtureRequest, pairs: bool
) -> None:
    run: Scene = request.getfixturevalue("comparison" if pairs else "imitation")
    drawn = epochs(run, pairs=pairs)
    assert run.reopen(version=0) == 6
    assert epochs(run, pairs=pairs) == drawn


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("published_step", [2, 4])
def test_a_restart_goes_on_where_the_checkpoint_stands(
    request: pytest.FixtureRequest, pairs: bool, published_step: int
) -> None:
    run: Scene = request.getfixturevalue("comparison" if pairs else "imitation")
    drawn = epochs(run, pairs=pairs)
    run.reopen(version=0)
    draw = run.draw_pairs if pairs else run.draw_rows
    for step in range(1, 6):
        run.commit(draw(step=step, size=4), max_uses=2)
        if step == published_step:
            run.publish(1, step)
    draw(step=6, size=4)
    assert run.reopen(version=1) == 6 - published_step
    assert epochs(run, pairs=pairs, first_step=published_step + 1) == drawn[published_step:]


def test_the_order_is_that_of_the_seed_and_the_data_set(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(10)])
    sources = (
        "SELECT e.source_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
        " WHERE i.batch_id = %s ORDER BY i.ordinal"
    )
    orders = []
    for name, seed in (("one", 1), ("two", 2), ("one again", 1)):
        run = Scene.open(scene.database, name, data=["set"], seed=seed)
        run.encode()
        batch = run.draw_rows(step=1, size=10)
        assert batch is not None
        orders.append(run.values(sources, batch.id))
    assert orders[0] == orders[2] != orders[1]


def test_of_a_pair_the_chosen_one_comes_first(comparison: Scene) -> None:
    comparison.draw_pairs(step=1, size=3)
    responses = comparison.values(
        "SELECT x.response FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
        " JOIN trinity.experience_text x ON x.experience_id = e.source_id ORDER BY i.ordinal"
    )
    assert responses == ["good", "bad"] * 3
    assert comparison.value("SELECT size FROM trinity.batch") == 3


def test_what_is_known_to_be_bad_is_not_imitated(scene: Scene) -> None:
    import_records(scene.database, "pairs", [preference(0), preference(1)])
    records = [trajectory(number, f"worth {number - 1}", number - 1.0) for number in range(3)]
    import_records(scene.database, "attempts", [*records, trajectory(3, "worth unknown")])
    run = adopt(scene, "imitation", "pairs", "attempts")
    assert count(run) == 4
    batch = run.draw_rows(step=1, size=10)
    assert batch is not None
    assert batch.size == 4
    responses = run.values(
        "SELECT x.response FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
        " JOIN trinity.experience_text x ON x.experience_id = e.source_id"
    )
    assert sorted(responses) == ["good", "good", "worth 1", "worth unknown"]


def test_a_row_that_another_session_holds_is_waited_for_and_not_put_off(imitation: Scene) -> None:
    held = imitation.value("SELECT min(id) FROM trinity.experience WHERE run_id = %s", imitation.run.id)
    with imitation.database.transaction() as tx:
        tx.execute("SELECT FROM trinity.experience WHERE id = %s FOR UPDATE", [held])
        drawing = in_a_thread(imitation.database, lambda: imitation.draw_rows(step=1, size=10))
        wait_until_blocked(imitation.database, drawing)
    batch = drawing.result(WAIT_SECONDS)
    assert batch is not None
    assert batch.size == 10


def test_held_out_rows_are_kept_for_evaluation_and_never_drawn(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(60)])
    run = adopt(scene, "imitation", "set", holdout=0.25)
    [(held_out, total)] = run.rows(HELD_OUT, run.run.id)
    assert total == 60
    assert 5 < held_out < 25
    assert count(run) == 60 - held_out
    drawn = {row for batch in epochs(run, pairs=False, max_uses=1) for row in batch}
    kept = run.values("SELECT id FROM trinity.experience WHERE run_id = %s AND held_out", run.run.id)
    assert len(drawn) == 60 - held_out
    assert drawn.isdisjoint(kept)
    assert len(offline.held_out(run.database, run.run.id, pairs=False, limit=100)) == held_out
    assert len(offline.held_out(run.database, run.run.id, pairs=False, limit=3)) == 3


def test_held_out_pairs_are_never_drawn_and_come_chosen_then_rejected(scene: Scene) -> None:
    import_records(scene.database, "set", [preference(number) for number in range(40)])
    run = adopt(scene, "comparison", "set", holdout=0.5)
    held_out = 40 - count(run, pairs=True)
    assert 5 < held_out < 35
    assert sum(map(len, epochs(run, pairs=True, max_uses=1))) == 40 - held_out
    assert len(offline.held_out(run.database, run.run.id, pairs=True, limit=100)) == 2 * held_out


def with_held_out_pairs(scene: Scene) -> Scene:
    """A run that has adopted a good and a bad attempt at each of 20 tasks, and holds out about half."""
    qualities = (("good", 1.0), ("bad", 0.0))
    records = [trajectory(n, f"{quality} {n}", value) for n in range(20) for quality, value in qualities]
    import_records(scene.database, "set", records)
    run = adopt(scene, "comparison", "set", holdout=0.5)
    run.pair()
    return run


def held_out_rows(run: Scene) -> list[int]:
    """The rows of the pairs that are evaluated, in order."""
    pairs = offline.held_out(run.database, run.run.id, pairs=True, limit=100)
    return [row.experience_id for row in pairs]


def test_a_held_out_pair_that_its_rewards_contradict_is_not_evaluated_until_they_agree(scene: Scene) -> None:
    run = with_held_out_pairs(scene)
    before = held_out_rows(run)
    assert 4 < len(before) < 36
    worse = run.value("SELECT rollout_id FROM trinity.experience WHERE id = %s", before[1])
    correct(run, worse, 2.0, "reward")
    assert held_out_rows(run) == before[2:]
    correct(run, worse, 0.5, "reward")
    assert held_out_rows(run) == before


def test_a_held_out_pair_is_evaluated_as_people_decide_whatever_its_rewards_are(scene: Scene) -> None:
    run = with_held_out_pairs(scene)

    def decide(prefers: int) -> None:
        with run.database.transaction() as tx:
            sides = {"first_id": chosen, "other_id": rejected, "side": prefers, "source": "human"}
            tx.execute(query("uphold_preferences"), sides | {"run_id": run.run.id})

    before = held_out_rows(run)
    chosen, rejected = before[:2]
    decide(-1)
    assert held_out_rows(run) == before[2:], "people contradict it"
    decide(0)
    assert held_out_rows(run) == before[2:], "a tie is no preference"
    decide(1)
    worse = run.value("SELECT rollout_id FROM trinity.experience WHERE id = %s", rejected)
    correct(run, worse, 2.0, "reward")
    assert held_out_rows(run) == before, "people uphold it against its rewards"


def test_all_attempts_at_a_task_are_held_out_together(scene: Scene) -> None:
    records = [trajectory(task, f"attempt {attempt}", 1.0) for task in range(30) for attempt in range(4)]
    import_records(scene.database, "set", records)
    run = adopt(scene, "imitation", "set", holdout=0.5)
    by_prompt = run.values(HELD_OUT_BY_PROMPT, run.run.id)
    assert by_prompt == [1] * 30


def test_all_demonstrations_of_a_prompt_are_held_out_together(scene: Scene) -> None:
    prompts = [Task({"prompt": f"prompt {number}"}) for number in range(10)]
    records = [Demonstration(task, f"way {way}", {}) for task in prompts for way in range(6)]
    import_records(scene.database, "set", records)
    run = adopt(scene, "imitation", "set", holdout=0.5)
    by_prompt = run.values(HELD_OUT_BY_PROMPT, run.run.id)
    assert by_prompt == [1] * 10


def test_a_prompt_that_is_in_two_data_sets_is_held_out_in_both(scene: Scene) -> None:
    import_records(scene.database, "demonstrations", [demonstration(number) for number in range(30)])
    import_records(scene.database, "pairs", [preference(number) for number in range(30)])
    run = adopt(scene, "imitation", "demonstrations", "pairs", holdout=0.5)
    by_prompt = run.values(HELD_OUT_BY_PROMPT, run.run.id)
    assert by_prompt == [1] * 30


def test_adopting_again_adds_nothing(comparison: Scene) -> None:
    counts = "SELECT (SELECT count(*) FROM trinity.experience), (SELECT count(*) FROM trinity.preference)"
    before = comparison.rows(counts)
    assert before == [(40, 20)]
    comparison.adopt_again("set")
    assert comparison.rows(counts) == before


def test_a_restarted_run_does_not_forget_what_it_used(imitation: Scene) -> None:
    imitation.commit(imitation.draw_rows(step=1, size=4))
    imitation.adopt_again("set")
    assert sum(map(len, epochs(imitation, pairs=False, max_uses=1, first_step=2))) == 6


def test_two_runs_adopt_one_data_set_and_use_it_apart(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(4)])
    one, two = adopt(scene, "one", "set"), adopt(scene, "two", "set")
    one.commit(one.draw_rows(step=1, size=4))
    states = "SELECT r.name, e.state, e.use_count, count(*) FROM trinity.experience e JOIN trinity.run r"
    states += " ON r.id = e.run_id GROUP BY 1, 2, 3 ORDER BY 1"
    assert scene.rows(states) == [("one", "trained", 1, 4), ("set", "ready", 0, 4), ("two", "ready", 0, 4)]
    assert scene.value("SELECT count(*) FROM trinity.experience_text") == 4, "the text is shared"
    assert scene.value("SELECT count(*) FROM trinity.payload") == 8, "the tokens are each run's own"
    batch = two.draw_rows(step=1, size=10)
    assert batch is not None
    assert batch.size == 4


def test_a_run_may_adopt_several_data_sets(scene: Scene) -> None:
    import_records(scene.database, "pairs", [preference(0)])
    import_records(scene.database, "more", [demonstration(1)])
    run = adopt(scene, "both", "pairs", "more")
    assert run.rows(HELD_OUT, run.run.id) == [(0, 3)]


def test_rows_get_their_tokens_once(scene: Scene) -> None:
    import_records(scene.database, "set", [demonstration(number) for number in range(3)])
    run = Scene.open(scene.database, "run over a set", data=["set"])
    with run.database.transaction() as tx:
        assert offline.count_unencoded(tx, run.run.id) == 3
        first, second, third = offline.unencoded(tx, run.run.id, after=0, limit=10)
        assert (first.prompt, first.response) == ("task 0", "response 0")
        assert [text.id for text in offline.unencoded(tx, run.run.id, first.id, 1)] == [second.id]
        offline.write_tokens(tx, [(first.id, payload(())), (second.id, payload(()))])
        assert [text.id for text in offline.unencoded(tx, run.run.id, 0, 10)] == [third.id]
        assert offline.count_unencoded(tx, run.run.id) == 1
    lengths = "SELECT prompt_length, response_length FROM trinity.experience WHERE id = %s"
    assert run.rows(lengths, first.id) == [(3, 2)]
    run.encode()
    batch = run.draw_rows(step=1, size=10)
    assert batch is not None
    read = batches.read(run.database, batch.id)
    assert [row.payload.num_trained for row in read] == [2, 2, 2]
    assert read[0].payload.logprobs is None


def test_a_row_that_does_not_fit_takes_its_pairs_with_it(comparison: Scene) -> None:
    [(pair, chosen)] = comparison.rows(
        "SELECT id, chosen_id FROM trinity.preference WHERE run_id = %s ORDER BY id LIMIT 1",
        comparison.run.id,
    )
    with comparison.database.transaction() as tx:
        offline.drop(tx, comparison.run.id, [(chosen, "prompt_too_long", "it has 9 tokens")])
    assert comparison.rows(
        'SELECT experience_id, preference_id, stage, reason, detail FROM trinity."drop" ORDER BY id'
    ) == [
        (chosen, None, "encode", "prompt_too_long", {"error": "it has 9 tokens"}),
        (None, pair, "encode", "row_dropped", None),
    ]
    assert count(comparison, pairs=True) == 9
    assert sum(map(len, epochs(comparison, pairs=True, max_uses=1))) == 9


def test_a_pair_that_comes_after_one_of_its_rows_went_is_dropped_too(comparison: Scene) -> None:
    pairs = "SELECT id, state::text FROM trinity.preference WHERE run_id = %s AND id > %s ORDER BY id"
    first, *others = comparison.rows(pairs, comparison.run.id, 0)
    [chosen] = comparison.values("SELECT chosen_id FROM trinity.preference WHERE id = %s", first[0])
    with comparison.database.transaction() as tx:
        offline.drop(tx, comparison.run.id, [(chosen, "prompt_too_long", "it has 9 tokens")])
    more = [Preference(task(number), "good", "worse", None, {}) for number in (0, 1)]
    assert import_records(comparison.database, "set", more) == 2
    comparison.adopt_again("set")
    comparison.encode()
    last, _ = others[-1]
    [(late, dropped), (_, ready)] = comparison.rows(pairs, comparison.run.id, last)
    assert (dropped, ready) == ("dropped", "ready")
    dropped_with = 'SELECT stage, reason FROM trinity."drop" WHERE preference_id = %s'
    assert comparison.rows(dropped_with, late) == [("encode", "row_dropped")]
    counted = "SELECT reason, sum(rows), sum(groups), sum(preferences) FROM trinity.drop_view GROUP BY 1"
    assert sorted(comparison.rows(counted)) == [("prompt_too_long", 1, 0, 0), ("row_dropped", 0, 0, 2)]
    comparison.adopt_again("set")
    assert count(comparison, pairs=True) == 10
    assert sum(map(len, epochs(comparison, pairs=True, max_uses=1))) == 10


def test_a_run_ends_though_rows_were_judged_bad_while_it_trained(scene: Scene, tmp_path: Path) -> None:
    from tests.support.bench import setup_of
    from trinity_db.trainer.service import Trainer

    import_records(scene.database, "set", [trajectory(number, "a response", 1.0) for number in range(6)])
    with scene.database.transaction() as tx:
        run = runs.open_run(tx, "imitation", {}, "rows", adoption.Sources(["set"]))
        worker = workers.register(tx, run, WorkerRole.TRAIN)
    setup = setup_of(
        TrainerConfig(epochs=2, batch_size=2),
        recipe("sft"),
        tmp_path,
    )
    trainer = Trainer(scene.database, run, setup)
    trainer.worker_id = worker
    trainer.start()
    for _ in range(3):
        assert trainer.work()
    with scene.database.transaction() as tx:
        judged = [row["id"] for row in tx.execute("SELECT id FROM trinity.rollout ORDER BY id LIMIT 4")]
        rewards.record(tx, run.id, "person", [reward(rollout_id, 0.0, "reward") for rollout_id in judged])
    assert trainer.work()
    assert not trainer.work()
    assert trainer.is_done()


@pytest.mark.parametrize("epochs", [0.1, 0.5, 1.0, 1.1, 1.5, 2.0, 2.75])
@pytest.mark.parametrize(("rows", "size"), [(10, 4), (7, 7), (100, 3), (1, 8)])
def test_parts_of_a_pass_have_the_steps_that_transformers_counts(rows: int, size: int, epochs: float) -> None:
    whole = math.ceil(rows / size)
    steps = math.ceil(round(epochs * whole, 6))
    assert offline.steps_left({0: rows}, size, epochs) == steps
    uses = dict.fromkeys(range(rows), 0)
    for step in range(steps):  # a restart counts what is left
        passed, place = divmod(step, whole)
        for row in range(place * size, min((place + 1) * size, rows)):
            uses[row] = passed + 1
        assert offline.steps_left(Counter(uses.values()), size, epochs) == steps - step - 1
