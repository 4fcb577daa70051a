"""Environments of a user's own: played as workflows, in threads, each attempt with an instance of its own."""

import asyncio
import gc
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.echo import Digits, Echo, Scripted
from tests.support.processes import is_alive
from tests.support.waiting import WAIT_SECONDS, until, wait_until
from trinity_db.config.shared import PromptConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.attempt.attempts import Attempts
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.workflow import of
from trinity_db.explorer.config import EnvironmentConfig, ExplorerConfig
from trinity_db.explorer.environments.instance import Instance
from trinity_db.explorer.environments.played import Environment
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


GUESSING = """
import threading

class Guessing:
    def __init__(self):
        self.made_in = threading.get_ident()

    def reset(self, secret, **task):
        self.secret, self.reward = secret, 0.0
        return f" It is below {2 * secret}."

    def guess(self, number: int) -> str:
        '''Guess the number.

        Args:
            number: what it may be.
        '''
        assert threading.get_ident() == self.made_in
        if number < 0:
            raise ValueError("no such number")
        self.reward = float(number == self.secret)
        return "right" if self.reward else "wrong"

    async def hint(self) -> dict:
        '''Ask for a hint.'''
        return {"odd": self.secret % 2 == 1}

    def _private(self): ...

    def close(self): ...
"""


class NoChat(Digits):
    chat_template = None


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


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
    return Attempts(
        of(config), engine or Plain(7, context=40), config, PromptConfig(prompt_template="{prompt}"), seed=3
    )


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
    return [(step.prompt, step.response, step.reward, step.state) for step in rollout.steps]


def test_an_attempt_is_one_sequence_in_which_observations_are_masked(own: Any) -> None:
    made = played({"name": f"{own(COUNTING)}:Counting"})
    assert rows(made) == [("12", "21" + "21" + "121221", 1.5, None)]
    payload = made.steps[0].payload
    assert payload.action_mask.tolist() == [False] * 2 + [True] * 2 + [False] * 2 + [True] * 6


def test_an_action_may_be_a_rollout_step_with_its_own_reward_and_state(own: Any) -> None:
    made = played({"name": f"{own(COUNTING)}:Counting", "steps": True}, {"seed": 5, "prompt": "34"})
    assert rows(made) == [("34", "43", 0.5, "seed 5"), ("43", "34", 1.0, None)]


def test_messages_are_read_where_there_is_a_chat_template(own: Any) -> None:
    task = {"messages": [{"role": "user", "content": "5"}], "prompt": "12"}
    environment = {"name": f"{own(COUNTING)}:Counting", "length": 1}
    [step] = played(environment, task, Echo(context=9)).steps
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
        return rollout.steps[0].state

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


def test_an_attempt_whose_environment_cannot_start_is_given_back_and_says_why(own: Any) -> None:
    name = own(
        "starts = []\nclass Down:\n    def __init__(self):\n        starts.append(1)\n"
        "        raise OSError('no server')\n"
        "    def reset(self, *, seed, options): ...\n    def step(self, action): ...\n"
    )
    made = attempts({"name": f"{name}:Down"}, retries=2)
    rollout = asyncio.run(made.make(ClaimedGroup(1, 1, {}, [0]), 0))
    assert rollout.error == "NotStarted: OSError: no server (own.py, line 5, in __init__)"
    assert rollout.given_back
    assert len(module().starts) == 1, "no retry is used up"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return '1'", "reset returned str, not (observation, info)"),
        ("return '1', None", "reset returned None as info, not a dict"),
        ("return 1, {}", "an observation is int, not a string"),
        ("raise KeyError('board')", "KeyError: 'board' (own.py, line 3, in reset)"),
        ("next(iter(()))", "RuntimeError: it raised StopIteration (own.py, line 3, in reset)"),
    ],
)
def test_what_is_wrong_in_an_environment_fails_its_attempt(own: Any, body: str, error: str) -> None:
    name = own(
        f"class Odd:\n    def reset(self, *, seed, options):\n        {body}\n    def step(self, a): ..."
    )
    assert error in (played({"name": f"{name}:Odd", "call_seconds": 10}).error or "")


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


