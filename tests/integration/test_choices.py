"""Draws by parts and by a SELECT: shares, whole groups, what may be drawn, and the same draw again."""

from collections import Counter
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.support.replays import correct, difference, differences, drawn
from tests.support.rows import Scene, at_once
from trinity_db.data.dataset import open_writer
from trinity_db.data.records.records import Task
from trinity_db.errors import ConfigError, LeaseLost, TrinityError
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store import batches, draws, runs, workers
from trinity_db.store.batches import Batch
from trinity_db.store.samplers import DrawLimits, Picks
from trinity_db.trainer.config import SamplerConfig
from trinity_db.trainer.loop.sampling import sampler_of

GROUPS = (
    "SELECT DISTINCT e.group_id FROM trinity.batch_item i JOIN trinity.experience e ON e.id = i.experience_id"
    " WHERE i.batch_id = %s ORDER BY 1"
)
MISSING = "SELECT name, value FROM trinity.metric WHERE name LIKE 'draw/%%' ORDER BY id"
TWO_PARTS = {
    "again": {"rows": "replayed", "sampler": {"name": "prioritized", "alpha": 1}},
    "fresh": {"share": 3},
}


def sampler(name: str, **options: Any) -> Picks:
    """A sampler as a configuration names it."""
    adapter: TypeAdapter[SamplerConfig] = TypeAdapter(SamplerConfig)
    return sampler_of(adapter.validate_python({"name": name, **options}))


def groups_of(scene: Scene, batch: Batch | None) -> list[int]:
    return scene.values(GROUPS, drawn(batch).id)


def parts_of(scene: Scene, batch: Batch | None) -> dict[str, list[int]]:
    """The groups of a batch by part, as they are recorded."""
    found: dict[str, list[int]] = scene.value(
        "SELECT parameters -> 'parts' FROM trinity.batch WHERE id = %s", drawn(batch).id
    )
    return found


@pytest.mark.parametrize(
    "one",
    [
        *map(sampler, ("fifo", "newest", "uniform", "prioritized")),
        sampler("stratified", by="taskset"),
        sampler("sql", query="select id, 1 as weight from drawable where staleness = 1"),
    ],
    ids=lambda one: one.name,
)
def test_staleness_counts_from_a_version_that_is_being_written(scene: Scene, one: Picks) -> None:
    scene.make_ready(2)
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    fresh = scene.make_ready(1, version=1)
    batch = scene.draw(step=2, size=1, max_staleness=1, versions_ahead=1, sampler=one)
    assert groups_of(scene, batch) == fresh
    assert scene.values('SELECT detail FROM trinity."drop"') == [{"staleness": 2}] * 2
    recorded = "SELECT policy_version, versions_ahead, max_staleness FROM trinity.batch WHERE step = 2"
    assert scene.rows(recorded) == [(1, 1, 1)]
    assert differences(scene) == []
    scene.commit(batch)
    for version in (2, 3):
        scene.publish(version, step=version - 1)
    assert scene.values("SELECT staleness FROM trinity.lineage(3, 'run') WHERE step = 2") == [1, 1]


@pytest.mark.parametrize(
    "one",
    [
        sampler("newest", where="members = 3"),
        sampler("stratified", by="taskset"),
        sampler("mix", parts={"all": {"sampler": "uniform"}}),
        sampler("sql", query="select id, 1.5 as weight from rollout_group -- those of other states too"),
    ],
    ids=lambda one: one.name,
)
def test_groups_are_whole_and_not_too_stale(scene: Scene, one: Picks) -> None:
    scene.make_ready(4, rewards=(1.0, 0.5, 0.0))
    scene.train(step=1, size=1)
    scene.publish(1, step=1)
    fresh = scene.make_ready(3, rewards=(1.0, 0.5, 0.0), version=1)
    assert scene.draw(step=2, size=4, max_staleness=0, sampler=one) is None
    batch = scene.draw(step=2, size=3, max_staleness=0, sampler=one)
    assert groups_of(scene, batch) == fresh
    assert scene.value("SELECT count(*) FROM trinity.batch_item WHERE batch_id = %s", drawn(batch).id) == 9
    scene.reopen(version=1)
    again = scene.draw(step=2, size=2, max_staleness=0, sampler=one)
    assert len(groups_of(scene, again)) == 2
    assert differences(scene) == []


