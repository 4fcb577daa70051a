"""Near duplicates in a store, against every pair compared by hand."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.rows import Scene, in_a_thread, rollout
from tests.support.steps import load, process
from trinity_db.config.shared import ModelConfig
from trinity_db.processors.lists.lists import Steps
from trinity_db.processors.lists.step import Context, Drop, Step

ROWS = (
    "SELECT e.id, e.group_id, e.state::text, x.response FROM trinity.experience e"
    " JOIN trinity.experience_text x ON x.experience_id = e.id ORDER BY e.id"
)
DROPS = "SELECT experience_id, step, reason, detail FROM trinity.\"drop\" WHERE stage = 'clean' ORDER BY 1"
ANY_GROUP = {"score": [], "group": {"min_size": 1}}


def step(scene: Scene, **options: Any) -> Step:
    """As a processor that has just started prepares it."""
    [loaded] = load("clean", {"name": "not_near_duplicate", **options})
    return loaded.prepared(Context(scene.database, ModelConfig.model_validate({"path": "none"}), 1.0))


def steps(scene: Scene, **options: Any) -> Steps:
    return {"clean": [step(scene, **options)]}


def write(scene: Scene, *groups: Sequence[str]) -> list[int]:
    """Groups with these responses, each at the next task; the ids of all rows."""
    for responses in groups:
        [group] = scene.claim(1, group_size=len(responses))
        scene.write([rollout(group, member, response) for member, response in enumerate(responses)])
    return scene.values("SELECT id FROM trinity.experience ORDER BY id")


def shingles(text: str, length: int) -> set[tuple[str, ...]]:
    split = text.split()
    return {tuple(split[start : start + length]) for start in range(len(split) - length + 1)}


def similarity(one: str, other: str, length: int = 3) -> float:
    a, b = shingles(one, length), shingles(other, length)
    return len(a & b) / len(a | b)


def texts(rng: random.Random, count: int) -> list[str]:
    """Texts of sixty words; most are another one with some words replaced, from one to thirty."""
    found = [" ".join(f"w{rng.randrange(500)}" for _ in range(60))]
    while len(found) < count:
        split = rng.choice(found).split()
        for place in rng.sample(range(60), rng.choice((1, 2, 3, 5, 10, 30))):
            split[place] = f"w{rng.randrange(500)}"
        found.append(" ".join(split))
    return found


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_what_is_dropped_is_what_a_comparison_of_all_pairs_drops(scene: Scene, threshold: float) -> None:
    written = texts(random.Random(3), 120)
    write(scene, *(written[start : start + 40] for start in (0, 40, 80)))
    options = {"threshold": threshold, "words": 3, "within": "run"}
    process(scene, {"clean": [], "claim_size": 50, **ANY_GROUP}, steps(scene, **options))
    kept: dict[int, str] = {}
    dropped: dict[int, float] = {}
    rows = scene.rows(ROWS)
    for id, _, _, response in rows:
        nearest = max((similarity(response, other) for other in kept.values()), default=0.0)
        if nearest >= threshold:
            dropped[id] = nearest
        else:
            kept[id] = response
    assert 20 < len(dropped) < 100
    found = {id: detail for id, _, _, detail in scene.rows(DROPS)}
    assert {id: detail["jaccard"] for id, detail in found.items()} == {
        id: round(nearest, 4) for id, nearest in dropped.items()
    }
    by_id = {id: response for id, _, _, response in rows}
    for id, detail in found.items():
        assert detail["of"] in kept
        assert round(similarity(by_id[id], by_id[detail["of"]]), 4) == detail["jaccard"]


TEXT = "first we add twelve and fifteen and then we get the answer of twenty seven"
NEAR = TEXT + " !"
FAR = "the cat sat on the mat and looked at the moon until the morning came again"


@pytest.mark.parametrize(
    ("within", "states"),
    [
        ("group", ["ready", "dropped", "ready", "ready"]),
        ("task", ["ready", "dropped", "ready", "ready"]),
        ("run", ["ready", "dropped", "ready", "dropped"]),
    ],
)
def test_a_response_is_compared_within_what_is_configured(
    scene: Scene, within: str, states: list[str]
) -> None:
    write(scene, [TEXT, NEAR], [FAR, NEAR])
    process(scene, {"clean": [], **ANY_GROUP}, steps(scene, within=within))
    assert [state for _, _, state, _ in scene.rows(ROWS)] == states


def test_attempts_at_the_same_task_in_another_group_are_compared(scene: Scene) -> None:
    write(scene, [TEXT])
    [task] = scene.values("SELECT task_id FROM trinity.rollout_group")
    write(scene, [NEAR])
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.rollout_group SET task_id = %s", [task])
    process(scene, {"clean": [], **ANY_GROUP}, steps(scene))
    assert [state for _, _, state, _ in scene.rows(ROWS)] == ["ready", "dropped"]


def test_a_processor_that_starts_later_finds_what_another_one_passed(scene: Scene) -> None:
    [first] = write(scene, [TEXT])
    process(scene, {"clean": [], **ANY_GROUP}, steps(scene, within="run"))
    _, second = write(scene, [NEAR])
    process(scene, {"clean": [], **ANY_GROUP}, steps(scene, within="run"))
    assert scene.rows(DROPS) == [
        (second, "not_near_duplicate", "near_duplicate", {"of": first, "jaccard": 1.0})
    ]


def test_a_row_whose_processor_died_before_its_verdict_passes_again(scene: Scene) -> None:
    [id] = write(scene, [TEXT])
    judged = [ask(scene, [id]) for _ in range(2)]
    assert judged == [{id: None}, {id: None}]
    assert scene.value("SELECT count(*) FROM trinity.minhash") == 1


def test_what_was_dropped_since_is_no_reason_to_drop_another(scene: Scene) -> None:
    first, second = write(scene, [TEXT, NEAR])
    assert ask(scene, [first]) == {first: None}
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.experience SET state = 'dropped' WHERE id = %s", [first])
    assert ask(scene, [second]) == {second: None}


def test_of_near_duplicates_that_processors_judge_at_once_one_passes(scene: Scene) -> None:
    for _ in range(8):
        write(scene, [TEXT] * 4)
    groups = [scene.values("SELECT id FROM trinity.experience WHERE id %% 4 = %s", part) for part in range(4)]
    calls = [in_a_thread(scene.database, lambda ids=ids: ask(scene, ids, "run")) for ids in groups]  # type: ignore[misc]
    found = {id: drop for call in calls for id, drop in call.result(30).items()}
    [passed] = [id for id, drop in found.items() if drop is None]
    assert len(found) == 32
    assert {drop.detail["of"] for drop in found.values() if drop and drop.detail} == {passed}


def ask(scene: Scene, ids: Sequence[int], within: str = "task") -> dict[int, Drop | None]:
    """What a step of a new process says of rows."""
    rows = scene.rows(
        "SELECT e.id, e.run_id, g.task_id, e.group_id, x.response FROM trinity.experience e"
        " JOIN trinity.rollout_group g ON g.id = e.group_id"
        " JOIN trinity.experience_text x ON x.experience_id = e.id WHERE e.id = ANY(%s)",
        list(ids),
    )
    names = ("id", "run_id", "task_id", "group_id", "response")
    columns = dict(zip(names, (list(column) for column in zip(*rows, strict=True)), strict=True))
    return {columns["id"][place]: found for place, found in step(scene, within=within)(columns)}
