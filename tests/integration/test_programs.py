"""Attempts that a program makes: what it is told, what it earns, and how it ends."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.explorers import ERRORS, Explore
from tests.processes import is_alive
from tests.rows import Scene
from trinity_db.errors import ConfigError
from trinity_db.explorer.recording.command import Command

ASK = """
import json, os, urllib.request
def ask(content, path="/chat/completions"):
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + path
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
        return json.load(response)
"""


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[[str], Command]]:
    """Makes a workflow of a program's text; the program may `ask` the policy."""
    made: list[Command] = []

    def command(program: str) -> Command:
        path = tmp_path / f"agent-{len(made)}.py"
        path.write_text(ASK + program)
        made.append(Command(f"{sys.executable} -S '{path}'"))
        return made[-1]

    yield command
    for one in made:
        one.close()


def test_a_program_makes_the_attempt_and_its_last_line_is_the_reward(
    explore: Explore, scene: Scene, command: Callable[[str], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", "postgresql://secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    program = (
        "task = json.loads(os.environ['TRINITY_TASK'])\n"
        "assert not [name for name in os.environ if name.startswith(('PG', 'TRINITY_DB'))]\n"
        "assert ask(task['prompt'])['choices'][0]['message']['content'] == 'yes'\n"
        "print('done\\n0.25')\n"
    )
    explore(command(program))
    assert scene.values(ERRORS) == [None, None]
    assert scene.values("SELECT reward FROM trinity.experience") == [0.25, 0.25]


def test_a_program_that_fails_is_a_failed_rollout_with_its_last_words(
    explore: Explore, scene: Scene, command: Callable[[str], Command]
) -> None:
    explore(command("ask('a'); raise SystemExit('no more ideas')"))
    assert scene.values(ERRORS) == ["ProgramFailed: the program ended with status 1: no more ideas"] * 2


SAY = """
def say(what, value):
    url = os.environ["OPENAI_BASE_URL"] + "/attempts/" + os.environ["OPENAI_API_KEY"] + "/" + what
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(value).encode(), method="POST"))
ask("a")
"""


def test_what_a_program_says_to_have_earned_counts_beside_its_last_line(
    explore: Explore, scene: Scene, command: Callable[[str], Command]
) -> None:
    explore(command(SAY + "say('reward', {'style': 0.5, 'workflow': 9}); print(0.25)"), size=1)
    assert scene.rows("SELECT name, value FROM trinity.reward_event ORDER BY 1") == [
        ("style", 0.5),
        ("workflow", 0.25),
    ]


def test_a_program_that_says_that_it_has_finished_ends_by_itself(
    explore: Explore, scene: Scene, command: Callable[[str], Command]
) -> None:
    explore(command(SAY + "say('finish', 0.5); print('done')"), size=1, attempt_seconds=20)
    assert scene.rows("SELECT name, value FROM trinity.reward_event") == [("workflow", 0.5)]


def test_a_program_that_says_that_it_failed_is_a_failed_rollout(
    explore: Explore, scene: Scene, command: Callable[[str], Command]
) -> None:
    explore(command(SAY + "say('fail', {'error': 'no tools'}); print(0.25)"), size=1)
    assert scene.values(ERRORS) == ["AttemptFailed: no tools"]


def test_a_program_that_takes_too_long_is_killed_with_what_it_started(
    explore: Explore, scene: Scene, command: Callable[[str], Command], tmp_path: Path
) -> None:
    program = (
        f"import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open('{tmp_path}/' + str(child.pid), 'w').close()\ntime.sleep(600)\n"
    )
    explore(command(program), attempt_seconds=0.7)
    assert scene.values(ERRORS) == ["took longer than 0.7 s"] * 2
    children = [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]
    assert len(children) == 2
    assert not [child for child in children if is_alive(child)]


def test_a_program_that_is_not_there_is_found_out_before_the_run() -> None:
    with pytest.raises(ConfigError, match="there is no program 'no-such-agent' on the PATH"):
        Command("no-such-agent --fast")
