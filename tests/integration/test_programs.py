"""Attempts that a program makes: what it is told, what it earns, and how it ends."""

import asyncio
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.explorers import ERRORS, Explore
from tests.support.processes import is_alive
from tests.support.rows import Scene
from trinity_db.errors import ConfigError
from trinity_db.explorer.http.command import Command, ProgramFailed, _remove, verdict_of
from trinity_db.explorer.http.programs import Programs

ASK = """
import json, os, urllib.request
def ask(content, path="/chat/completions"):
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + path
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
        return json.load(response)
"""


OUTPUTS = "SELECT output FROM trinity.rollout ORDER BY id"


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Makes a workflow of a program's text; the program may `ask` the policy."""
    made: list[Command] = []

    def command(program: str, words: str = "", **options: Any) -> Command:
        path = tmp_path / f"agent-{len(made)}.py"
        path.write_text(ASK + program)
        made.append(Command(f"{sys.executable} -S '{path}' {words}", **options))
        return made[-1]

    yield command
    for one in made:
        one.close()


def test_a_program_makes_the_attempt_and_its_last_marked_line_is_the_reward(
    explore: Explore, scene: Scene, command: Callable[..., Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", "postgresql://secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    program = (
        "task = json.loads(os.environ['TRINITY_TASK'])\n"
        "assert not [name for name in os.environ if name.startswith(('PG', 'TRINITY_DB'))]\n"
        "assert ask(task['prompt'])['choices'][0]['message']['content'] == 'yes'\n"
        "print('reward: 9\\nreward: 0.25\\ndone' + 30 * '\\n7')\n"
    )
    explore(command(program))
    assert scene.values(ERRORS) == [None, None]
    assert scene.values("SELECT reward FROM trinity.experience") == [0.25, 0.25]
    assert scene.values(OUTPUTS) == ["\n".join("7" * 20)] * 2


def test_a_program_that_fails_is_a_failed_rollout_with_its_last_words(
    explore: Explore, scene: Scene, command: Callable[..., Command]
) -> None:
    explore(command("ask('a'); raise SystemExit('no more ideas')"))
    assert scene.values(ERRORS) == ["ProgramFailed: the program ended with status 1: no more ideas"] * 2
    assert scene.values(OUTPUTS) == ["no more ideas"] * 2


def test_a_program_that_swallows_a_refusal_leaves_it_and_its_last_lines(
    explore: Explore, scene: Scene, command: Callable[[str], Command]
) -> None:
    program = (
        "try:\n    ask('a', '/models')\nexcept OSError as error:\n    print('x' * 900)\n    print(error)\n"
        "for line in range(18): print(line, file=sys.stderr)"
    )
    explore(command("import sys\n" + program), size=1)
    [error] = scene.values(ERRORS)
    assert error.startswith(
        "ValueError: the workflow sampled nothing from the policy; 1 request was refused: There is"
    )
    [output] = scene.values(OUTPUTS)
    assert sorted(output.splitlines()) == sorted(
        ["x" * 500, "HTTP Error 404: Not Found", *map(str, range(18))]
    )


SAY = """
def say(what, value):
    url = os.environ["OPENAI_BASE_URL"] + "/attempts/" + os.environ["OPENAI_API_KEY"] + "/" + what
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(value).encode(), method="POST"))
ask("a")
"""


def test_rewards_that_a_program_posts_count_beside_its_marked_line(
    explore: Explore, scene: Scene, command: Callable[..., Command]
) -> None:
    explore(command(SAY + "say('reward', {'style': 0.5, 'workflow': 9}); print('reward: 0.25')"), size=1)
    assert scene.rows("SELECT name, value FROM trinity.reward_event ORDER BY 1") == [
        ("style", 0.5),
        ("workflow", 0.25),
    ]


def test_a_program_that_says_that_it_has_finished_ends_by_itself(
    explore: Explore, scene: Scene, command: Callable[..., Command]
) -> None:
    explore(command(SAY + "say('finish', 0.5); print('done')"), size=1, attempt_seconds=20)
    assert scene.rows("SELECT name, value FROM trinity.reward_event") == [("workflow", 0.5)]


def test_a_program_that_says_that_it_failed_is_a_failed_rollout(
    explore: Explore, scene: Scene, command: Callable[..., Command]
) -> None:
    explore(command(SAY + "say('fail', {'error': 'no tools'}); print('reward: 0.25')"), size=1)
    assert scene.values(ERRORS) == ["AttemptFailed: no tools"]


def test_a_program_that_takes_too_long_is_killed_with_what_it_started(
    explore: Explore, scene: Scene, command: Callable[..., Command], tmp_path: Path
) -> None:
    program = (
        "print('begun', flush=True)\n"
        f"import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open('{tmp_path}/' + str(child.pid), 'w').close()\ntime.sleep(600)\n"
    )
    explore(command(program), attempt_seconds=2)
    assert scene.values(ERRORS) == ["took longer than 2 s"] * 2
    assert scene.values(OUTPUTS) == ["begun"] * 2
    children = [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]
    assert len(children) == 2
    assert not [child for child in children if is_alive(child)]


AWKWARD = 'Say "it\'s" $HOME; rm -rf {answer} \\\n--end *'
WORK = """
import sys
assert sys.argv[1:] == [json.loads(open('prompt.json').read()), '7', '{answer}'], sys.argv
assert os.environ['HOME'] != OURS and not os.listdir(os.environ['HOME'])
assert sorted(os.listdir('.')) == ['data', 'prompt.json']
assert 'TRINITY_TASK' not in os.environ
ask('a')
open('answer.txt', 'w').write(str(7 * int(open('data/number.txt').read())))
print('reward: 9')
print(os.getcwd())
"""
CHECK = """
import json, os, sys
assert json.loads(os.environ['TRINITY_TASK'])['answer'] == 49 and 'OPENAI_API_KEY' not in os.environ
folder = sys.stdin.read().splitlines()[-1]
assert folder == os.getcwd()
print(folder, file=open(sys.argv[1], 'a'))
if sys.argv[2:]:
    print(sys.argv[2])
sys.exit(open('answer.txt').read() != '49')
"""


def set_tasks(scene: Scene, task: dict[str, Any]) -> None:
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.task SET payload = %s", (json.dumps(task),))


def test_each_attempt_has_a_folder_of_its_own_and_a_check_judges_what_is_there(
    explore: Explore, scene: Scene, command: Callable[..., Command], tmp_path: Path
) -> None:
    files = {"prompt.json": json.dumps(AWKWARD), "data/number.txt": "7"}
    set_tasks(scene, {"prompt": AWKWARD, "answer": 49, "number": 7, "files": files})
    work = WORK.replace("OURS", repr(os.environ["HOME"]))
    (tmp_path / "check.py").write_text(CHECK)
    check = f"{sys.executable} {tmp_path}/check.py {tmp_path}/folders"
    for marked, reward in (("", 1.0), (" 'reward: {\"style\": 0.5}'", 0.5)):
        program = command(work, "{prompt} {number} {{answer}}", folder="fresh", check=check + marked)
        explore(program, size=2, groups=1 if reward == 1 else 2)
        assert scene.values(ERRORS) == [None] * scene.values("SELECT count(*) FROM trinity.rollout")[0]
        assert scene.values("SELECT reward FROM trinity.experience ORDER BY id DESC LIMIT 2") == [reward] * 2
    folders = {Path(line) for line in (tmp_path / "folders").read_text().split()}
    assert len(folders) == 4
    assert not [folder for folder in folders if folder.parent.exists()]


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        ("sh -c 'exit 1'", 0.0),
        ("sh -c 'echo reward: 0.5; exit 1'", 0.5),
        (
            "sh -c 'echo no such module >&2; echo \"^~\" >&2; exit 2'",
            "the check ended with status 2: no such module",
        ),
        ("echo reward: high", "the check printed 'reward: high', which is not a reward: print a number"),
    ],
)
def test_a_check_that_fails_is_no_reward_of_zero(check: str, outcome: float | str) -> None:
    with closing(Programs()) as programs:
        ended = asyncio.run(programs.run(shlex.split(check), dict(os.environ)))
    if isinstance(outcome, float):
        assert verdict_of(ended) == outcome
    else:
        with pytest.raises(ProgramFailed, match=outcome):
            verdict_of(ended)


