"""Attempts of several steps and greedy ones, by the installed command: explored, trained on, shown."""

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.command import Store, new_store, reversals

GROUP_SIZE, STEPS = 3, 3

# A first response, and a second one to it: what the workflow of a user looks like.
WORKFLOW = """


async def two_turns(task, policy):
    text, state = policy.renderer.task(task), "first"
    for _ in range(2):
        said = await policy.complete(text, max_new_tokens=3)
        policy.step(reward=len(set(said) & set(task["answer"])), state=state)
        text, state = f"{text}{said}=", said
"""
ITEMS = """
SELECT b.id AS batch, e.group_id, m.ordinal, m.greedy, e.step, i.experience_id, i.reward, i.advantage,
       i.weight
FROM batch_item i JOIN batch b ON b.id = i.batch_id JOIN run r ON r.id = b.run_id
JOIN experience e ON e.id = i.experience_id JOIN rollout m ON m.id = e.rollout_id
WHERE r.name = %(run)s ORDER BY b.id, e.group_id, m.ordinal, e.step
"""


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("attempts")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        (store.folder / "mine.py").write_text(WORKFLOW)
        for name, algorithm, explorer, functions in (
            ("greedy", "remax", {}, ["position_match"]),
            ("turns", "gigpo", {"workflow": f"{store.folder}/mine.py:two_turns"}, []),
        ):
            config = store.config(
                name,
                taskset="reverse",
                algorithm=algorithm,
                explorer={
                    "group_size": GROUP_SIZE,
                    "concurrency": 2 * GROUP_SIZE,
                    "max_new_tokens": 4,
                    **explorer,
                },
                processors={"score": functions},
                trainer={"steps": STEPS, "batch_size": 2, "learning_rate": 1e-3},
            )
            ended = store.run("run", config)
            assert ended.code == 0, ended.stderr
        yield store


@pytest.mark.parametrize("run", ["greedy", "turns"])
def test_every_batch_draws_the_same_again(store: Store, run: str) -> None:
    batches = {row["batch"] for row in store.rows(ITEMS, run=run)}
    assert len(batches) == STEPS
    checked = store.run("replay", str(max(batches)), "--check")
    assert checked.code == 0, checked.stderr


def test_the_last_member_of_each_group_is_greedy_and_the_others_are_compared_with_it(store: Store) -> None:
    members = (
        "SELECT count(*) AS n, count(*) FILTER (WHERE greedy = (ordinal = %(size)s)) AS right FROM rollout"
    )
    members += " WHERE run_id = (SELECT id FROM run WHERE name = 'greedy')"
    [found] = store.rows(members, size=GROUP_SIZE)
    assert found["n"] == found["right"] >= 2 * STEPS * (GROUP_SIZE + 1)
    rows = store.rows(ITEMS, run="greedy")
    # The others: a member that said nothing is no part of a batch.
    greedy = {row["group_id"]: row for row in rows if row["greedy"]}
    assert greedy
    assert {(row["weight"], row["advantage"]) for row in greedy.values()} == {(0.0, 0.0)}
    for row in rows:
        if not row["greedy"] and row["group_id"] in greedy:
            assert (row["weight"], row["advantage"]) == (
                1.0,
                row["reward"] - greedy[row["group_id"]]["reward"],
            )


def test_an_attempt_of_two_turns_is_two_rows_with_the_rewards_of_the_workflow(store: Store) -> None:
    rows = store.rows(ITEMS, run="turns")
    # An attempt that lost a turn, in which nothing was said, is no part of a batch.
    assert [row["step"] for row in rows] == [0, 1] * (len(rows) // 2)
    assert rows[0]["ordinal"] == rows[1]["ordinal"]
    assert {row["advantage"] for row in rows} - {0.0}
    shown = json.loads(store.run("show", str(rows[1]["experience_id"]), "--json").stdout)
    first = json.loads(store.run("show", str(rows[0]["experience_id"]), "--json").stdout)
    assert (first["step"], first["environment"], shown["step"]) == (0, "first", 1)
    assert shown["environment"] == first["response"]
    assert shown["prompt"] == f"{first['prompt']}{first['response']}="
    [event] = shown["rewards"]
    assert (event["source"], event["name"], event["value"]) == ("explore", "workflow", rows[1]["reward"])
