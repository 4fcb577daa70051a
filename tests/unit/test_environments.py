"""Environments of a user's own: played as workflows, in threads, each attempt with an instance of its own."""

import asyncio
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.echo import Digits, Echo
from trinity_db.errors import ConfigError
from trinity_db.explorer.attempts import Attempts
from trinity_db.explorer.config import EnvironmentConfig, ExplorerConfig
from trinity_db.explorer.environments import Environment
from trinity_db.explorer.workflow import of
from trinity_db.store.groups import ClaimedGroup, Reward, Rollout

COUNTING = """
import threading

closed = []
threads = []

class Counting:
    '''Says 12, then what it was told, and ends after so many actions.'''

    def __init__(self, *, length: int = 2):
        self.length, self.actions = length, []
        threads.append(threading.current_thread())

    def reset(self, *, seed, options):
        threads.append(threading.current_thread())
        return options.get("prompt", "12"), {"state": f"seed {seed}"}

    def step(self, action):
        self.actions.append(action)
        done = len(self.actions) == self.length
        return action[:2], len(self.actions) / 2, done, False, {}

    def close(self):
        threads.append(threading.current_thread())
        closed.append(self.actions)
"""


class NoChat(Digits):
    chat_template = None


class Plain(Echo):
    """An engine whose model has no chat template."""

    tokenizer = NoChat()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a file of environments, and gives it as what a configuration names."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "own.py") -> str:
        Path(name).write_text(text)
        return name

    return write


def attempts(environment: dict[str, Any], engine: Echo | None = None, **options: Any) -> Attempts:
    config = ExplorerConfig(environment=EnvironmentConfig(**environment), **options)
    return Attempts(of(config), engine or Plain(7, context=40), config, "{prompt}", seed=3)


def played(
    environment: dict[str, Any],
    task: dict[str, Any] | None = None,
    engine: Echo | None = None,
    **options: Any,
) -> Rollout:
    claimed = ClaimedGroup(1, 1, task or {}, [0])
    return asyncio.run(attempts(environment, engine, **options).make(claimed, 0))


def module() -> Any:
    """The user's file, as it was loaded last."""
    return sys.modules["own.py"]


def rows(rollout: Rollout) -> Sequence[tuple[str, str, Reward, str | None]]:
    assert rollout.error is None
    return [(step.prompt, step.response, step.reward, step.state) for step in rollout.all_steps]


def test_an_attempt_is_one_sequence_in_which_observations_are_masked(own: Any) -> None:
    made = played({"name": f"{own(COUNTING)}:Counting"})
    assert rows(made) == [("12", "21" + "21" + "121221", 1.5, None)]
    payload = made.all_steps[0].payload
    assert payload.action_mask.tolist() == [False] * 2 + [True] * 2 + [False] * 2 + [True] * 6


def test_an_action_may_be_a_rollout_step_with_its_own_reward_and_state(own: Any) -> None:
    made = played({"name": f"{own(COUNTING)}:Counting", "steps": True}, {"seed": 5, "prompt": "34"})
    assert rows(made) == [("34", "43", 0.5, "seed 5"), ("43", "34", 1.0, None)]


def test_messages_are_read_where_there_is_a_chat_template(own: Any) -> None:
    task = {"messages": [{"role": "user", "content": "5"}], "prompt": "12"}
    environment = {"name": f"{own(COUNTING)}:Counting", "length": 1}
    [step] = played(environment, task, Echo(context=9)).all_steps
    assert (step.prompt, step.response) == ("512", "215")


def test_an_attempt_ends_when_its_turns_are_taken_or_its_context_is_full(own: Any) -> None:
    environment = {"name": f"{own(COUNTING)}:Counting", "length": 9}
    assert rows(played({**environment, "turns": 1}))[0][2] == 0.5
    assert rows(played(environment, engine=Plain(context=10)))[0][2] == 1.5
    assert "does not fit" in (played(environment, engine=Plain(context=2)).error or "")


def test_the_members_of_a_group_share_the_seed_of_their_environments(own: Any) -> None:
    made = attempts({"name": f"{own(COUNTING)}:Counting", "steps": True, "length": 1})

    def state(group: int, member: int) -> str | None:
        rollout = asyncio.run(made.make(ClaimedGroup(group, 1, {}, [0, 1]), member))
        return rollout.all_steps[0].state

    assert state(1, 0) == state(1, 1) != state(2, 0)


def test_an_environment_lives_in_a_thread_of_its_own_and_is_closed(own: Any) -> None:
    made = attempts({"name": f"{own(COUNTING)}:Counting", "length": 1})
    asyncio.run(made.make(ClaimedGroup(1, 1, {}, [0]), 0))
    file = module()
    assert file.closed == [["21"]]
    assert len(set(file.threads)) == 1
    assert threading.current_thread() not in file.threads


BLOCKING = """
import threading
entered, release, closed = threading.Barrier(2), threading.Event(), threading.Event()

class Blocking:
    def reset(self, *, seed, options):
        entered.wait(20)
        release.wait(20)
        return "1", {}
    def step(self, action):
        return "", 1.0, True, False, {}
    def close(self):
        closed.set()
"""