def test_an_answer_that_is_a_number_is_no_reward_and_the_error_says_what_to_do(
    explore: Explore, scene: Scene, command: Callable[..., Command]
) -> None:
    explore(command("ask('a'); print(42)"), needs_reward=True)
    assert {error.partition(":")[0] for error in scene.values(ERRORS)} == {"NoReward"}
    assert "let the workflow return a number, or the program print 'reward: 0.5'" in scene.values(ERRORS)[0]


def test_a_field_without_a_column_is_an_error_of_the_attempt(
    explore: Explore, scene: Scene, command: Callable[..., Command]
) -> None:
    explore(command("ask('a')", "{promt}"), size=1)
    assert scene.values(ERRORS) == [
        "ProgramFailed: the command has {promt}, and the task has no text or number under 'promt'; "
        "write {{promt}} if no column is meant"
    ]


@pytest.fixture
def nobody() -> Iterator[None]:
    """For root, which may write everywhere, the rights of another user."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)
    yield
    os.seteuid(before)


def test_read_only_folders_that_a_program_left_are_removed(nobody: None) -> None:
    with tempfile.TemporaryDirectory() as kept:
        left = Path(tempfile.mkdtemp())
        (left / "work").symlink_to(kept)
        (left / "cache" / "module").mkdir(parents=True)
        (left / "cache" / "module" / "file").touch()
        for path, mode in ((Path(kept), 0o555), (left / "cache" / "module", 0o555), (left / "cache", 0o000)):
            path.chmod(mode)
        _remove(left)
        assert not left.exists()
        assert Path(kept).stat().st_mode & 0o777 == 0o555


def test_a_text_of_a_task_is_no_option_of_the_program(
    explore: Explore, scene: Scene, command: Callable[..., Command]
) -> None:
    set_tasks(scene, {"prompt": "--hooks=code", "list": "- one", "number": "-1"})
    echo = "import sys; ask('a'); print(sys.argv[1:])"
    explore(command(echo, "{prompt}"), size=1)
    explore(command(echo, "{list} {number} of={prompt} -- {prompt}"), size=1, groups=2)
    refusal = (
        "ProgramFailed: '{prompt}' is '--hooks=code' with this task, which the program would read as an "
        "option: put -- before it, or let the program read TRINITY_TASK"
    )
    assert scene.values(ERRORS) == [refusal, None]
    output = "['- one', '-1', 'of=--hooks=code', '--', '--hooks=code']"
    assert scene.values(OUTPUTS) == [None, output]


def test_files_of_a_task_stay_in_the_folder_of_the_attempt(
    explore: Explore, scene: Scene, command: Callable[..., Command], tmp_path: Path
) -> None:
    set_tasks(scene, {"prompt": "a", "files": {"../outside": "text"}})
    explore(command("ask('a')", folder="fresh"), size=1)
    assert scene.values(ERRORS) == [
        "ProgramFailed: the task's file '../outside' is not a text below the attempt's folder"
    ]


def test_a_command_that_cannot_run_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "check.py").touch()
    with pytest.raises(
        ConfigError, match=r"workflow.command .* program 'no-such-agent' not found on the PATH"
    ):
        Command("no-such-agent --fast")
    with pytest.raises(
        ConfigError, match=r"write \{start\}/check.py, or ./check.py for a file of the attempt"
    ):
        Command("true", "fresh", "python3 check.py")
    with pytest.raises(
        ConfigError, match=r"'./check.py' is where the explorer starts: write \{start\}/check.py"
    ):
        Command("./check.py", "fresh")
    Command("true", "fresh", "python3 {start}/check.py ./check.py")
    Command("true", "shared", "python3 check.py")
