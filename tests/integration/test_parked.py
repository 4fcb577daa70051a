"""Attempts that park: they have no place, are on the record, and any explorer takes them up, once."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.explorers import ERRORS, Explore, Explorers, Says, give_back, sequences, stored, user
from tests.support.rows import Scene, rolled_back
from tests.support.waiting import until, wait_until
from trinity_db.errors import NotFound, TrinityError
from trinity_db.explorer.attempt.parking import AttemptParked, Parked
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.postgres.connection import connect
from trinity_db.store import evaluations, parks, runs
from trinity_db.store.groups import ClaimedGroup

PARKED = "SELECT FROM trinity.park WHERE parked_at IS NOT NULL"
TICKETS = "SELECT id FROM trinity.park ORDER BY id"


def answer(scene: Scene, ticket: int, value: Any, by: str | None = None) -> parks.Answered:
    with scene.database.transaction() as tx:
        return parks.answer(tx, ticket, value, by)


def answer_all(scene: Scene, value: Any) -> None:
    for ticket in scene.values(f"{TICKETS.replace('ORDER', 'WHERE answered_at IS NULL ORDER')}"):
        answer(scene, ticket, value)


async def asks_a_person(task: Mapping[str, Any], policy: Policy) -> float:
    """Says something, waits for a word, and says something to that."""
    if policy.parked is None:
        question = [user("a?")]
        said = await policy.chat(question)
        await policy.park({"messages": [*question, said.message], "seed": str(policy.seed)})
    assert policy.parked.state["seed"] == str(policy.seed)
    await policy.chat([*policy.parked.state["messages"], user(policy.parked.answer)])
    return 1.0


def test_any_explorer_goes_on_with_a_parked_attempt_and_it_is_one_sequence(
    explore: Explore, scene: Scene
) -> None:
    first = explore(asks_a_person)
    assert scene.values("SELECT count(*) FROM trinity.rollout") == [0]
    assert scene.values("SELECT worker_id FROM trinity.rollout_group") == [None]
    assert not first.work()  # no member may go on
    scene.lose(first.worker_id)  # an explorer that is gone takes nothing along
    answer_all(scene, "b?")
    explore(asks_a_person)
    assert scene.values(ERRORS) == [None, None]
    assert sequences(scene) == [("a?yesb?yes", "..xxx..xxx")] * 2
    assert scene.values("SELECT reward FROM trinity.experience") == [1.0, 1.0]
    assert scene.values("SELECT count(*) FROM trinity.call") == [0]
    assert scene.values("SELECT count(*) FROM trinity.agent WHERE ended_at IS NULL") == [0]


def test_a_parked_attempt_has_no_place(explore: Explore, scene: Scene) -> None:
    explore(asks_a_person, groups=3, size=1, concurrency=1)
    assert scene.values("SELECT count(*) FROM trinity.parked_view") == [3]
    answer_all(scene, "b?")
    explore(asks_a_person, groups=3, size=1, concurrency=1)
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["complete"] * 3


def test_an_explorer_that_dies_while_it_goes_on_costs_nothing_and_doubles_nothing(
    explore: Explore, scene: Scene
) -> None:
    """What programs asked after the park is asked again; before it, no token is lost."""
    dies = [True]

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        if policy.parked is None:
            await policy.chat([user("a?")])
            await policy.park(None)
        assert policy.parked == parked
        await policy.address()  # from here on each call is stored at once
        await policy.chat([user("c?")])
        if dies:
            dies.clear()
            await asyncio.to_thread(give_back, scene)
        await policy.chat([user("d?")])
        return 1.0

    parked = Parked(None, "yes", True)
    explore(workflow, size=1)
    answer_all(scene, "yes")
    states = "SELECT state::text FROM trinity.rollout ORDER BY 1"
    explorer = explore(workflow, size=1)  # it loses the group in the middle

    def is_finished() -> bool:
        explorer.work()  # on a busy machine it claims the group again only after the refusal
        return "finished" in scene.values(states)

    wait_until(is_finished, "the attempt is finished")
    assert scene.values(states) == ["finished", "refused"]
    assert sequences(scene) == [("a?yes", "..xxx"), ("c?yes", "..xxx"), ("d?yes", "..xxx")]
    broken_off = (
        "SELECT c.prompt, c.number FROM trinity.call c JOIN trinity.agent a ON a.id = c.agent_id"
        " WHERE a.ended_at IS NOT NULL"
    )
    assert scene.rows(broken_off) == [("c?", 1)]


def test_the_first_answer_counts(explore: Explore, scene: Scene) -> None:
    explore(asks_a_person, size=1)
    [ticket] = scene.values(TICKETS)
    given = answer(scene, ticket, "b?", by="ann")
    assert (given.run, given.run_state) == (scene.run.name, "active")
    assert given.parked_at is not None
    answer(scene, ticket, "b?")  # the same again, as after a lost connection
    with pytest.raises(TrinityError, match=f"Ticket {ticket} cannot be answered: it was answered by ann at"):
        answer(scene, ticket, "c?")
    with pytest.raises(NotFound, match="There is no ticket 999999"):
        answer(scene, 999_999, 1)
    explore(asks_a_person, size=1)
    with pytest.raises(TrinityError, match="cannot be answered"):
        answer(scene, ticket, "c?")
    assert [text for text, _ in sequences(scene)] == ["a?yesb?yes"]


def test_an_answer_may_come_before_the_attempt_parks(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        if policy.parked is None:
            await policy.chat([user("a?")])
            ticket = await policy.ticket()
            assert await policy.ticket() == ticket
            given = await asyncio.to_thread(answer_elsewhere, scene, ticket, {"right": True})
            assert given.parked_at is None
            await policy.park(["b?"])
        assert policy.parked.answer == {"right": True}
        await policy.chat([user("c?")])
        return 1.0

    explore(workflow, size=1)
    assert [text for text, _ in sequences(scene)] == ["a?yes", "c?yes"]


def answer_elsewhere(scene: Scene, ticket: int, value: Any) -> parks.Answered:
    """By a connection of its own, as another process does."""
    with closing(connect(scene.database.url)) as other:
        given = parks.answer(other, ticket, value, None)
        other.commit()
        return given


def test_an_attempt_that_is_never_answered_goes_on_at_its_time(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        if policy.parked is None:
            await policy.chat([user("a?")])
            await policy.park("state", seconds=0)
        assert (policy.parked.answer, policy.parked.is_answered) == (None, False)
        return 0.5

    explore(workflow, size=1)
    assert scene.values("SELECT reward FROM trinity.experience") == [0.5]
    with pytest.raises(TrinityError, match="its attempt resumed without one at 20"):
        answer(scene, scene.value(TICKETS), 1)


def test_one_attempt_may_park_several_times_and_keeps_its_steps(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        turn = 0 if policy.parked is None else policy.parked.state
        await policy.chat([user(f"{turn}?")])
        if turn == 2:
            return
        policy.step(reward={"turn": turn}, state=f"state {turn}")
        await policy.park(turn + 1)

    for _ in range(3):
        explore(workflow, size=1)
        answer_all(scene, None)
    assert scene.values(ERRORS) == [None]
    assert [text for text, _ in sequences(scene)] == ["0?yes", "1?yes", "2?yes"]
    assert scene.rows("SELECT step, reward FROM trinity.experience ORDER BY step") == [(0, 0), (1, 1), (2, 0)]
    states = "SELECT state FROM trinity.experience_text ORDER BY experience_id"
    assert scene.values(states) == ["state 0", "state 1", None]
    assert scene.values("SELECT left_at IS NULL FROM trinity.park ORDER BY id") == [False, True]


def test_tasks_of_one_attempt_that_park_at_a_time_park_it_once_by_the_first_of_them(
    explore: Explore, scene: Scene
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        if policy.parked is None:
            await policy.chat([user("a?")])
            parks = [policy.park("first"), policy.park("second", seconds=0)]
            ended = await asyncio.gather(*parks, return_exceptions=True)
            assert [type(one) for one in ended] == [AttemptParked] * 2
            await policy.park("third", seconds=0)  # as a workflow that goes on although it is parked
        assert policy.parked.state == "first"
        return 1.0

    explore(workflow, size=1)
    assert scene.rows("SELECT state, wake_at FROM trinity.park") == [("first", None)]
    answer_all(scene, "yes")
    explore(workflow, size=1)
    assert scene.values(ERRORS) == [None]
    assert scene.values("SELECT count(*) FROM trinity.park") == [1]


def test_a_member_goes_on_while_others_of_its_group_are_under_way(explorer: Explorers, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        if policy.parked is not None:
            return 1.0
        await policy.chat([user("a?")])
        if not begun:
            begun.append(policy)
            await policy.park("first")
        await until(lambda: stored(scene, PARKED), "the other one is parked")
        await asyncio.to_thread(answer_elsewhere, scene, scene_ticket(scene), "now")
        role.wake()
        await until(lambda: stored(scene, "SELECT FROM trinity.rollout"), "the other one has ended")
        return 0.0

    begun: list[Policy] = []
    role = explorer(workflow, Says(), groups=1)
    assert role.work()
    assert scene.values(ERRORS) == [None, None]
    assert scene.values("SELECT attempt FROM trinity.rollout") == [1, 1]


def scene_ticket(scene: Scene) -> int:
    [(ticket,)] = stored(scene, TICKETS)
    return int(ticket)


def test_a_group_that_is_too_stale_is_not_gone_on_with_and_says_why(explore: Explore, scene: Scene) -> None:
    explore(asks_a_person, groups=4)
    with scene.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.policy_version (run_id, version, step, checkpoint, checkpoint_hash)"
            " SELECT run_id, 1, 1, checkpoint, checkpoint_hash FROM trinity.policy_version WHERE run_id = %s",
            [scene.run.id],
        )

    async def never(task: Mapping[str, Any], policy: Policy) -> None:
        raise AssertionError("it goes on")

    explore(never, groups=1)
    assert set(scene.values(ERRORS)) == {"parked until its rollout group was too stale for training"}
    assert scene.values("SELECT count(*) FROM trinity.parked_view") == [0]
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["complete"] * 4


def test_numbers_of_withdrawn_versions_make_no_parked_attempt_stale(explore: Explore, scene: Scene) -> None:
    explore(asks_a_person)
    with scene.database.transaction() as tx:
        for version, withdrawn_at, skipped in ((1, "now", 0), (2, "now", 0), (3, None, 2)):
            tx.execute(
                "INSERT INTO trinity.policy_version"
                " (run_id, version, step, checkpoint, checkpoint_hash, withdrawn_at, skipped)"
                " SELECT run_id, %s, %s, CASE WHEN %s = 3 THEN checkpoint END, checkpoint_hash, %s, %s"
                " FROM trinity.policy_version WHERE run_id = %s AND version = 0",
                [version, version, version, withdrawn_at, skipped, scene.run.id],
            )
    answer_all(scene, "b?")
    assert [group.stale for group in woken(scene, 1)] == [frozenset()]
    assert [group.stale for group in woken(scene, 0)] == [frozenset({0, 1})]
    explore(asks_a_person, max_staleness=1)
    assert scene.values(ERRORS) == [None, None]


def woken(scene: Scene, max_staleness: int) -> list[ClaimedGroup]:
    """What an explorer that holds all groups, and has loaded version 3, may go on with."""
    with rolled_back(scene.database) as tx:
        held = tx.execute(
            "UPDATE trinity.rollout_group SET worker_id = %s RETURNING id", [scene.explorer]
        ).fetchall()
        return parks.woken(tx, scene.explorer, [row["id"] for row in held], 3, max_staleness, False)


def test_parked_attempts_that_a_group_does_not_need_any_more_are_ended(
    explore: Explore, scene: Scene
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        await policy.chat([user("a?")])
        if not begun:
            begun.append(policy)
            await policy.park("spare")
        await until(lambda: stored(scene, PARKED), "the other one is parked")
        return 1.0

    begun: list[Policy] = []
    explore(workflow, spare=1)
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["complete"]
    with pytest.raises(TrinityError, match="its attempt ended at 20"):
        answer(scene, scene.value(TICKETS), 1)


def test_attempts_of_an_evaluation_park_too(explore: Explore, scene: Scene) -> None:
    with scene.database.transaction() as tx:
        tasks = runs.find_taskset(tx, "tasks")
        begun = evaluations.begin(tx, scene.run.id, 0, evaluations.Settings(tasks, 2, 0.5, 4))
    explore(asks_a_person, only=[begun])
    assert scene.values("SELECT count(*) FROM trinity.parked_view") == [16]
    with scene.database.transaction() as tx:
        assert evaluations.due(tx, scene.run.id, 0) is None
    answer_all(scene, "b?")
    explore(asks_a_person, only=[begun])
    assert scene.values("SELECT DISTINCT state::text FROM trinity.rollout_group") == ["evaluated"]
    assert scene.values("SELECT count(*) FROM trinity.rollout WHERE state = 'finished'") == [16]


BAD_STATES = {
    "no JSON": (object(), {}, "TypeError: The state of a parked attempt is not JSON: Object of type object"),
    "no finite number": (
        float("nan"),
        {},
        "ValueError: The state of a parked attempt is not JSON: Out of range",
    ),
    "no text as a key": (
        {1: 2},
        {},
        "TypeError: The state of a parked attempt has the key 1; JSON keys",
    ),
    "a NUL": (["\x00"], {}, "ValueError: The state of a parked attempt has the character NUL"),
    "half a pair": ("\ud800", {}, "ValueError: The state of a parked attempt has half of a surrogate pair"),
    "too much": (
        "a" * 2**20,
        {},
        "ValueError: The state of a parked attempt has 1048578 bytes as JSON; at most",
    ),
    "no time": (
        None,
        {"seconds": -1},
        "ValueError: seconds is -1; it must be a number from 0 to 1e+09, or None.",
    ),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_what_cannot_be_kept_is_refused_at_once(explore: Explore, scene: Scene, name: str) -> None:
    state, options, error = BAD_STATES[name]

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.chat([user("a?")])
        await policy.park(state, **options)

    explore(workflow, size=1)
    [said] = scene.values(ERRORS)
    assert said.startswith(error)


def test_a_call_that_is_under_way_keeps_an_attempt_from_parking(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        engine: Any = policy._engine
        engine.gate = asyncio.Event()
        call = asyncio.create_task(policy.chat([user("a?")]))
        await until(lambda: engine.asked, "the call is under way")
        try:
            await policy.park(1)
        finally:
            engine.gate.set()
            await call

    explore(workflow, size=1)
    [said] = scene.values(ERRORS)
    assert said.startswith(
        "RuntimeError: A call of the policy is under way: await it before the attempt parks."
    )


def test_an_attempt_stays_parked_whatever_its_workflow_does_then(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        await policy.chat([user("a?")])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(policy.park(1))
        return 1.0

    explore(workflow, size=1)
    assert scene.values("SELECT count(*) FROM trinity.parked_view") == [1]
    assert scene.values(ERRORS) == []


def test_an_explorer_that_lost_its_group_parks_nothing(explore: Explore, scene: Scene) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        await policy.chat([user("a?")])
        if not lost:
            lost.append(True)
            await asyncio.to_thread(give_back, scene)
            await policy.park(1)
        return 1.0

    lost: list[bool] = []
    explore(workflow, size=1)
    assert scene.values("SELECT count(*) FROM trinity.parked_view") == [0]
    assert sorted(scene.values("SELECT state FROM trinity.rollout")) == ["finished", "refused"]


def test_people_see_what_is_parked_and_answer_it(
    explore: Explore,
    scene: Scene,
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    run = scene.run.name
    assert command_line("parked", run).stdout == f"No attempt of run '{run}' is parked.\n"
    explore(asks_a_person)
    first, second = scene.values(TICKETS)
    head, _, *listed = command_line("parked", run).stdout.splitlines()
    assert [line.split()[0] for line in (head, *listed)] == ["ticket", str(first), str(second)]
    assert '"content": "yes"}]}' in listed[0]
    [_, one] = json.loads(command_line("parked", run, "--json").stdout)
    assert (one["ticket"], one["state"]["messages"][1]["content"]) == (second, "yes")
    status = command_line("status", run).stdout
    assert "2 attempts of 1 groups, the longest since" in status
    assert "quote a text: '\"yes\"'" in str(command_line("wake", str(first), "yes").code)
    assert str(command_line("wake", "999999", "1").code).startswith("error: There is no ticket 999999;")
    said = command_line("wake", str(first), '"b?"').stdout
    assert said == f"Ticket {first} is answered: an explorer of run '{run}' continues the attempt.\n"
    path = tmp_path / "answer.json"
    path.write_text('"c?"')
    assert command_line("wake", str(second), "--from", str(path), "--by", "ann").code == 0
    assert str(command_line("wake", str(second), '"d?"').code).startswith(
        f"error: Ticket {second} cannot be answered: it was answered by ann at 20"
    )
    explore(asks_a_person)
    experience = scene.value("SELECT max(id) FROM trinity.experience")
    [park] = json.loads(command_line("show", str(experience), "--json").stdout)["parks"]
    assert (park["ticket"], park["answer"], park["answered_by"]) == (second, "c?", "ann")


def test_an_attempt_that_fails_after_a_park_is_made_again_from_its_start(
    explore: Explore, scene: Scene
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        if policy.parked is None:
            await policy.chat([user(f"{len(calls)}?")])
            calls.append("first")
            if len(calls) == 1:
                await policy.park(1)
            return 1.0
        raise ValueError("no more ideas")

    calls: list[str] = []
    explore(workflow, size=1, retries=1)
    answer_all(scene, None)
    explore(workflow, size=1, retries=1)
    assert scene.values(ERRORS) == [None]
    assert [text for text, _ in sequences(scene)] == ["1?yes"]
    assert scene.values("SELECT count(*) FROM trinity.parked_view") == [0]
