"""Agents over HTTP, by the installed command: endpoint and explorer are killed, and no answer is lost."""

import json
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Process, Store, new_store, reversals
from tests.support.processes import is_alive
from tests.support.waiting import WAIT_SECONDS, wait_until

AGENTS, CALLS, TOKENS = 4, 12, 3

# An engine without a model: what it says follows from the seed, so that no two calls say the same.
ENGINE = """
import asyncio, random

from trinity_db.explorer.engines.engine import Completion
from trinity_db.models import load_tokenizer


class Says:
    context = 4096

    async def load(self, path, version):
        self.tokenizer, self.version = load_tokenizer(path), version
        self.digits = self.tokenizer.encode("01234", add_special_tokens=False)

    async def generate(self, request):
        await asyncio.sleep(0.05)
        said = random.Random(request.seed).choices(self.digits, k=request.max_new_tokens)
        return Completion(said, [-1.5] * len(said), [self.version] * len(said), "length")

    def close(self):
        pass
"""

# A program that says each answer to a file as soon as it has it.
PROGRAM = """
import json, os, sys, urllib.request

print(os.getpid(), file=open(f"{sys.argv[1]}/pids", "a"), flush=True)
text = json.loads(os.environ["TRINITY_TASK"])["prompt"] + "="
for _ in range(CALLS):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    body = json.dumps({"prompt": text}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/completions", body, headers)
    text += json.load(urllib.request.urlopen(request))["choices"][0]["text"] + "="
    print(text, file=open(f"{sys.argv[1]}/said-{os.getpid()}", "w"), flush=True)
print("reward:", len(text))
"""
TEXTS = """
SELECT t.prompt || t.response AS text, e.response_length AS tokens
FROM experience e JOIN experience_text t ON t.experience_id = e.id JOIN rollout m ON m.id = e.rollout_id
WHERE m.state = 'finished'
"""


@pytest.fixture
def store(server: str, template: str, tmp_path: Path) -> Iterator[Store]:
    with new_store(server, template, tmp_path) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        (tmp_path / "says.py").write_text(ENGINE)
        (tmp_path / "agent.py").write_text(PROGRAM.replace("CALLS", str(CALLS)))
        yield store


def config_of(store: Store, **explorer: Any) -> Path:
    engine = {"name": f"{store.folder}/says.py:Says"}
    sizes = {"group_size": AGENTS, "concurrency": AGENTS, "max_new_tokens": TOKENS}
    return store.config(
        "agents",
        taskset="reverse",
        algorithm="grpo",
        explorer={"engine": engine, **sizes, **explorer},
        processors={"score": ["position_match"]},
        trainer={"steps": 1, "batch_size": 1},
    )


