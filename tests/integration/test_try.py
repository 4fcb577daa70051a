"""`trinity-db try`: one attempt by a program is described in full, and nothing of it is kept."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.test_programs import ASK
from tests.support.command_line import CommandLine
from tests.support.rows import Scene

# An engine without a model: it answers 333, 444, and so on.
ENGINE = """
import itertools
from trinity_db.explorer.engines.engine import Completion
from trinity_db.models import load_tokenizer

class Says:
    context = 4096

    async def load(self, path, version):
        self.tokenizer, self.version = load_tokenizer(path), version
        self.numbers = itertools.count(3)

    async def generate(self, request):
        said = self.tokenizer.encode(3 * str(next(self.numbers)), add_special_tokens=False)
        return Completion(said, [-1.5] * len(said), [self.version] * len(said), "stop")

    def close(self):
        pass
"""
AGENT = """
import sys, urllib.error
def say(prompt, **options):
    body = json.dumps({"model": "policy", "prompt": prompt, **options}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["text"]

answer = say(sys.argv[1] + "=", temperature=0)
say(sys.argv[1] + "=" + answer + "+1=")
say(sys.argv[1] + "=" + answer.replace("3", "8") + "+1=")
try:
    say("5", top_p=0.5)
except urllib.error.HTTPError as error:
    print(error)
print("reward: 9")
print(answer)
"""


@pytest.fixture
def config(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "says.py").write_text(ENGINE)
    (tmp_path / "agent.py").write_text(ASK + AGENT)
    with scene.database.transaction() as tx:
        tx.execute('UPDATE trinity.task SET payload = \'{"prompt": "12+3", "answer": "15"}\'')
    content: dict[str, Any] = {
        "name": "mine",
        "model": {"scratch": {"alphabet": "0123456789+= "}},
        "taskset": "tasks",
        "algorithm": "grpo",
        "explorer": {
            "engine": {"name": "says.py:Says"},
            "workflow": {
                "command": f"{sys.executable} -S {{start}}/agent.py {{prompt}}",
                "folder": "fresh",
                "check": "sh -c 'test $(tail -n 1) = 333'",
            },
        },
        "trainer": {"steps": 1},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "mine.yaml"


def test_an_attempt_is_described_and_nothing_of_it_is_kept(
    config: Path, scene: Scene, command_line: CommandLine, tmp_path: Path
) -> None:
    ended = command_line("try", str(config))
    assert ended.code == 0, ended
    for line in (
        '{"answer": "15", "prompt": "12+3"}',
        'Sequence 1 ends with "12+3=333+1=444"',
        "Sequence 2 has a changed conversation of sequence 1, after 5 characters:",
        '  said      "333+1=444"',
        '  came back "888+1=555"',
        "  workflow: 1, from the check's exit status 0",
        "program: exit status 0",
        "  HTTP Error 400: Bad Request",
        "  333",
        "Nothing of this attempt is kept.",
    ):
        assert line in ended.stdout.splitlines()
    ended = command_line("try", str(config), "--json", "--set", "explorer.workflow.check=sh -c 'exit 3'")
    assert ended.code == 1
    tried = json.loads(ended.stdout)
    refused = "1 request was refused: 'top_p' is 0.5: "
    assert tried["error"].startswith(f"ProgramFailed: the check ended with status 3; {refused}")
    assert [request["status"] for request in tried["requests"]] == [200, 200, 200, 400]
    assert [request["replaced"] for request in tried["requests"]] == [{"temperature": 0}, {}, {}, {}]
    assert tried["requests"][3]["refused"].startswith("'top_p' is 0.5")
    assert {request["path"] for request in tried["requests"]} == {"/v1/completions"}
    assert {request["model"] for request in tried["requests"]} == {"policy"}
    assert scene.values("SELECT name FROM trinity.run") == ["run"]
    assert not [*(tmp_path / "home").glob("checkpoints/*")]


def test_a_run_without_attempts_cannot_be_tried(config: Path, command_line: CommandLine) -> None:
    offline = ("--set", "algorithm=sft", "--set", "data=[rows]", "--set", "taskset=null")
    online = ("--set", "explorer={}", "--set", "trainer={}")
    complaint = command_line("try", str(config), *offline, *online).complaint
    assert complaint == "Run 'mine' is offline (algorithm sft): it makes no attempts."