def test_members_of_groups_that_may_not_be_drawn_are_read_for_no_select(scene: Scene) -> None:
    """As if a SELECT had broken out of its brackets and picked them."""
    trained, leased, stale = scene.make_ready(3)
    scene.train(step=1, size=1)
    scene.draw(step=2, size=1)
    scene.publish(1, step=1)
    [fresh] = scene.make_ready(1, version=1)
    ids = [trained, leased, stale, fresh]
    values = {"run_id": scene.run.id, "version": 1, "versions_ahead": 0, "max_staleness": 0, "group_ids": ids}
    with scene.database.transaction() as tx:
        members = tx.execute(query("choose_members"), values).fetchall()
    assert [member["group_id"] for member in members] == [fresh, fresh]
    sly = (
        "select id, 1 as weight from drawable) as chosen, lateral (select id, 1 as weight from rollout_group"
    )
    with pytest.raises(TrinityError, match="sampler: the SELECT fails"):
        scene.draw(step=2, size=1, sampler=sampler("sql", query=sly))


def test_conditions_choose_by_what_groups_are(scene: Scene) -> None:
    equal = scene.make_ready(2, rewards=(1.0, 1.0))
    apart = scene.make_ready(2, rewards=(1.0, 0.0))
    hard = scene.make_ready(1, rewards=(0.5, 0.0))
    conditions = {
        "reward_std > 0": [*apart, *hard],
        "difficulty = 1": hard,
        "reward_mean > 0.9": equal,
        "uses = 0 and members = 2 and staleness = 0": [*equal, *apart, *hard],
        "response_length between 2 and 2 and prompt_length = 3": [*equal, *apart, *hard],
        "task like '%%' and taskset = 'tasks' and level is null": [*equal, *apart, *hard],
        "priority = 1 and ready_at >= created_at and version_max = 0": [*equal, *apart, *hard],
    }
    for condition, expected in conditions.items():
        one = sampler("fifo", where=condition)
        batch = scene.draw(step=1, size=len(expected), sampler=one)
        assert groups_of(scene, batch) == expected, condition
        scene.reopen(version=0)
        assert scene.draw(step=1, size=len(expected) + 1, sampler=one) is None
    assert differences(scene) == []


def test_used_groups_and_new_ones_have_their_shares(scene: Scene) -> None:
    scene.make_ready(12)
    mix = sampler("mix", parts=TWO_PARTS)
    for step in range(1, 4):
        batch = scene.draw(step, size=4, sampler=mix, max_uses=3)
        used = scene.values(
            "SELECT DISTINCT e.group_id FROM trinity.experience e WHERE e.use_count > 0 ORDER BY 1"
        )
        parts = parts_of(scene, batch)
        assert {name: len(ids) for name, ids in parts.items()} == (
            {"fresh": 4} if step == 1 else {"again": 1, "fresh": 3}
        )
        assert set(parts.get("again", [])) <= set(used)
        assert not set(parts["fresh"]) & set(used)
        scene.commit(batch, max_uses=3)
    chances = scene.values(
        "SELECT probability FROM trinity.batch_item WHERE batch_id = (SELECT max(id) FROM trinity.batch)"
    )
    assert [chance is None for chance in chances].count(False) == 2, "only one part draws by chance"
    assert differences(scene) == []


def test_tasksets_have_their_shares(scene: Scene) -> None:
    open_writer(scene.database, "tasks", "others")([Task({"prompt": f"other {n}"}) for n in range(3)])
    with scene.database.transaction() as tx:
        others = runs.find_taskset(tx, "others")
    groups = scene.make_ready(12)
    with scene.database.transaction() as tx:
        moved = "UPDATE trinity.rollout_group SET task_id = (SELECT min(id) FROM trinity.task"
        tx.execute(f"{moved} WHERE taskset_id = %s) WHERE id = ANY(%s)", [others, groups[:3]])
    mix = sampler("mix", parts={"o": {"taskset": "others"}, "t": {"taskset": ["tasks"]}})
    counted: Counter[str] = Counter()
    for step in range(1, 5):
        batch = scene.draw(step, size=3, sampler=mix)
        counted.update({part: len(ids) for part, ids in parts_of(scene, batch).items()})
    assert counted == {"o": 3, "t": 9}, "the smaller one gives all it has"
    scene.reopen(version=0)
    parts = parts_of(scene, scene.draw(1, size=4, sampler=sampler("stratified", by="taskset")))
    assert {part: len(ids) for part, ids in parts.items()} == {"others": 2, "tasks": 2}
    assert differences(scene) == []