class Agent(threading.Thread):
    """A program from outside. It repeats a request until it is answered, and says that it repeats it."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.answered = 0
        self.text = ""
        self.ended: Any = None
        self.start()

    def run(self) -> None:
        given = self.ask("/v1/attempts", {})
        self.text = given["task"]["prompt"] + "="
        for _ in range(CALLS):
            said = self.ask("/v1/completions", {"prompt": self.text}, given["key"])
            self.text += said["choices"][0]["text"] + "="
            self.answered += 1
        self.ended = self.ask(f"/v1/attempts/{given['key']}/finish", 1)

    def ask(self, path: str, body: Any, key: str = "none") -> Any:
        deadline, count = time.monotonic() + WAIT_SECONDS, 0
        while time.monotonic() < deadline:
            headers = {"Authorization": f"Bearer {key}", "x-stainless-retry-count": str(count)}
            request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
            try:
                with urllib.request.urlopen(request) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503):
                    raise
            except (OSError, ValueError):  # it is gone, also in the middle of an answer
                pass
            count += 1
            time.sleep(0.1)
        raise AssertionError("no answer")


def until_answered(agents: list[Agent], count: int) -> None:
    wait_until(lambda: sum(one.answered for one in agents) > count, f"more than {count} answers")


def test_killing_the_endpoint_loses_no_answer_and_samples_none_twice(store: Store) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = str(probe.getsockname()[1])
    config = config_of(store)

    def serve() -> Process:
        return store.start("serve", config, "--port", port, "--groups", "1")

    served = serve()
    agents = [Agent(f"http://127.0.0.1:{port}") for _ in range(AGENTS)]
    for part in (1, 2):
        until_answered(agents, part * AGENTS * CALLS // 3)
        served.kill()
        answered = sum(one.answered for one in agents)
        assert store.value("SELECT count(*) FROM call") >= answered
        served = serve()
    for agent in agents:
        agent.join(WAIT_SECONDS)
    assert [agent.ended and agent.ended["state"] for agent in agents] == ["finished"] * AGENTS
    rows = store.rows(TEXTS)
    assert sorted(row["text"] + "=" for row in rows) == sorted(agent.text for agent in agents)
    assert served.wait().code == 0
    assert store.rows("SELECT DISTINCT state FROM rollout") == [{"state": "finished"}]
    assert store.value("SELECT count(*) FROM call") == 0
    assert store.value("SELECT sum(reward) FROM experience") == AGENTS


def test_killing_the_explorer_kills_its_programs_and_their_attempts_are_made_again(store: Store) -> None:
    command = f"{sys.executable} {store.folder}/agent.py {store.folder}"
    config = config_of(store, workflow={"command": command})
    explorer = store.start("explore", config, "--groups", "1")
    store.wait_for(f"SELECT count(*) > {AGENTS * CALLS // 2} FROM call", explorer)
    explorer.kill()
    pids = {int(pid) for pid in (store.folder / "pids").read_text().split()}
    wait_until(lambda: not any(map(is_alive, pids)), "the end of the programs")
    answered = sum(path.read_text().count("=") - 1 for path in store.folder.glob("said-*"))
    assert store.value("SELECT count(*) FROM call") >= answered > 0
    for path in store.folder.glob("said-*"):
        path.unlink()
    kept = store.value("SELECT count(*) FROM call")
    ended = store.run("explore", config, "--groups", "1")
    assert ended.code == 0, ended.stderr
    said = sorted(path.read_text().strip() for path in store.folder.glob("said-*"))
    rows = store.rows(TEXTS)
    assert sorted(row["text"] + "=" for row in rows) == said
    assert len(said) == AGENTS
    assert store.value("SELECT count(*) FROM call") == kept  # of the attempts that were broken off
    assert store.value("SELECT count(*) FROM agent WHERE ended_at IS NULL") == 0


def test_a_stop_ends_the_endpoint_and_its_agents_may_go_on_later(store: Store) -> None:
    config = config_of(store)
    served = store.start("serve", config, "--port", "0", "--groups", "1")
    wait_until(lambda: "endpoint for agents:" in served.errors, "the endpoint")
    url = served.errors.partition("endpoint for agents: ")[2].split()[0]
    agent = Agent(url)
    wait_until(lambda: agent.answered > 1, "answers")
    served.signal(signal.SIGINT)
    assert served.wait().code == 0
    again = store.start("serve", config, "--port", url.rpartition(":")[2], "--groups", "1")
    agent.join(WAIT_SECONDS)
    assert agent.ended["state"] == "finished"
    again.signal(signal.SIGINT)
    assert again.wait().code == 0
    assert [row["text"] + "=" for row in store.rows(TEXTS)] == [agent.text]


def test_other_machines_are_served_by_a_key_alone(store: Store) -> None:
    ended = store.run("serve", config_of(store), "--host", "0.0.0.0")
    assert ended.code == 1
    assert ended.error_lines == [
        "error: Any machine that reaches 0.0.0.0 could send requests: set TRINITY_DB_SERVE_KEY to a key, "
        "or omit --host."
    ]