def test_environments_that_block_run_at_the_same_time(own: Any) -> None:
    made = attempts({"name": f"{own(BLOCKING)}:Blocking"})
    module().release.set()

    async def both() -> list[Rollout]:
        group = ClaimedGroup(1, 1, {}, [0, 1])
        return list(await asyncio.gather(made.make(group, 0), made.make(group, 1)))

    assert [rows(rollout) for rollout in asyncio.run(both())] == [[("1", "1", 1.0, None)]] * 2


def test_an_environment_is_closed_when_its_attempt_is_given_up_in_a_call(own: Any) -> None:
    made = attempts({"name": f"{own(BLOCKING)}:Blocking"})
    file = module()

    async def given_up() -> None:
        attempt = asyncio.create_task(made.make(ClaimedGroup(1, 1, {}, [0]), 0))
        await asyncio.to_thread(file.entered.wait, 20)
        attempt.cancel()
        file.release.set()
        await asyncio.wait([attempt])

    asyncio.run(given_up())
    assert file.closed.wait(20)


def test_a_call_that_takes_too_long_is_named(own: Any) -> None:
    made = attempts({"name": f"{own(BLOCKING)}:Blocking", "call_seconds": 0.05})
    threading.Timer(0.2, module().entered.abort).start()
    error = asyncio.run(made.make(ClaimedGroup(1, 1, {}, [0]), 0)).error
    assert error == "TimeoutError: Environment 'own.py:Blocking': reset took longer than 0.05 s"


ASYNCHRONOUS = """
import asyncio
closed = []

class Asynchronous:
    async def reset(self, *, seed, options):
        self.loop = asyncio.get_running_loop()
        return "1", {}
    async def step(self, action):
        await asyncio.sleep(0)
        return "", 2, False, True, {}
    async def close(self):
        closed.append(asyncio.get_running_loop() is self.loop)
"""


def test_methods_may_be_coroutines(own: Any) -> None:
    made = attempts({"name": f"{own(ASYNCHRONOUS)}:Asynchronous"})
    assert rows(asyncio.run(made.make(ClaimedGroup(1, 1, {}, [0]), 0))) == [("1", "1", 2.0, None)]
    assert module().closed == [True]


def test_an_environment_that_cannot_start_is_tried_again_and_says_so(own: Any) -> None:
    name = own(
        "starts = []\nclass Down:\n    def __init__(self):\n        starts.append(1)\n"
        "        raise OSError('no server')\n"
        "    def reset(self, *, seed, options): ...\n    def step(self, action): ...\n"
    )
    made = attempts({"name": f"{name}:Down"}, retries=2)
    rollout = asyncio.run(made.make(ClaimedGroup(1, 1, {}, [0]), 0))
    assert rollout.error == "NotStarted: OSError: no server (own.py, line 5, in __init__)"
    assert len(module().starts) == 3


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return '1'", "reset returned str, not (observation, info)"),
        ("return '1', None", "reset returned None as info, not a dict"),
        ("return 1, {}", "an observation is int, not a text"),
        ("raise KeyError('board')", "KeyError: 'board' (own.py, line 3, in reset)"),
    ],
)
def test_what_is_wrong_in_an_environment_fails_its_attempt(own: Any, body: str, error: str) -> None:
    name = own(
        f"class Odd:\n    def reset(self, *, seed, options):\n        {body}\n    def step(self, a): ..."
    )
    assert error in (played({"name": f"{name}:Odd"}).error or "")


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ("'1', 0.0, True, {}", "step returned tuple of 4, not (observation, reward, terminated, truncated"),
        ("'1', '1', True, False, {}", "a reward is str, not a number"),
        ("'1', float('nan'), True, False, {}", "The reward of a step is nan"),
    ],
)
def test_a_step_that_returns_something_else_fails_its_attempt(own: Any, returned: str, error: str) -> None:
    name = own(
        "class Odd:\n    def reset(self, *, seed, options):\n        return '1', {}\n"
        f"    def step(self, a):\n        return {returned}"
    )
    assert error in (played({"name": f"{name}:Odd"}).error or "")


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"name": "own.py:Countign"}, "has no function 'Countign'"),
        ({"name": "missing.py:Counting"}, "there is no file missing.py"),
        ({"name": "own.py:Counting", "lenght": 3}, "unknown key 'lenght'; did you mean 'length'?"),
        ({"name": "own.py:Counting", "turn": 3}, "unknown key 'turn'; did you mean 'turns'?"),
        ({"name": "own.py:Counting", "length": "long"}, "length"),
        ({"name": "own.py:Nothing"}, "has no method 'reset'"),
    ],
)
def test_an_environment_that_does_not_fit_is_found_before_the_run(
    own: Any, environment: dict[str, Any], error: str
) -> None:
    own(COUNTING + "\nclass Nothing: ...\n")
    with pytest.raises(ConfigError, match=error.replace("?", r"\?")):
        Environment(EnvironmentConfig(**environment))


def test_an_environment_and_a_workflow_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="leave out one of the two"):
        ExplorerConfig(environment="own.py:Counting", workflow="own.py:attempt")
