"""Agents of the command line, as npm has them: each works in a folder with its own tools.

A scripted engine answers each of them with two calls of its own shell tool and a last word. What the engine
saw and sampled is compared with what is stored.
"""

import json
import shlex
from contextlib import closing
from dataclasses import dataclass

import pytest

from tests.others.agents.conftest import NPM
from tests.others.agents.test_frameworks import Calculating, check_exact
from tests.support.explorers import ERRORS, Explore
from tests.support.rows import Scene
from trinity_db.explorer.http.command import Command

TASK = {
    "prompt": "Read number.txt, write seven times its number into answer.txt, and say done.",
    "files": {"number.txt": "6"},
}
CHECK = "grep -x 42 answer.txt"

CODEX = (
    "exec codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m policy "
    '-c model_provider=own -c "model_providers.own={name=\\"own\\",base_url=\\"$OPENAI_BASE_URL\\",'
    'env_key=\\"OPENAI_API_KEY\\",wire_api=\\"responses\\"}" -c analytics.enabled=false "$0"'
)


@dataclass(frozen=True)
class Program:
    """A program with its command line, and the shell tool that it offers."""

    binary: str
    command: str
    tool: str
    key: str = "command"
    """The argument of the tool that is the shell's command."""


PROGRAMS = (
    Program(
        "claude",
        "env CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 "
        "claude -p {prompt} --model policy --allowedTools Bash",
        "Bash",
    ),
    Program("codex", f"sh -c {shlex.quote(CODEX)} {{prompt}}", "exec_command", "cmd"),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.binary for program in PROGRAMS])
def test_an_agent_of_the_command_line_is_recorded_as_it_is(
    program: Program, explore: Explore, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (NPM / program.binary).exists():
        pytest.skip(f"{program.binary} is not installed: make test-agents installs it if npm is there")
    monkeypatch.setenv("PATH", str(NPM), prepend=":")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):  # nothing reaches other hosts
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.task SET payload = %s", (json.dumps(TASK),))

    def call(command: str) -> str:
        arguments = json.dumps({program.key: command})
        return f'<tool_call>{{"name":  "{program.tool}", "arguments": {arguments}}}</tool_call>'

    engine = Calculating(
        (call("cat number.txt"), call("echo 42 > answer.txt"), "It is done."), context=400_000
    )
    with closing(Command(program.command, "fresh", CHECK)) as workflow:
        explore(workflow, engine, size=1, max_new_tokens=2000, attempt_seconds=200)
    assert scene.values(ERRORS) == [None]
    assert scene.values("SELECT DISTINCT reward FROM trinity.experience") == [1.0]
    assert len(check_exact(engine, scene)) == 1