def test_classes_of_difficulty_are_drawn_alike(scene: Scene) -> None:
    easy = scene.make_ready(9, rewards=(1.0, 1.0, 1.0, 0.0))
    hard = scene.make_ready(3, rewards=(1.0, 0.0, 0.0, 0.0))
    parts = parts_of(scene, scene.draw(1, size=4, sampler=sampler("stratified", by="difficulty")))
    assert [(name, len(ids)) for name, ids in parts.items()] == [("difficulty 2", 2), ("difficulty 4", 2)]
    assert set(parts["difficulty 2"]) < set(easy)
    assert set(parts["difficulty 4"]) < set(hard)
    lengths = sampler("stratified", by="length", edges=[2, 3], where="difficulty < 0.5")
    assert list(parts_of(scene, scene.draw(2, size=4, sampler=lengths))) == ["length 2"]
    assert differences(scene) == []


def test_weights_of_a_select_are_chances(scene: Scene) -> None:
    """Each of 200 seeds picks one of three groups, by the weights 1, 2 and 5; a weight of 0 is for none."""
    # What is picked follows from the ids, so these do not depend on the tests before.
    scene.value("SELECT setval('trinity.rollout_group_id_seq', 1000, false)")
    groups = scene.make_ready(4)
    assert groups == [1000, 1001, 1002, 1003]
    one = sampler(
        "sql", query=f"select id, (array[1, 2, 5, 0])[id - {groups[0]} + 1] as weight from drawable"
    )
    with scene.database.transaction() as tx:
        drawn_by = [
            one.pick(tx, DrawLimits(scene.run.id, 1, seed, 1, 0, 0, None)).members[0]["group_id"]
            for seed in range(200)
        ]
    picked = Counter(drawn_by)
    chi_square = sum(
        (picked[of] - 200 * p / 8) ** 2 / (200 * p / 8) for of, p in zip(groups, (1, 2, 5), strict=False)
    )
    # Two degrees of freedom: of a thousand sets of ids one is above. It is the same set each time.
    assert chi_square < 14, picked
    assert picked[groups[3]] == 0


def test_weights_count_relative_to_each_other_however_large_or_small(scene: Scene) -> None:
    scene.make_ready(5)
    chances = "SELECT probability FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal"
    shares = "SELECT weight FROM trinity.batch_item WHERE batch_id = %s ORDER BY ordinal"
    found: list[list[float]] = []
    for unit in ("1", "1e-100::float8", "1e99::numeric"):
        text = f"select id, {unit} * (1 + mod(id, 3)) as weight from drawable"
        batch = drawn(scene.draw(1, size=3, sampler=sampler("sql", query=text, beta=1)))
        numbers = [*scene.values(chances, batch.id), *scene.values(shares, batch.id)]
        found.append([*groups_of(scene, batch), *numbers])
        assert max(numbers[:6]) < 1
        scene.reopen(version=0)
    assert found[1:] == [pytest.approx(found[0], rel=1e-9)] * 2
    far = sampler("sql", query="select id, power(1e100, 1 - 2 * mod(id, 2)) as weight from drawable", beta=1)
    assert min(scene.values(chances, drawn(scene.draw(1, size=4, sampler=far)).id)) > 0
    assert differences(scene) == []


def test_the_same_groups_come_again_after_a_crash(scene: Scene) -> None:
    scene.make_ready(8)
    one = sampler("sql", query="select id, 1 + mod(id, 3) as weight from drawable", beta=1)
    first = groups_of(scene, scene.draw(1, size=3, sampler=one))
    with scene.database.transaction() as tx:
        other = workers.register(tx, scene.run, WorkerRole.TRAIN)
    assert scene.reopen(version=0, worker=other) == 1
    assert groups_of(scene, scene.draw(1, size=3, sampler=one, worker=other)) == first


def test_two_trainers_never_hold_a_group_together(scene: Scene) -> None:
    scene.make_ready(6)
    one = sampler("fifo", where="reward_std > 0")

    def take(tx: Transaction) -> Batch | None:
        draw = batches.Draw(scene.run.id, scene.trainer, 1, 4, scene.run.seed)
        try:
            with tx.transaction():
                return draws.draw_groups(tx, draw, None, lambda columns: columns["rewards"], one)
        except LeaseLost:
            return None

    taken = [batch for batch in at_once(scene.database, [take, take]) if batch is not None]
    assert scene.value("SELECT count(*) FROM trinity.batch WHERE state = 'leased'") == 1
    assert scene.value("SELECT count(*) FROM trinity.experience WHERE state = 'leased'") == 8
    assert taken


def test_what_has_changed_since_is_not_what_the_draw_saw(scene: Scene) -> None:
    scene.make_ready(2, rewards=(1.0, 0.0))
    scene.make_ready(2, rewards=(1.0, 1.0))
    batch = drawn(scene.draw(1, size=2, sampler=sampler("fifo", where="reward_std > 0")))
    for rollout in scene.values("SELECT id FROM trinity.rollout"):
        correct(scene, rollout, 0.25)
    scene.commit(batch)
    assert differences(scene) == []