ODD = """
class Nothing: ...

class Idle:
    def reset(self, **task): ...

class Silent(Idle):
    def guess(self, number: int): ...
"""


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"name": "own.py:Countign"}, "has no function 'Countign'; did you mean 'Counting'?"),
        ({"name": "missing.py:Counting"}, "there is no file missing.py"),
        ({"name": "own.py:Counting", "lenght": 3}, "unknown key 'lenght'; did you mean 'length'?"),
        ({"name": "own.py:Counting", "turn": 3}, "unknown key 'turn'; did you mean 'turns'?"),
        ({"name": "own.py:Counting", "length": "long"}, "length"),
        ({"name": "own.py:Nothing"}, "has no method 'reset'"),
        ({"name": "own.py:Idle"}, "neither a method 'step' nor a public method as a tool"),
        ({"name": "own.py:Silent"}, "its tool 'guess' has no docstring"),
        ({"name": "own.py:Guessing", "steps": True}, "has no method 'step': only its actions can be"),
        ({"name": "gymnasion"}, "no environment 'gymnasion'; did you mean 'gymnasium'?"),
        (
            {"name": "none.py:Odd", "python": "none/bin/python"},
            "cannot start none/bin/python: .*No such file",
        ),
        ({"name": "own.py:Idle", "python": sys.executable}, "neither a method 'step' nor a .* (in .*python"),
        (
            {"name": "own.py:Counting", "lenght": 3, "python": sys.executable},
            "unexpected keyword argument 'lenght'",
        ),
    ],
)
def test_an_environment_that_does_not_fit_is_found_before_the_run(
    own: Any, environment: dict[str, Any], error: str
) -> None:
    own(COUNTING + GUESSING + ODD)
    with pytest.raises(ConfigError, match=error.replace("?", r"\?").replace("(", r"\(")):
        Environment(EnvironmentConfig(**environment))


def test_an_environment_and_a_workflow_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="set only one of the two"):
        ExplorerConfig(environment="own.py:Counting", workflow="own.py:attempt")


@pytest.mark.parametrize("python", [None, sys.executable])
def test_public_methods_are_tools_and_the_environment_says_the_reward(own: Any, python: str | None) -> None:
    environment = {"name": f"{own(GUESSING)}:Guessing", "python": python}
    says = [
        call("hint") + call("guess", number=-1),
        call("guess", number="x"),
        call("guess", number=7),
        "Done.",
    ]
    made = played(environment, {"prompt": "Guess.", "secret": 7}, Scripted(*says))
    assert made.error is None
    [step] = made.steps
    assert step.prompt.endswith("<user>Guess. It is below 14.<assistant>")
    assert step.reward == 1.0
    for told in (
        '{"odd": true}',
        "Error: ValueError: no such number",
        "Error: number: Input should",
        "right",
    ):
        assert f"<tool>{told}" in step.response
    assert sum(step.payload.action_mask) == sum(map(len, says))


def test_the_calls_of_the_last_turn_are_made(own: Any) -> None:
    environment = {"name": f"{own(GUESSING)}:Guessing", "turns": 1}
    made = played(environment, {"prompt": "?", "secret": 7}, Scripted(call("guess", number=7)))
    assert [step.reward for step in made.steps] == [1.0]


def test_a_method_may_say_the_reward_or_nothing_does(own: Any) -> None:
    own(
        "class Idle:\n    def reset(self, **task): ...\n    def act(self):\n        'Act.'\n"
        "class Judge(Idle):\n    async def get_reward(self):\n        return 0.25\n"
    )
    for name, reward in (("Judge", 0.25), ("Idle", None)):
        made = played({"name": f"own.py:{name}"}, {"prompt": "?"}, Scripted("Done."))
        assert [step.reward for step in made.steps] == [reward]


