"""Parked attempts, by the installed command: explorers are killed, and each attempt goes on once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.command import Store, new_store, reversals
from tests.acceptance.test_recording import ENGINE
from trinity_db.arrays import codec

MEMBERS, TOKENS = 2, 3

# Its state is what the policy sampled before the park. Its second call waits as long as a file is there.
WORKFLOW = """
import asyncio, pathlib

HERE = pathlib.Path(__file__).parent


async def attempt(task, policy):
    ids = policy.tokenizer.encode(task["prompt"] + "=", add_special_tokens=False)
    if policy.parked is None:
        said = await policy.sample(ids)
        await policy.park(ids + said.token_ids)
    (HERE / f"begun-{policy.seed}").touch()
    while (HERE / "wait").exists():
        await asyncio.sleep(0.05)
    ids = policy.parked.state
    await policy.sample(ids)
    return policy.parked.answer
"""
PAYLOAD = "SELECT codec, data, num_tokens FROM payload WHERE experience_id = %(id)s"
PARKED = f"SELECT count(*) = {MEMBERS} FROM parked_view WHERE answered_at IS NULL"


@pytest.fixture
def store(server: str, template: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(server, template, tmp_path) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        (tmp_path / "says.py").write_text(ENGINE)
        (tmp_path / "waits.py").write_text(WORKFLOW)
        yield store


def test_explorers_that_are_killed_lose_no_parked_attempt_and_double_none(store: Store) -> None:
    config = store.config(
        "parked",
        taskset="reverse",
        algorithm="grpo",
        explorer={
            "engine": {"name": f"{store.folder}/says.py:Says"},
            "workflow": f"{store.folder}/waits.py:attempt",
            "group_size": MEMBERS,
            "max_new_tokens": TOKENS,
        },
        processors={"score": []},
        trainer={"steps": 1, "batch_size": 1},
    )
    (store.folder / "wait").touch()
    first = store.start("explore", config, "--groups", "1")
    store.wait_for(PARKED, first)
    first.kill()  # while all of them are parked
    states = {row["ticket"]: row["state"] for row in store.rows("SELECT ticket, state FROM parked_view")}
    tickets = sorted(states)
    for number, ticket in enumerate(tickets):
        said = store.run("wake", str(ticket), str(number))
        assert said.code == 0, said.stderr
    second = store.start("explore", config, "--groups", "1")
    store.wait_for(f"SELECT count(resumed_at) = {MEMBERS} FROM park", second)
    second.kill()  # while all of them go on
    (store.folder / "wait").unlink()
    ended = store.run("explore", config, "--groups", "1")
    assert ended.code == 0, ended.stderr
    assert len(list(store.folder.glob("begun-*"))) == MEMBERS, "random numbers stay the same"
    rows = store.rows("SELECT id, reward, response_length FROM experience ORDER BY reward")
    assert [row["reward"] for row in rows] == [*range(MEMBERS)]
    assert [row["response_length"] for row in rows] == [2 * TOKENS] * MEMBERS
    for ticket, row in zip(tickets, rows, strict=True):
        [found] = store.rows(PAYLOAD, id=row["id"])
        assert codec.decode(*found.values()).token_ids.tolist()[:-TOKENS] == states[ticket]
    assert store.value("SELECT count(*) FROM call") == 0
