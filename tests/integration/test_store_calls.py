"""Agents and their calls in the store: who may write them, each once, and which stay."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from tests.support.postgres import by_login, execute
from tests.support.rows import Scene, members
from trinity_db.arrays.codec import Payload
from trinity_db.errors import LeaseLost, TrinityError
from trinity_db.postgres.connection import Database, connect
from trinity_db.postgres.logins import make_login, open_to_roles
from trinity_db.schema.states import WorkerRole
from trinity_db.store import calls, groups, parks
from trinity_db.store.groups import ClaimedGroup

LABELLER = f"agents_labeller_{os.getpid()}"
LOGINS = [f"agents_{whose}_{os.getpid()}" for whose in ("mine", "theirs")]
NUMBERS = "SELECT number FROM trinity.call ORDER BY agent_id, number"


def call(agent_id: int, number: int) -> calls.Call:
    mask = np.array([False, True])
    tokens, version = np.array([1, 2], np.int32), np.array([0], np.int32)
    payload = Payload(tokens, mask, np.array([-0.5], np.float32), version)
    return calls.Call(agent_id, number, b"digest", "a\x00", payload, "stop")


def begin(scene: Scene, group: ClaimedGroup, member: int = 0, retry: int = 0, key: str = "key") -> int:
    with scene.database.transaction() as tx:
        return calls.begin(tx, scene.explorer, group, member, retry, key)


def record(scene: Scene, *given: calls.Call) -> int:
    with scene.database.transaction() as tx:
        return len(calls.record(tx, scene.explorer, given))


def resume(scene: Scene, group: ClaimedGroup) -> calls.ResumedAgent | None:
    with scene.database.transaction() as tx:
        return calls.resume(tx, scene.explorer, group, 0)


@pytest.fixture(scope="module")
def logins(shared_database: Database) -> Iterator[None]:
    with closing(connect(shared_database.url)) as owner:
        open_to_roles(owner)
        for login in LOGINS:
            make_login(owner, login, "trinity_explorer")
        make_login(owner, LABELLER, "trinity_labeller")
    yield
    for login in (*LOGINS, LABELLER):
        execute(shared_database.url, "DROP ROLE {}", login)


@pytest.fixture
def explorers(scene: Scene, logins: None) -> Iterator[tuple[Scene, Scene]]:
    """Two explorers of the run, each by a login of its own that may do no more than explore."""
    with (
        closing(Database(by_login(scene.database.url, LOGINS[0]))) as mine,
        closing(Database(by_login(scene.database.url, LOGINS[1]))) as theirs,
    ):
        made = [replace(scene, database=database) for database in (mine, theirs)]
        first, second = (replace(one, explorer=one.new_worker(WorkerRole.EXPLORE)) for one in made)
        yield first, second


def test_what_is_repeated_is_stored_once(scene: Scene) -> None:
    [group] = scene.claim(1)
    agent = begin(scene, group)
    assert begin(scene, group) == agent
    for _ in range(2):
        assert record(scene, call(agent, 0), call(agent, 1)) == 2
    assert scene.values(NUMBERS) == [0, 1]
    assert scene.values("SELECT prompt FROM trinity.call") == ["a", "a"]  # Postgres holds no NUL


def test_a_member_has_one_agent_that_may_call(scene: Scene) -> None:
    [group] = scene.claim(1)
    first = begin(scene, group)
    second = begin(scene, group, retry=1, key="another")
    assert record(scene, call(first, 0)) == 0
    assert record(scene, call(second, 0)) == 1
    assert scene.values("SELECT id FROM trinity.agent WHERE ended_at IS NULL") == [second]


def test_an_agent_that_no_explorer_took_up_has_ended_with_its_member(scene: Scene) -> None:
    [group] = scene.claim(1)
    begin(scene, group)

    def fate() -> calls.Fate | None:
        with scene.database.transaction() as tx:
            return calls.fate(tx, calls.hash_of("key"))

    assert fate() == calls.Fate(scene.run.id, False, None, None)
    scene.write(members(group)[:1])  # as a workflow that asks for no address does
    assert fate() == calls.Fate(scene.run.id, True, None, None)


def test_the_calls_of_an_accepted_rollout_go_and_those_of_a_refused_one_stay(scene: Scene) -> None:
    [kept], [lost] = scene.claim(1), scene.claim(1)
    for group in (kept, lost):
        record(scene, call(begin(scene, group, key=str(group.id)), 0))
    scene.lose(scene.explorer)
    [again] = scene.claim(1, worker=scene.new_worker(WorkerRole.EXPLORE))
    assert again.id == kept.id
    explorer = scene.new_worker(WorkerRole.EXPLORE)
    other = replace(scene, explorer=explorer)
    [regained] = other.claim(1)
    resumed = resume(other, regained)
    assert resumed is not None
    assert [(one.number, one.digest, one.prompt) for one in resumed.calls] == [(0, b"digest", "a")]
    for holder, group in ((scene, kept), (other, regained)):
        rollouts = members(group)[:1]
        holder.write(rollouts)
        with holder.database.transaction() as tx:
            calls.end(tx, holder.explorer, rollouts)
    assert scene.values("SELECT group_id FROM trinity.agent a JOIN trinity.call c ON c.agent_id = a.id") == [
        kept.id
    ]


def test_an_explorer_s_login_answers_agents_of_its_own_groups_alone(
    explorers: tuple[Scene, Scene], scene: Scene
) -> None:
    mine, theirs = explorers
    [group] = mine.claim(1)
    agent = begin(mine, group)
    assert record(mine, call(agent, 0)) == 1
    with pytest.raises(LeaseLost):
        begin(theirs, group, key="theirs")
    assert record(theirs, call(agent, 1)) == 0
    assert resume(theirs, group) is None
    with pytest.raises(TrinityError, match="row-level security"), theirs.database.transaction() as tx:
        tx.execute(
            "INSERT INTO trinity.call (agent_id, number, digest, prompt, codec, num_tokens, finish_reason)"
            " VALUES (%s, 1, '', '', '', 1, '')",
            [agent],
        )
    with theirs.database.transaction() as tx:
        assert tx.execute("DELETE FROM trinity.call").rowcount == 0
        assert tx.execute("UPDATE trinity.agent SET ended_at = now()").rowcount == 0


def test_another_login_takes_up_the_agents_of_an_explorer_that_is_gone(
    explorers: tuple[Scene, Scene], scene: Scene
) -> None:
    mine, theirs = explorers
    [group] = mine.claim(1)
    agent = begin(mine, group)
    record(mine, call(agent, 0))
    scene.lose(mine.explorer)
    [again] = theirs.claim(1)
    resumed = resume(theirs, again)
    assert resumed is not None
    assert (resumed.id, resumed.key_hash, len(resumed.calls)) == (agent, calls.hash_of("key"), 1)
    assert record(mine, call(agent, 1)) == 0
    assert record(theirs, call(agent, 1)) == 1
    rollouts = members(again)
    theirs.write(rollouts)
    with theirs.database.transaction() as tx:
        calls.end(tx, theirs.explorer, rollouts)
    assert scene.values(NUMBERS) == []
    with scene.database.transaction() as tx:
        fate = calls.fate(tx, calls.hash_of("key"))
    assert fate is not None
    assert (fate.ended, fate.state) == (True, "finished")


def test_an_explorer_s_login_goes_on_with_what_another_one_parked_and_a_labeller_answered(
    explorers: tuple[Scene, Scene], scene: Scene
) -> None:
    mine, theirs = explorers
    [group] = mine.claim(1)
    agent = begin(mine, group)
    point = parks.Point({"draft": 1}, 1, [], 0, None)
    with mine.database.transaction() as tx:
        ticket = parks.ticket(tx, mine.explorer, agent)
        for _ in range(2):  # as after a commit whose outcome was unclear
            parks.park(tx, mine.explorer, agent, ticket, group.attempt, point, [call(agent, 0)])
    record(mine, call(agent, 1))  # after the park: the next one makes it anew
    mine.write(members(group)[1:])
    with mine.database.transaction() as tx:
        groups.give_back(tx, mine.run.id, mine.explorer, [], [group.id])
    assert [one.id for one in theirs.claim(1)] != [group.id], "no member of it may go on"
    with closing(Database(by_login(scene.database.url, LABELLER))) as person, person.transaction() as tx:
        assert parks.answer(tx, ticket, "yes", "ann").parked_at is not None
    with (
        closing(Database(by_login(scene.database.url, LABELLER))) as person,
        pytest.raises(TrinityError, match="permission denied"),
        person.transaction() as tx,
    ):
        tx.execute("UPDATE trinity.park SET state = '1'")
    [again] = [one for one in theirs.claim(9) if one.id == group.id]
    assert (again.members, again.parked) == ([0], frozenset([0]))
    with theirs.database.transaction() as tx:  # mine lives on
        resumed = parks.resume(tx, theirs.explorer, again, 0, "another")
    assert resumed is not None
    assert (resumed.state, resumed.answer, resumed.attempt) == ({"draft": 1}, "yes", group.attempt)
    assert [one.number for one in resumed.recorded] == [0]
    with pytest.raises(LeaseLost), mine.database.transaction() as tx:
        parks.park(tx, mine.explorer, agent, ticket, group.attempt, point, [])
    assert record(mine, call(agent, 2)) == 0
    assert record(theirs, call(resumed.agent.id, 1)) == 1