def test_environments_in_processes_of_their_own_use_each_for_one_attempt_after_another(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one prints is in no answer's way, and none is told where the store is."""
    monkeypatch.setenv("TRINITY_DB_URL", "postgresql://none")
    name = own(
        "import os\n"
        "class Where:\n"
        "    def reset(self, *, seed, options):\n        print('hello')\n        return '1', {}\n"
        "    def step(self, action):\n"
        "        return '', -1 if 'TRINITY_DB_URL' in os.environ else os.getpid(), True, False, {}\n"
    )
    made = attempts({"name": f"{name}:Where", "python": sys.executable, "processes": 2})

    async def several() -> list[Rollout]:
        group = ClaimedGroup(1, 1, {}, [*range(6)])
        return list(await asyncio.gather(*(made.make(group, member) for member in group.members)))

    lived_in = [rows(rollout)[0][2] for rollout in asyncio.run(several())]
    assert len({*lived_in}) <= 2
    assert not {os.getpid(), -1} & {*lived_in}


CRUEL = """
import os, signal, subprocess, sys, time

class Cruel:
    def reset(self, *, seed, options):
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        with open("started", "w") as file:
            file.write(f"{os.getpid()} {started.pid}")
        if options["how"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if options["how"] == "hangs":
            time.sleep(1000)
        raise KeyError("board")
    def step(self, action): ...
"""


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("raises", "EnvironmentRaised: KeyError: 'board' (own.py, line 13, in reset)"),
        ("killed", "EnvironmentEnded: its process ended with signal SIGKILL"),
        ("hangs", "TimeoutError: Environment 'own.py:Cruel': reset took longer than 2 s"),
    ],
)
def test_what_goes_wrong_in_a_process_of_its_own_fails_one_attempt(own: Any, how: str, error: str) -> None:
    """When it is killed, so is what it started; when the explorer lets go of it, it ends too."""
    environment = {"name": f"{own(CRUEL)}:Cruel", "python": sys.executable, "call_seconds": 2}
    assert played(environment, {"how": how}).error == error
    gc.collect()
    process, started = map(int, Path("started").read_text().split())
    wait_until(lambda: not is_alive(process) and not is_alive(started), "both have ended")


@pytest.mark.parametrize("python", [None, sys.executable])
def test_an_environment_may_play_by_itself_and_ask_the_policy_over_http(own: Any, python: str | None) -> None:
    name = own(
        "class Agent:\n    async def attempt(self, *, task, url, key):\n"
        "        return {'length': len(url), 'same': float(key == task['key'])}\n"
    )

    class Asked:
        async def address(self) -> Any:
            return SimpleNamespace(url="http://here", key="k1")

    play = Environment(EnvironmentConfig(name=f"{name}:Agent", python=python))
    policy: Any = Asked()
    assert asyncio.run(played_by(play, policy)) == {"length": 11, "same": 1.0}


async def played_by(play: Environment, policy: Policy) -> Any:
    return await play({"key": "k1"}, policy)


class Stubborn:
    """A host that takes its time to die."""

    def __init__(self) -> None:
        self.is_called, self.may_die = threading.Event(), threading.Event()
        self.happened: list[str] = []

    def start(self) -> list[str]:
        return []

    def call(self, method: str) -> None:
        self.is_called.set()
        assert self.may_die.wait(WAIT_SECONDS)

    def interrupt(self) -> None:
        self.happened.append("it is to die")
        assert self.may_die.wait(WAIT_SECONDS), "the event loop stands still while it dies"
        self.happened.append("it is dead")

    def close(self) -> None: ...


def test_other_attempts_go_on_while_an_environment_is_killed() -> None:
    async def story() -> None:
        host = Stubborn()
        instance = Instance(host, "Stubborn", seconds=None)  # type: ignore[arg-type]
        await instance.start()
        call = asyncio.create_task(instance.call("hang"))
        await until(host.is_called.is_set, "it is called")
        closing = asyncio.create_task(instance.close())
        await until(lambda: host.happened, "it is asked to die")
        host.happened.append("another attempt goes on")
        host.may_die.set()
        await asyncio.gather(call, closing)
        assert host.happened == ["it is to die", "another attempt goes on", "it is dead"]

    asyncio.run(story())
