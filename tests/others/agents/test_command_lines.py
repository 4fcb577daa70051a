"""Agents of the command line, as npm and PyPI have them: each works in a folder with its own tools.

A scripted engine answers each of them with two calls of its own shell tool and an end. What the engine saw
and sampled is compared with what is stored, and what became of the attempt with the table of
docs/guides/programs.md.
"""

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.others.agents.conftest import FOLDERS, PYTHON
from tests.others.agents.scripted_engine import Playing, check_exact
from tests.others.agents.table import documented
from tests.others.agents.test_frameworks import PROGRAMS as SCRIPTS
from tests.others.agents.training import AgentRun

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
LEFT_OUT = "SELECT model, left_out FROM trinity.call WHERE left_out IS NOT NULL"

# Aider has no tools: it reads files out of the answer. The first has no name, which it answers with an error.
AIDER = "I write it.\n\n```\n42\n```\n", "Again.\n\nanswer.txt\n```\n42\n```\n"


@dataclass(frozen=True)
class Program:
    """A program with its command line, and the shell tool that it offers."""

    agent: str
    """Its name in the table."""
    binary: str
    command: str
    tool: str | None
    key: str = "command"
    """The argument of the tool that is the shell's command."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Files of settings, where the explorer starts."""
    end: str | None = None
    """The command of the shell that ends the attempt; None: a text does."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Models of calls that are not trained, with the reason."""
    says: tuple[str, ...] = ()
    """The script of a program without tools."""

    def script(self, mark: str = "") -> tuple[str, ...]:
        """Read the file, write the answer, end.

        Args:
            mark: a part of each text that changes nothing.
        """
        if self.says:
            return tuple(f"{mark}\n{text}" for text in self.says)
        end = f"It is done.{mark}" if self.end is None else self._call(self.end + mark)
        return self._call(f"cat number.txt{mark}"), self._call(f"echo 42 > answer.txt{mark}"), end

    def _call(self, command: str) -> str:
        arguments = json.dumps({self.key: command})
        return f'<tool_call>{{"name":  "{self.tool}", "arguments": {arguments}}}</tool_call>'


PROGRAMS = (
    Program(
        "Claude Code",
        "claude",
        "env CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 "
        "claude -p {prompt} --model policy --allowedTools Bash",
        "Bash",
    ),
    Program("claude-agent-sdk", "claude", f"{PYTHON} {SCRIPTS}/claude_sdk.py {{prompt}}", "Bash"),
    Program("Codex", "codex", f"sh -c {shlex.quote(CODEX)} {{prompt}}", "exec_command", "cmd"),
    Program("Qwen Code", "qwen", QWEN, "run_shell_command", settings={"qwen.json": QWEN_SETTINGS}),
    Program(
        "opencode",
        "opencode",
        "env OPENCODE_CONFIG={start}/opencode.json OPENCODE_DISABLE_MODELS_FETCH=1 "
        "opencode run --model own/policy {prompt}",
        "bash",
        settings={"opencode.json": OPENCODE_SETTINGS},
        left_out=(("title", "model"),),
    ),
    Program(
        "mini-swe-agent",
        "mini",
        "env MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=True "
        "mini --yolo --exit-immediately --model openai/policy --task {prompt}",
        "bash",
        end="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    ),
    Program(
        "aider",
        "aider",
        "env LITELLM_LOCAL_MODEL_COST_MAP=True aider --analytics-disable --no-check-update --yes-always "
        "--no-git --model openai/policy --message {prompt} answer.txt number.txt",
        None,
        says=AIDER,
    ),
)


def prepare(program: Program, run: AgentRun, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """Write what a program needs into the explorer's folder; return the explorer's options."""
    for path in FOLDERS:
        monkeypatch.setenv("PATH", str(path), prepend=":")
    if shutil.which(program.binary) is None:
        pytest.skip(f"{program.binary} is not installed: make test-agents installs it if npm is there")
    for name, content in program.settings.items():
        (folder / name).write_text(json.dumps(content))
    task = {"prompt": PROMPT, "files": {"number.txt": "6"}}
    with run.scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.task SET payload = %s", (json.dumps(task),))
    return {"attempt_seconds": 200, "requests": {"train": ["policy"]}}


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.agent for program in PROGRAMS])
def test_an_agent_of_the_command_line_is_recorded_and_trained_as_it_is(
    program: Program, run: AgentRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = prepare(program, run, monkeypatch, tmp_path)
    engine = Playing(program.script(), tool=program.tool)
    run.attempt(program.command, engine, CHECK, **options)
    assert len(engine.calls) == len(program.script())
    asides = [] if program.left_out else engine.asides
    check_exact([*asides, *engine.calls], run.scene)
    assert run.scene.rows(LEFT_OUT) == [*program.left_out]
    assert run.train() == documented(program.agent)