def test_a_select_that_reads_what_has_changed_is_found(scene: Scene) -> None:
    scene.make_ready(4)
    text = (
        "select id, priority + 0 as weight from rollout_group where state = 'ready' and run_id = %(run_id)s"
    )
    batch = drawn(scene.draw(1, size=2, sampler=sampler("sql", query=text)))
    assert "reads what has changed since" in str(difference(scene, batch.id))
    assert scene.value("SELECT query FROM trinity.batch").count("priority + 0") == 1


def test_a_part_that_waits_is_said_once(scene: Scene) -> None:
    scene.make_ready(4)
    one = sampler("mix", parts=TWO_PARTS, fill=False)
    assert scene.draw(1, size=4, sampler=one, max_uses=2) is None
    assert scene.draw(1, size=4, sampler=one, max_uses=2) is None
    assert scene.rows(MISSING) == [("draw/missing/again", 1.0)]
    assert scene.draw(1, size=5, sampler=one, max_uses=2) is None, "and not where rollouts are awaited"
    assert len(scene.rows(MISSING)) == 1
    narrow = sampler("newest", where="difficulty > 2")
    assert scene.draw(1, size=4, sampler=narrow) is None
    assert scene.rows(MISSING)[1:] == [("draw/missing/newest", 4.0)]


BAD = {
    "select id from drawable": "must return the columns id and weight, and returns id.",
    "select id, 1 as weight, 2 as part from drawable": "and returns id, weight, part.",
    "select task as id, 1 as weight from drawable": "the column id of the SELECT must hold whole numbers.",
    "select id, task as weight from drawable": "the column weight of the SELECT must hold numbers.",
    "select id, 'NaN'::float8 as weight from drawable": "the weight nan; a weight is 0, or a number from 1e",
    "select id, 'NaN'::numeric as weight from drawable": "the weight NaN; a weight is 0, or",
    "select id, 'Infinity'::numeric as weight from drawable": "the weight Infinity; a weight",
    "select id, 1e400::numeric as weight from drawable": "the weight 1.00000e+400; a weight is",
    "select id, 1e-400::numeric as weight from drawable": "the weight 1e-400; a weight is",
    "select id, -1e-400::numeric as weight from drawable": "the weight -1e-400; a weight is",
    "select id, 1e308::float8 as weight from drawable": "the weight 1e+308; a weight is",
    "select id, 1e-320::float8 as weight from drawable": "the weight 9.99989e-321; a weight is",
    "select id, true as weight from drawable": "the column weight of the SELECT must hold numbers.",
    "select id + 0.5 as id, 1 as weight from drawable": "id of the SELECT must hold whole numbers.",
    "select id, -1 as weight from drawable": "the weight -1; a weight is",
    "select id, null::int as weight from drawable": "the weight NULL; a weight is",
    "select null::bigint as id, 1 as weight": "returns NULL as an id.",
    "select id, 1 as weight from drawable, generate_series(1, 2)": "twice.",
    "select id, reward_men as weight from drawable": 'column "reward_men" does not exist Perhaps you meant',
    "delete from experience returning id, 1 as weight": "the SELECT fails: syntax error",
    "with d as (delete from task returning id) select id, 1 as weight from d": "WITH clause",
    "select id, 1 as weight from drawable; select 1": "the SELECT fails",
    "select id, nextval('task_id_seq') as weight from drawable": "cannot execute nextval",
    "select id, 1 as weight from drawable, pg_sleep(3)": "make it faster, or raise sampler.seconds",
    "select id, %(size)s as weight from drawable where %(nothing)s": "write %% for a percent sign",
}  # fmt: skip


def test_a_wrong_select_is_said_in_one_line_and_nothing_is_leased(scene: Scene) -> None:
    scene.make_ready(2)
    for text, message in BAD.items():
        is_slow = "pg_sleep" in text
        one = sampler("sql", query=text, seconds=0.2 if is_slow else 60)
        with pytest.raises(TrinityError) as error:
            scene.draw(1, size=1, sampler=one)
        assert isinstance(error.value, ConfigError) is not is_slow, "which a trainer may try again"
        assert message in str(error.value), text
        assert "\n" not in str(error.value)
        assert str(error.value).startswith("sampler: ")
    assert scene.value("SELECT count(*) FROM trinity.experience WHERE state = 'ready'") == 4
    with pytest.raises(TrinityError, match='sampler: the SELECT fails: column "nothing" does not exist'):
        scene.draw(1, size=1, sampler=sampler("fifo", where="nothing > 1"))
