"""Agents of the command line, as npm and PyPI have them: each works in a folder with its own tools.

A scripted engine answers each of them with two calls of its own shell tool and an end. What the engine saw
and sampled is compared with what is stored.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.others.agents.conftest import NPM, PYTHON
from tests.others.agents.test_frameworks import Calculating, check_exact
from tests.support.explorers import ERRORS, Explore
from tests.support.rows import Scene
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.explorer.http.command import Command

FOLDERS = NPM, Path(PYTHON).parent
PROMPT = "Read number.txt, write seven times its number into answer.txt, and say done."
CHECK = "grep -x 42 answer.txt"

CODEX = (
    "exec codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m policy "
    '-c model_provider=own -c "model_providers.own={name=\\"own\\",base_url=\\"$OPENAI_BASE_URL\\",'
    'env_key=\\"OPENAI_API_KEY\\",wire_api=\\"responses\\"}" -c analytics.enabled=false "$0"'
)
# Qwen Code sends requests to localhost through a proxy, too: it does not read NO_PROXY.
QWEN = (
    "env -u HTTP_PROXY -u HTTPS_PROXY -u http_proxy -u https_proxy "
    "QWEN_CODE_SYSTEM_SETTINGS_PATH={start}/qwen.json "
    "qwen --auth-type openai --model policy --approval-mode yolo {prompt}"
)
QWEN_SETTINGS = {"general": {"enableAutoUpdate": False}, "privacy": {"usageStatisticsEnabled": False}}
OPENCODE_SETTINGS = {
    "autoupdate": False,
    "provider": {
        "own": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {"policy": {}, "title": {}},
        }
    },
    "small_model": "own/title",
}
TITLE = "A number times seven"
LEFT_OUT = "SELECT model, left_out FROM trinity.call WHERE left_out IS NOT NULL"


@dataclass(frozen=True)
class Program:
    """A program with its command line, and the shell tool that it offers."""

    binary: str
    command: str
    tool: str
    key: str = "command"
    """The argument of the tool that is the shell's command."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Files of settings, where the explorer starts."""
    end: str | None = None
    """The command of the shell that ends the attempt; None: a text does."""
    left_out: Sequence[tuple[str, str]] = ()
    """Models of calls that are not trained, with the reason."""


PROGRAMS = (
    Program(
        "claude",
        "env CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 "
        "claude -p {prompt} --model policy --allowedTools Bash",
        "Bash",
    ),
    Program("codex", f"sh -c {shlex.quote(CODEX)} {{prompt}}", "exec_command", "cmd"),
    Program("qwen", QWEN, "run_shell_command", settings={"qwen.json": QWEN_SETTINGS}),
    Program(
        "opencode",
        "env OPENCODE_CONFIG={start}/opencode.json OPENCODE_DISABLE_MODELS_FETCH=1 "
        "opencode run --model own/policy {prompt}",
        "bash",
        settings={"opencode.json": OPENCODE_SETTINGS},
        left_out=(("title", "model"),),
    ),
    Program(
        "mini",
        "env MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=True "
        "mini --yolo --exit-immediately --model openai/policy --task {prompt}",
        "bash",
        end="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    ),
)


@dataclass
class Working(Calculating):
    """An engine that also gives a title to conversations without the tool of the shell."""

    tool: str = ""

    async def generate(self, request: Request) -> Completion:
        if f'"name": "{self.tool}"' in self.tokenizer.decode(request.prompt_ids):
            return await super().generate(request)
        said = self.tokenizer.encode(TITLE)
        return Completion(said, [-0.5] * len(said), [self.version] * len(said), "stop")


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.binary for program in PROGRAMS])
def test_an_agent_of_the_command_line_is_recorded_as_it_is(
    program: Program, explore: Explore, scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not any((folder / program.binary).exists() for folder in FOLDERS):
        pytest.skip(f"{program.binary} is not installed: make test-agents installs it if npm is there")
    for folder in FOLDERS:
        monkeypatch.setenv("PATH", str(folder), prepend=":")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):  # nothing reaches other hosts
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name, content in program.settings.items():
        (tmp_path / name).write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    task = {"prompt": PROMPT, "files": {"number.txt": "6"}}
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.task SET payload = %s", (json.dumps(task),))

    def call(command: str) -> str:
        arguments = json.dumps({program.key: command})
        return f'<tool_call>{{"name":  "{program.tool}", "arguments": {arguments}}}</tool_call>'

    end = "It is done." if program.end is None else call(program.end)
    says = call("cat number.txt"), call("echo 42 > answer.txt"), end
    engine = Working(says, context=400_000, tool=program.tool)
    with closing(Command(program.command, "fresh", CHECK)) as workflow:
        options = {"attempt_seconds": 200, "requests": {"train": ["policy"]}}
        explore(workflow, engine, size=1, max_new_tokens=2000, **options)
    assert scene.values(ERRORS) == [None]
    assert scene.values("SELECT DISTINCT reward FROM trinity.experience") == [1.0]
    assert len(check_exact(engine, scene)) == 1
    assert scene.rows(LEFT_OUT) == [*program.left_out]
