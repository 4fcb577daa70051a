"""Attempts whose environment does not start: given back to the store, and made by another explorer."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.explorers import Explorers
from tests.support.rows import Scene
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.environments.environment import NotStarted
from trinity_db.explorer.loop import backoff
from trinity_db.explorer.loop.backoff import GivenBack
from trinity_db.store.groups import ClaimedGroup, Rollout

MEMBERS = """
SELECT ordinal, state::text, split_part(finish_reason, ' (', 1), worker_id FROM trinity.rollout
ORDER BY attempt, group_id, ordinal
"""
HOLDERS = "SELECT state::text, worker_id FROM trinity.rollout_group ORDER BY id"
WHY = "given back: NotStarted: no server"


async def broken(task: Mapping[str, Any], policy: Policy) -> None:
    raise NotStarted("no server")


async def healthy(task: Mapping[str, Any], policy: Policy) -> None:
    await policy.sample([1, 2])


def test_another_explorer_makes_the_attempts_that_do_not_begin_on_one(
    scene: Scene, explorer: Explorers
) -> None:
    one, other = explorer(broken, retries=3), explorer(healthy)
    one.work()
    assert scene.rows(HOLDERS) == [("open", None)] * 2, "no explorer holds them"
    assert scene.rows(MEMBERS) == [
        (member, "refused", WHY, one.worker_id) for _ in range(2) for member in (0, 1)
    ]
    other.work()
    assert scene.rows(HOLDERS) == [("complete", None)] * 2
    assert [row[1:] for row in scene.rows(MEMBERS)[4:]] == [("finished", "stop", other.worker_id)] * 4
    assert scene.values("SELECT failed FROM trinity.rollout_group") == [0, 0], "no attempt was used up"


def test_an_explorer_that_is_alone_tries_again_after_a_pause_and_makes_them(
    scene: Scene, explorer: Explorers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "PAUSE_SECONDS", (0.01, 0.02))
    tries = 0

    async def starts_at_last(task: Mapping[str, Any], policy: Policy) -> None:
        nonlocal tries
        tries += 1
        if tries <= 300:  # more than failures that end an explorer
            raise NotStarted("no server")
        await healthy(task, policy)

    role = explorer(starts_at_last)
    while scene.rows(HOLDERS) != [("complete", None)] * 2:
        role.work()
    states = "SELECT state::text, count(*) FROM trinity.rollout GROUP BY 1 ORDER BY 1"
    assert scene.rows(states) == [("finished", 4), ("refused", 300)]


def test_a_group_is_given_back_when_its_other_attempts_are_written(scene: Scene, explorer: Explorers) -> None:
    async def half(task: Mapping[str, Any], policy: Policy) -> None:
        if (number := len(begun)) % 2:
            begun.append(number)
            raise NotStarted("no server")
        begun.append(number)
        await healthy(task, policy)

    begun: list[int] = []
    explorer(half, concurrency=2).work()
    explorer(healthy).work()
    assert scene.rows(HOLDERS) == [("complete", None)] * 2
    finished = (
        "SELECT count(*), count(DISTINCT (group_id, ordinal)) FROM trinity.rollout WHERE state = 'finished'"
    )
    assert scene.rows(finished) == [(4, 4)]


def test_status_says_why_attempts_did_not_begin(
    scene: Scene, explorer: Explorers, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    explorer(broken).work()
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    status = json.loads(command_line("status", scene.run.name, "--json").output)
    assert status["given_back"]["rollouts"] == 4
    assert status["given_back"]["why"].startswith(WHY)
    assert status["refused"]["rollouts"] == 0, "none came too late"
    said = " ".join(command_line("status", scene.run.name).output.split())
    assert "4 attempts could not start and were given back, last at" in said
    assert "NotStarted: no server" in said


def rollout(given_back: bool) -> Rollout:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    return Rollout(ClaimedGroup(7, 1, {}, [0]), 0, now, now, error="no server", given_back=given_back)


def test_the_pause_grows_up_to_a_limit_and_ends_with_the_first_attempt_that_begins() -> None:
    now = 0.0
    trouble = GivenBack(clock=lambda: now)
    pauses = []
    for _ in range(8):
        begun = now
        trouble.note([rollout(True)])
        trouble.note([rollout(True)])  # of the same time
        while trouble.pauses:
            now += 0.5
        pauses.append(now - begun)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert trouble.is_in_trouble
    assert trouble.at_rest({7}) == []
    assert (trouble.at_rest(()), trouble.at_rest(())) == ([7], [])
    trouble.note([rollout(False)])
    assert not trouble.is_in_trouble
