"""`trinity-db serve --plain` as a process: how it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
import yaml

from tests.support.rows import Scene
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch
from trinity_db.models.folder_digest import digest
from trinity_db.store import policies

# An engine without a model: it fails at prompts with a 3, and answers others with a 7.
ENGINE = """
from trinity_db.explorer.engines.engine import Completion, EngineFailed
from trinity_db.models import load_tokenizer

class Fails:
    context = 64

    async def load(self, path, version):
        self.tokenizer, self.version = load_tokenizer(path), version

    async def generate(self, request):
        if "3" in self.tokenizer.decode(request.prompt_ids):
            raise EngineFailed("out of memory")
        said = self.tokenizer.encode("7", add_special_tokens=False)
        return Completion(said, [-1.5], [self.version], "stop")

    def close(self):
        pass
"""


@pytest.fixture
def config(scene: Scene, tmp_path: Path) -> Path:
    """A run whose version 0 is a model in a folder."""
    model = tmp_path / "model"
    build_scratch(
        ScratchConfig(alphabet="0123456789: \nabcdefghijklmnopqrstuvwxyz", hidden_size=16, heads=1, layers=1),
        0,
        model,
    )
    mine = scene.beside("mine")
    with scene.database.transaction() as tx:
        policies.publish(tx, mine.run.id, policies.PolicyVersion(0, 0, model, digest(model)))
    (tmp_path / "fails.py").write_text(ENGINE)
    content = {
        "name": "mine",
        "model": {"path": str(model)},
        "taskset": "tasks",
        "algorithm": "grpo",
        "explorer": {"engine": {"name": "fails.py:Fails"}},
        "processors": {"score": ["exact_match"]},
        "trainer": {"steps": 1},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "mine.yaml"


@contextmanager
def served(scene: Scene, config: Path) -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI]]:
    """The server's process, once it listens, and a client of it."""
    command = [sys.executable, "-m", "trinity_db", "serve", str(config), "--plain", "--port", "0"]
    environment = os.environ | {
        "TRINITY_DB_URL": scene.database.url,
        "TRINITY_DB_HOME": str(config.parent / "home"),
    }
    with subprocess.Popen(
        command, cwd=config.parent, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            lines = list[str]()
            while not lines or "endpoint for agents: " not in lines[-1]:
                lines.append(process.stderr.readline())
                assert lines[-1], "".join(lines)
            url = lines[-1].split()[-1]
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                yield process, client
        finally:
            process.kill()


def test_a_plain_server_ends_with_the_error_of_its_engine(scene: Scene, config: Path) -> None:
    with served(scene, config) as (server, client):
        assert client.completions.create(model="mine", prompt="12").choices[0].text == "7"
        with pytest.raises(openai.InternalServerError, match="out of memory") as raised:
            client.chat.completions.create(model="mine", messages=[{"role": "user", "content": "3"}])
        errors = server.communicate(timeout=30)[1]
    assert raised.value.status_code == 503
    assert server.returncode == 1
    assert [line for line in errors.splitlines() if not line[:2].isdigit()] == ["error: out of memory"]


def test_a_plain_server_stops_at_a_signal(scene: Scene, config: Path) -> None:
    with served(scene, config) as (server, _):
        server.send_signal(signal.SIGTERM)
        errors = server.communicate(timeout=30)[1]
    assert (server.returncode, errors) == (0, "")
