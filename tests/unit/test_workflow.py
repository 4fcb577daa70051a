"""Workflows: found by name or in a file, and what becomes of one attempt, whatever happens in it."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.echo import Digits, Echo
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import PromptConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.attempt.attempts import Attempts
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.workflow import Workflow, load, single_turn
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.engine import (
    Completion,
    EngineFailed,
    Request,
    RequestFailed,
    RequestRefused,
)
from trinity_db.models.chat import prompts
from trinity_db.store.groups import ClaimedGroup, Reward, Rollout, Step

OWN = """
from __future__ import annotations

from dataclasses import dataclass

@dataclass
class State:
    turns: int

async def mine(task, policy):
    return State(3).turns

class Game:
    async def __call__(self, task, policy):
        return 4

game = Game()

def of_an_older_kind(engine, groups, template):
    yield []

def no_coroutine(task, policy):
    return 1
"""


def group(prompt: str = "12", greedy: int | None = None) -> ClaimedGroup:
    return ClaimedGroup(1, attempt=1, task={"prompt": prompt}, members=[0, 2], greedy=greedy)


def attempt(
    workflow: Workflow,
    claimed: ClaimedGroup | None = None,
    engine: Echo | None = None,
    member: int = 0,
    **options: Any,
) -> Rollout:
    """What one attempt of a member comes to."""
    attempts = Attempts(
        workflow,
        engine or Echo(7),
        ExplorerConfig(**options),
        PromptConfig(prompt_template="{prompt}"),
        seed=0,
    )
    return asyncio.run(attempts.make(claimed or group(), member))


def test_a_single_turn_is_a_prompt_and_a_response() -> None:
    made = attempt(single_turn, member=2)
    [step] = made.steps
    assert (made.member, step.prompt, step.response, made.finish_reason) == (2, "12", "21", "stop")
    assert step.payload.versions is not None
    assert step.payload.versions.tolist() == [7, 7]
    assert made.started_at <= made.finished_at


def test_a_plain_prompt_without_the_chat_template_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts._warn_once.cache_clear()
    attempt(single_turn)
    assert caplog.messages == [], "the template of this tokenizer writes no special token"
    monkeypatch.setattr(Digits, "all_special_tokens", ["9"])
    monkeypatch.setattr(
        Digits, "apply_chat_template", lambda self, messages, **options: f"9{messages[0]['content']}"
    )
    for task in ({"messages": [{"role": "user", "content": "12"}]}, {"prompt": "912"}):
        attempt(single_turn, replace(group(), task=task))
    assert caplog.messages == [], "both prompts have the special token that the template writes"
    for _ in range(2):
        attempt(single_turn)
    assert caplog.messages == [prompts.PLAIN_PROMPT_WARNING]


def test_the_greedy_member_of_a_group_is_sampled_at_temperature_0() -> None:
    engine = Echo()
    for member in (0, 2):
        attempt(single_turn, group(greedy=2), engine, member, temperature=0.7)
    assert [request.temperature for request in engine.asked] == [0.7, 0.0]


@pytest.mark.parametrize(
    ("task", "error"),
    [
        ({"prompt": "12345"}, "prompt of 5 tokens does not fit the context of 5"),
        (
            {"messages": [{"role": "system", "content": "6"}]},
            "The chat template refuses the conversation: no system, please",
        ),
    ],
)
def test_a_prompt_that_the_policy_refuses_fails_its_attempt_and_is_not_tried_again(
    task: Mapping[str, Any], error: str
) -> None:
    tried = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        tried.append(task)
        await single_turn(task, policy)

    made = attempt(workflow, ClaimedGroup(1, 1, dict(task), [0]), retries=3)
    assert (made.error, [*made.steps], len(tried)) == (error, [], 1)


def test_an_error_costs_its_attempt_and_is_named_with_its_place() -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        await single_turn(task, policy)
        raise ValueError("my bug")

    made = attempt(workflow)
    assert made.error is not None
    assert made.error.startswith("ValueError: my bug (")
    assert "test_workflow.py, line" in made.error
    assert not made.steps


def test_an_attempt_that_raised_is_made_again_as_often_as_it_may_with_nothing_of_the_first() -> None:
    seeds = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        seeds.append(policy.seed)
        await single_turn(task, policy)
        if len(seeds) < 3:
            raise OSError("the environment does not start")
        return 1.0

    assert (attempt(workflow, retries=1).error or "").startswith("OSError: the environment does not start")
    made = attempt(workflow, retries=1)
    assert [step.reward for step in made.steps] == [1.0]
    assert seeds[0] == seeds[2] != seeds[1]


@pytest.mark.parametrize(
    ("fault", "tries"),
    [(RequestFailed("garbled"), 2), (RequestRefused("token 99 is out of the vocabulary"), 1)],
)
def test_an_attempt_is_made_again_where_the_engine_failed_at_a_request_and_not_where_the_request_is_invalid(
    fault: TrinityError, tries: int
) -> None:
    class Faulty(Echo):
        async def generate(self, request: Request) -> Completion:
            await super().generate(request)
            raise fault

    engine = Faulty()
    assert attempt(single_turn, engine=engine, retries=1).error == str(fault)
    assert len({request.seed for request in engine.asked}) == tries


def test_an_attempt_that_takes_too_long_fails() -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        await asyncio.Event().wait()

    assert attempt(workflow, attempt_seconds=0.01).error == "took longer than 0.01 s"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("1", "the workflow returned str, not a number, None or"),
        (float("nan"), "The reward of a step is nan"),
        (1e101, "The reward of a step is 1e+101"),
        ({"right": 1.0, "short": float("inf")}, "The reward 'short' of a step is inf"),
        ({"right": "yes"}, "The reward 'right' of a step is str, not a number"),
        ({1: 1.0}, "The name of a reward is int, not text"),
        ({"a\x00": 1.0}, "The name of a reward is 'a\\x00'; it has 1 to 200 printable bytes"),
        ({"": 1.0}, "The name of a reward is ''"),
        ({"a" * 201: 1.0}, "it has 1 to 200 printable bytes"),
    ],
)
def test_what_is_no_reward_fails_the_attempt(returned: Any, said: str) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> Any:
        await single_turn(task, policy)
        return returned

    assert said in (attempt(workflow).error or "")


@pytest.mark.parametrize(
    ("by_step", "returned", "earned"),
    [
        (None, {"right": 1, "short": 0.5}, {"right": 1, "short": 0.5}),
        (None, {}, None),
        ({"right": 1.0}, {"right": 0.5, "short": 2.0}, {"right": 1.5, "short": 2.0}),
        ({"right": 1.0}, 2.0, {"right": 1.0, "workflow": 2.0}),
    ],
)
def test_rewards_have_names_and_those_of_the_attempt_are_added_to_its_last_step(
    by_step: dict[str, float] | None, returned: Any, earned: Any
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> Any:
        await single_turn(task, policy)
        if by_step:
            policy.step(reward=by_step)
        return returned

    assert [step.reward for step in attempt(workflow).steps] == [earned]


def test_an_attempt_that_asked_the_policy_for_nothing_fails() -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        return 1.0

    assert "sampled nothing from the policy" in (attempt(workflow).error or "")


def test_an_engine_that_failed_is_not_the_attempts_fault_whatever_the_workflow_makes_of_it() -> None:
    class Broken(Echo):
        async def generate(self, request: Request) -> Completion:
            raise EngineFailed("out of memory")

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        try:
            await single_turn(task, policy)
        except Exception:
            return 0.0
        return 1.0

    for one in (workflow, single_turn):
        with pytest.raises(EngineFailed, match="out of memory"):
            attempt(one, engine=Broken())


def test_the_workflow_that_comes_with_the_project_is_known_by_its_name() -> None:
    assert load("single_turn") is single_turn


def test_an_unknown_workflow_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no workflow 'single_trun'; did you mean 'single_turn'\?"):
        load("single_trun")


def test_a_workflow_of_the_users_own_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "json.py"  # also one that is called like a module
    path.write_text(OWN)
    policy: Any = None
    assert asyncio.run(_returned(load(f"{path}:mine"), policy)) == 3
    assert asyncio.run(_returned(load(f"{path}:game"), policy)) == 4
    with pytest.raises(ConfigError, match=r"Workflow .* has no function 'mime'; did you mean 'mine'\?"):
        load(f"{path}:mime")
    with pytest.raises(ConfigError, match=r"Workflow .*missing a required.*called with \(task, policy\)"):
        load(f"{path}:of_an_older_kind")
    with pytest.raises(ConfigError, match=r"Workflow .* is not a coroutine function; define"):
        load(f"{path}:no_coroutine")
    with pytest.raises(ConfigError, match="there is no file"):
        load(f"{tmp_path}/other.py:mine")


async def _returned(workflow: Workflow, policy: Policy) -> Reward:
    return await workflow({}, policy)


def test_a_file_that_cannot_be_loaded_is_named_with_its_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"broken.py cannot be loaded: ZeroDivisionError"):
        load(f"{path}:mine")


def test_a_workflow_is_found_without_the_heavy_libraries() -> None:
    program = (
        "import sys; from trinity_db.explorer.attempt.workflow import load; load('single_turn');"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_rollout_has_sampled_tokens_or_an_error() -> None:
    now = datetime.now(UTC)
    written = Payload(np.arange(3, dtype=np.int32), np.array([False, True, True]))
    sampled = Payload(written.token_ids, written.action_mask, np.zeros(2, np.float32), np.zeros(2, np.int32))
    one = Step("1", "2", sampled)
    for error, steps in ((None, ()), ("failed", [one])):
        with pytest.raises(ValueError, match="needs steps, or an error"):
            Rollout(group(), 0, now, now, error=error, steps=steps)
    unsampled = Step("1", "2", written)
    for steps in ([unsampled], [one, unsampled]):
        with pytest.raises(ValueError, match="log-probability and version"):
            Rollout(group(), 0, now, now, steps=steps)


@pytest.mark.parametrize("earned", [float("nan"), float("inf"), -1e101])
def test_what_a_step_earned_is_a_number(earned: float) -> None:
    sampled = Payload(
        np.arange(1, dtype=np.int32), np.ones(1, bool), *(np.zeros(1, kind) for kind in ("f4", "i4"))
    )
    with pytest.raises(ValueError, match="The reward of a step is"):
        Step("1", "2", sampled, reward=earned)
